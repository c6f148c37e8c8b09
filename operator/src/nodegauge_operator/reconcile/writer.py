"""Make one step's write, and fold the API server's answer into the store.

Every branch is one call of `kube`.  A `Conflict` is no error: the object is read again and the question is
asked anew.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator.api.report import Report, ReportStatus
from nodegauge_operator.core import actions
from nodegauge_operator.core import planner as steps
from nodegauge_operator.core.budget import is_gated
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube import events, nodes, pods, reports
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, Forbidden, NotFound, Refused, Unavailable
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Store
from nodegauge_operator.reconcile.gate_budget import Places


class NoPlace(Exception):
    """A report would gate a node for which the budget has no place: a mistake of ours, never written."""


class Applier(Struct, kw_only=True):
    """Where to write, and where to note what came of it."""

    client: Client
    store: Store
    places: Places
    metrics: Metrics
    namespace: str
    instance: str

    async def apply(self, step: actions.Step, situation: steps.Situation) -> actions.Step | None:
        """Make the write; the step that was made, or None where the object was another by then.

        It is another step where the API server refused a pod.  Raises `KubeError` for what another try,
        later, has to solve.
        """
        try:
            if isinstance(step, actions.CreatePod):
                return await self._create(step, situation)
            await self._write(step)
        except Conflict:
            await self._read_again(step)
        except NotFound:
            if not await self._vanished(step):
                raise
        else:
            return step
        return None

    async def _write(self, step: actions.Step) -> None:
        match step:
            case actions.CreateReport(node):
                created = await reports.create(self.client, node)
                if created is not None:
                    self.store.put_report(created)
            case actions.DeleteReport(report):
                await reports.delete(self.client, report)
                self.store.drop_report(report.name, report.uid)
            case actions.PatchReport(report, status):
                await self._patch_report(report, status)
            case actions.PatchNode(node, labels, taints):
                patched = await nodes.patch(self.client, node, labels=labels, taints=taints)
                self.store.put_node(patched)
            case actions.SetCondition(node, condition):
                self.store.put_node(await nodes.patch_condition(self.client, node, condition))
            case actions.PostEvent(node, change):
                await events.post(self.client, node, change, instance=self.instance)
            case actions.DeletePod(pod, grace):
                left = await pods.delete(self.client, pod, namespace=self.namespace, grace=grace)
                if left is None:
                    self.store.drop_pod(pod)
                else:
                    self.store.put_pod(left)
            case actions.RefreshReport(name):
                await self._refresh(name)

    async def _patch_report(self, report: Report, status: ReportStatus) -> None:
        """Write the status; one that gates the node takes its place first, before anybody else can."""
        if not is_gated(replace(report, status=status)):
            self.store.put_report(await reports.patch_status(self.client, report, status))
            return
        if not self.places.take(report.name):
            raise NoPlace(f"report {report.name} would gate its node without a place in the budget")
        try:
            self.store.put_report(await reports.patch_status(self.client, report, status))
        except Unavailable:
            self.places.unanswered(report.name)
            raise
        except BaseException:
            self.places.written(report.name)
            raise
        self.places.written(report.name)

    async def _create(self, step: actions.CreatePod, situation: steps.Situation) -> actions.Step | None:
        """Create or adopt the pod; a refusal is written down as a run without a result, and backs off."""
        try:
            self.store.put_pod(await pods.create(self.client, step.manifest))
            return step
        except (Refused, Forbidden) as error:
            self.metrics.refused.inc()
            room = self.places.room(situation.node.name) if situation.node else False
            asked = replace(situation, gate_room=room)
            words = f"pod not created: {error}"
            noted = steps.refused(
                asked, number=step.number, reason="CreateRefused", message=words, probe=step.probe
            )
            return await self.apply(noted, situation)

    async def _read_again(self, step: actions.Step) -> None:
        match step:
            case actions.PatchNode(node) | actions.SetCondition(node):
                await self._refresh_node(node)
            case actions.PatchReport(report) | actions.DeleteReport(report):
                await self._refresh(report.name)
            case _:
                pass

    async def _vanished(self, step: actions.Step) -> bool:
        """A 404 on a write: find out what is gone; False when it is the resource itself (CRD missing)."""
        match step:
            case actions.PatchNode(node) | actions.SetCondition(node):
                await self._refresh_node(node)
                return True
            case actions.PatchReport(report):
                await self._refresh(report.name)
                return True
            case _:
                return False

    async def _refresh_node(self, node: NodeView) -> None:
        try:
            fresh = await nodes.get(self.client, node.name)
        except NotFound:
            self.store.drop_node(node.name)
            return
        self.store.put_node(fresh)

    async def _refresh(self, name: str) -> None:
        fresh = await reports.get(self.client, name)
        known = self.store.reports.get(name)
        if fresh is not None:
            self.store.put_report(fresh)
        elif known is not None:
            self.store.drop_report(name, known.uid)
