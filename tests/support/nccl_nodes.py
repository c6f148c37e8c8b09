"""Reports of nodes with NCCL runs, made by the operator's own code from documents of made machines."""

from __future__ import annotations

from typing import Any, Self

from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, NcclResult, Result, Skip
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Outcome, Report
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import KINDS
from support.objects import DEFAULTS, NOW, ANode, AReport, make_context, make_node, make_report, read

IMAGE = "nccl:1"
INSTALLED: ProbeDefaults = replace(DEFAULTS, nccl_image=IMAGE, nccl_priority_class_name="nodegauge-nccl")
"""An installation that names a nccl image."""
DAY, RECHECK = 86_400.0, 600.0
NODE: ANode = make_node().offering(8)
"""Eight GPUs, all offered."""

FAST, SLOW = nccl.h100(), nccl.h100(21.0, gather=16.0, ring=20.0)
"""As fast as it should be; its NVLinks up in name alone."""
WRONG = nccl.swapped(FAST, ArmName.DEFAULT, cells=[nccl.cell("all_reduce", 1 << 30, 462.0, ranks=8, wrong=3)])
"""As fast, with wrong data."""
BUSY = RunEnd(outcome=Outcome.SKIPPED, reason="NotScheduled", message="no GPU is free")
PREEMPTED = RunEnd(
    outcome=Outcome.SKIPPED, reason="Preempted", message="a pod of higher priority took the place"
)
LOST = RunEnd(outcome=Outcome.UNKNOWN, reason="OOMKilled", message="no result")

STRICT: dict[str, Any] = {
    "expectations": [
        {
            "gpu": "*H100*",
            "count": 8,
            "collective": "all_reduce",
            "bytes": 1 << 30,
            "busbw": 600,
            "floor": 550,
        }
    ]
}
"""Of a policy that even the fast machine does not satisfy."""


def skipping(why: Skip, message: str = "") -> Result:
    """An NCCL run that measured nothing although all was well."""
    return replace(made.h100(), probe="nccl", nccl=NcclResult(skipped=why, message=message))


class NcclNode(AReport, frozen=True, kw_only=True):
    """The report of a node under an installation with an NCCL image."""

    def healthy(
        self,
        node: ANode = NODE,
        *,
        at: float = NOW,
        result: Result | None = None,
        policy: Policy | None = None,
    ) -> Self:
        """After a health run: good, unless another document is given."""
        end = read(result or made.h100())
        return self.after(end, node=node, at=at, nccl_image=IMAGE, policy=policy)

    def pulled(
        self, node: ANode = NODE, *, at: float = NOW, end: RunEnd | None = None, image: str = IMAGE
    ) -> Self:
        """After a pull: good, unless it ended in another way."""
        end = end or read(Result(probe="pull", nccl=NcclResult(engine="nccl4py", nccl="2.32.3")))
        return self.after(end, node=node, at=at, probe=names.PROBE_PULL, nccl_image=image)

    def measured(
        self,
        end: RunEnd | Result,
        node: ANode = NODE,
        *,
        at: float = NOW,
        policy: Policy | None = None,
        request: str = "",
        slot: bool = True,
    ) -> Self:
        """After an NCCL run that brought this, or ended so."""
        end = end if isinstance(end, RunEnd) else read(end)
        return self.after(
            end,
            node=node,
            at=at,
            policy=policy,
            request=request,
            slot=slot,
            probe=names.PROBE_NCCL,
            nccl_image=IMAGE,
        )


def nccl_node(node: ANode = NODE, *, at: float = NOW) -> NcclNode:
    """Healthy, and the image is there."""
    empty = make_report(node)
    report = NcclNode(
        name=empty.name, uid=empty.uid, resource_version=empty.resource_version, node_uid=empty.node_uid
    )
    return report.healthy(node, at=at).pulled(node, at=at)


def nccl_due_at(report: Report, node: ANode = NODE, **known: Any) -> float:
    """When the next pull or NCCL run may start."""
    context = make_context(**{"node": node, "report": report, "defaults": INSTALLED} | known)
    return min(KINDS[name].due_at(context) for name in (names.PROBE_PULL, names.PROBE_NCCL))
