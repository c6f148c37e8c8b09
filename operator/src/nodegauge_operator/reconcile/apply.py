"""Make one step's write, and fold the API server's answer into the store.

Every branch is one call of `kube`.  A `Conflict` is no error: the object is read again and the question is
asked anew.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from nodegauge_operator.api.report import Change
from nodegauge_operator.core import step as steps
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube import events, nodes, pods, reports
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, Forbidden, NotFound, Refused
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.store import Store

log = logging.getLogger("nodegauge.node")


class Applier(Struct, kw_only=True):
    """Where to write, and where to note what came of it."""

    client: Client
    store: Store
    metrics: Metrics
    namespace: str
    instance: str

    async def apply(self, step: steps.Step, situation: steps.Situation) -> steps.Step | None:
        """Make the write; the step that was made, or None where the object was another by then.

        It is another step where the API server refused a pod.  Raises `KubeError` for what another try,
        later, has to solve.
        """
        try:
            if isinstance(step, steps.CreatePod):
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

    async def _write(self, step: steps.Step) -> None:
        match step:
            case steps.CreateReport(node):
                created = await reports.create(self.client, node)
                if created is not None:
                    self.store.put_report(created)
            case steps.DeleteReport(report):
                await reports.delete(self.client, report)
                self.store.drop_report(report.name, report.uid)
            case steps.PatchReport(report, status):
                self.store.put_report(await reports.patch_status(self.client, report, status))
            case steps.PatchNode(node, labels):
                self.store.put_node(await nodes.patch_labels(self.client, node, labels))
            case steps.SetCondition(node, condition):
                self.store.put_node(await nodes.patch_condition(self.client, node, condition))
            case steps.PostEvent(node, change):
                await self._post(node, change)
            case steps.DeletePod(pod, grace):
                left = await pods.delete(self.client, pod, namespace=self.namespace, grace=grace)
                if left is None:
                    self.store.drop_pod(pod)
                else:
                    self.store.put_pod(left)
            case steps.RefreshReport(name):
                await self._refresh(name)

    async def _create(self, step: steps.CreatePod, situation: steps.Situation) -> steps.Step | None:
        """Create or adopt the pod; a refusal is written down as a run without a result, and backs off."""
        try:
            self.store.put_pod(await pods.create(self.client, step.manifest))
            return step
        except (Refused, Forbidden) as error:
            self.metrics.refused.inc()
            noted = steps.refused(
                situation, number=step.number, reason="CreateRefused", message=f"pod not created: {error}"
            )
            return await self.apply(noted, situation)

    async def _post(self, node: NodeView, change: Change) -> None:
        """Post an event; one that is refused is said in the log, and holds nothing up."""
        try:
            await events.post(self.client, node, change, instance=self.instance)
        except (Refused, Forbidden) as error:
            log.warning("node %s: event %s not posted: %s", node.name, change.reason, error)

    async def _read_again(self, step: steps.Step) -> None:
        match step:
            case steps.PatchNode(node) | steps.SetCondition(node):
                await self._refresh_node(node)
            case steps.PatchReport(report) | steps.DeleteReport(report):
                await self._refresh(report.name)
            case _:
                pass

    async def _vanished(self, step: steps.Step) -> bool:
        """A 404 on a write: find out what is gone; False when it is the resource itself (CRD missing)."""
        match step:
            case steps.PatchNode(node) | steps.SetCondition(node):
                await self._refresh_node(node)
                return True
            case steps.PatchReport(report):
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
