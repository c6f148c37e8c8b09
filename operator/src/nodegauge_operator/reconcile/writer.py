"""Make one write, and put the API server's answer into the cache.

Every branch is one call of `kube`.  A `Conflict` is not an error: the object is read again and the next write
is planned anew.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import Report, ReportStatus
from nodegauge_operator.core import actions, planner
from nodegauge_operator.core.budget import is_gated
from nodegauge_operator.core.context import Snapshot
from nodegauge_operator.core.device_gates import taken
from nodegauge_operator.core.device_rule import DeviceRule
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.pod_outcome import CREATE_REFUSED
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.kube import device_rules, events, histories, nodes, pods, readings, reports
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, Forbidden, NotFound, Refused, Unavailable, WebhookFailed
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache, expect_no_older, version_of
from nodegauge_operator.reconcile.device_budget import DeviceBudget
from nodegauge_operator.reconcile.gate_budget import GateBudget


class NoSlot(Exception):
    """A node or its report would be gated without a free slot in the budget: a bug, and never written."""


class Writer(Struct, kw_only=True):
    """Makes the planned writes; keeps the cache and the budget of gated nodes up to date."""

    client: Client
    cache: Cache
    gate_budget: GateBudget
    device_budget: DeviceBudget
    metrics: Metrics
    namespace: str
    instance: str

    async def write(self, step: actions.Step, snapshot: Snapshot) -> actions.Step | None:
        """Make the write; the step that was made, or None if the object had changed or was gone.

        If the API server refuses a pod, the step that records the refusal.  Raises `KubeError` if the write
        has to be tried again later, and `Restored` if what it was planned by is gone.
        """
        try:
            if isinstance(step, actions.CreatePod):
                return await self._create(step, snapshot)
            await self._call(step, now=snapshot.now)
        except Conflict:
            await self._read_again(step)
        except NotFound:
            if not await self._is_gone(step):
                raise
        else:
            return step
        return None

    async def _call(self, step: actions.Step, *, now: float) -> None:
        match step:
            case actions.CreateReport(node):
                created = await reports.create(self.client, node)
                if created is not None:
                    self.cache.put_report(created)
            case actions.DeleteReport(report):
                await reports.delete(self.client, report)
                self.cache.drop_report(report.name, report.uid)
            case actions.PatchReport(report, status):
                await self._patch_report(report, status)
            case actions.PatchNode():
                await self._patch_node(step)
            case actions.PutDeviceRule():
                await self._put_rule(step)
            case actions.DeleteDeviceRule(rule):
                await device_rules.delete(self.client, rule, api=self.cache.rules_api)
                self.cache.drop_rule(rule)
            case actions.SetCondition(node, condition):
                self.cache.put_node(await nodes.patch_condition(self.client, node, condition))
            case actions.PostEvent(node, change):
                await events.post(self.client, node, change, instance=self.instance, now=now)
            case actions.DeletePod(pod, grace):
                terminating = await pods.delete(self.client, pod, namespace=self.namespace, grace=grace)
                if terminating is None:
                    self.cache.drop_pod(pod)
                else:
                    self.cache.put_pod(terminating)
            case actions.RefreshReport(name):
                await self._refresh(name)
            case actions.RefreshReading(name):
                if (fresh := await readings.get(self.client, name)) is not None:
                    self.cache.put_reading(fresh)
            case actions.WriteHistory():
                await histories.write(self.client, step)
            case actions.DeleteReading(name, uid):
                await readings.delete(self.client, name, uid=uid)
                if (known := self.cache.readings.get(name)) is not None and known.uid == uid:
                    self.cache.drop_reading(name)

    async def _patch_node(self, step: actions.PatchNode) -> None:
        """Write labels and taints; a new taint for a fault reserves a slot first, until the report holds
        it."""
        name, before = step.node.name, {taint.own for taint in step.node.taints}
        new = {taint.own for taint in step.taints or ()} - before
        gates = not new.isdisjoint(names.TAINTS_OF_FAULTS)
        if gates and not self.gate_budget.reserve(name):
            raise NoSlot(f"node {name} would be gated without a slot in the budget")
        try:
            node = await nodes.patch(self.client, step.node, labels=step.labels, taints=step.taints)
        except BaseException as error:
            if gates and isinstance(error, Unavailable):
                self.gate_budget.unanswered(name)
            elif gates:
                self.gate_budget.confirm(name)
            raise
        self.cache.put_node(node)
        if gates:
            self.gate_budget.unanswered(name)  # by the report, which comes next unless the policy goes

    async def _put_rule(self, step: actions.PutDeviceRule) -> None:
        """Write a rule; one that gates its device reserves a slot first, until the report holds it."""
        if step.rule.taint[2] != "None" and not self.device_budget.reserve(step.node.name, step.devices):
            raise NoSlot(f"a device of node {step.node.name} would be gated without a slot in the budget")
        self.cache.put_rule(await device_rules.put(self.client, step.rule, api=self.cache.rules_api))

    async def _patch_report(self, report: Report, status: ReportStatus) -> None:
        """Write the status; one that gates the node or devices reserves slots first."""
        if taken(status) and not self.device_budget.reserve(report.name, taken(status)):
            raise NoSlot(f"report {report.name} would gate devices without slots in the budget")
        if not is_gated(replace(report, status=status)):
            self.cache.put_report(await reports.patch_status(self.client, report, status))
            self.gate_budget.confirm(report.name)
            self.device_budget.confirm(report.name)
            return
        if not self.gate_budget.reserve(report.name):
            raise NoSlot(f"report {report.name} would gate its node without a slot in the budget")
        try:
            self.cache.put_report(await reports.patch_status(self.client, report, status))
        except Unavailable:
            self.gate_budget.unanswered(report.name)
            raise
        except BaseException:
            self.gate_budget.confirm(report.name)
            raise
        self.gate_budget.confirm(report.name)
        self.device_budget.confirm(report.name)

    async def _create(self, step: actions.CreatePod, snapshot: Snapshot) -> actions.Step | None:
        """Create or adopt the pod; a refusal is recorded as a run without a result, and backs off."""
        try:
            self.cache.put_pod(await pods.create(self.client, step.manifest))
            return step
        except (Refused, Forbidden, WebhookFailed) as error:
            self.metrics.refused.inc()
            slot = self.gate_budget.has_slot(step.node.name)
            context = replace(snapshot, gate_slot=slot).context
            assert context is not None, "pods are only created on nodes that a policy selects"
            refusal = planner.refused(
                context,
                kind=KINDS[step.probe],
                number=step.number,
                reason=CREATE_REFUSED,
                message=f"pod not created: {error}",
            )
            return await self.write(refusal, snapshot)

    async def _read_again(self, step: actions.Step) -> None:
        match step:
            case actions.PatchNode(node) | actions.SetCondition(node):
                await self._refresh_node(node)
            case actions.PatchReport(report) | actions.DeleteReport(report):
                await self._refresh(report.name)
            case actions.PutDeviceRule(_, rule):
                await self._refresh_rule(rule)
            case _:
                pass

    async def _is_gone(self, step: actions.Step) -> bool:
        """After a 404: read the object again; False if the resource itself is missing (no CRD)."""
        match step:
            case actions.PatchNode(node) | actions.SetCondition(node):
                await self._refresh_node(node)
                return True
            case actions.PatchReport(report):
                await self._refresh(report.name)
                return True
            case actions.PutDeviceRule(_, rule) if rule.resource_version:
                await self._refresh_rule(rule)
                return True
            case _:
                return False

    async def _refresh_rule(self, rule: DeviceRule) -> None:
        fresh = await device_rules.get(self.client, rule, api=self.cache.rules_api)
        if fresh is not None:
            self.cache.put_rule(fresh)
        for known in self.cache.rules_of(rule.node):
            if known.name == rule.name and (fresh is None or fresh.uid != known.uid):
                self.cache.drop_rule(known)

    async def _refresh_node(self, node: NodeView) -> None:
        before = version_of(node.resource_version)
        try:
            fresh = await nodes.get(self.client, node.name)
        except NotFound:
            self.cache.drop_node(node.name)
            return
        expect_no_older(fresh.resource_version, known=before, what=f"node {node.name}")
        self.cache.put_node(fresh)

    async def _refresh(self, name: str) -> None:
        before = self.cache.reports.get(name)
        fresh = await reports.get(self.client, name)
        if before is not None and fresh is not None:
            known_at = version_of(before.resource_version)
            expect_no_older(fresh.resource_version, known=known_at, what=f"report {name}")
        known = self.cache.reports.get(name)
        if fresh is not None:
            self.cache.put_report(fresh)
        elif known is not None:
            self.cache.drop_report(name, known.uid)
