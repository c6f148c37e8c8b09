"""Reports of nodes with NCCL runs, made by the operator's own code from documents of made machines."""

from typing import Any, Self

from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, NcclResult, Result, Skip
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, Report
from nodegauge_operator.core.actions import CreatePod
from nodegauge_operator.core.context import Snapshot
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import KINDS
from support.objects import (
    DEFAULTS,
    MINUTE,
    NOW,
    ANode,
    AReport,
    make_context,
    make_node,
    make_report,
    make_snapshot,
    read,
)

IMAGE = "nccl:1"
INSTALLED: ProbeDefaults = replace(DEFAULTS, nccl_image=IMAGE, nccl_priority_class_name="nodegauge-nccl")
DAY, RECHECK = 86_400.0, 600.0
NODE: ANode = make_node().offering(8)

FAST, SLOW = nccl.h100(), nccl.h100(21.0, gather=16.0, ring=20.0)
"""As fast as it should be; its NVLinks up in name alone."""
WRONG = nccl.swapped(FAST, ArmName.DEFAULT, cells=[nccl.cell("all_reduce", 1 << 30, 462.0, ranks=8, wrong=3)])
"""As fast, with wrong data."""
BUSY = RunEnd(outcome=Outcome.SKIPPED, reason="NotScheduled", message="no GPU is free")
PREEMPTED = RunEnd(outcome=Outcome.SKIPPED, reason="Preempted", message="another pod took the place")

FLOOR = {"gpu": "*H100*", "count": 8, "collective": "all_reduce", "bytes": 1 << 30, "busbw": 600}
STRICT: dict[str, Any] = {"expectations": [FLOOR | {"floor": 550}]}
"""Of a policy that even the fast machine does not satisfy."""


def skipping(why: Skip, message: str = "") -> Result:
    return replace(made.h100(), probe="nccl", nccl=NcclResult(skipped=why, message=message))


class NcclNode(AReport, frozen=True, kw_only=True):
    """The report of a node under an installation with an NCCL image."""

    def healthy(self, node: ANode = NODE, *, result: Result | None = None, **known: Any) -> Self:
        return self.after(read(result or made.h100()), node=node, nccl_image=IMAGE, **known)

    def pulled(
        self, node: ANode = NODE, *, at: float = NOW, end: RunEnd | None = None, image: str = IMAGE
    ) -> Self:
        end = end or read(Result(probe="pull", nccl=NcclResult(engine="nccl4py", nccl="2.32.3")))
        return self.after(end, node=node, at=at, probe=names.PROBE_PULL, nccl_image=image)

    def measured(self, end: RunEnd | Result, node: ANode = NODE, **known: Any) -> Self:
        end = end if isinstance(end, RunEnd) else read(end)
        return self.after(end, node=node, probe=names.PROBE_NCCL, nccl_image=IMAGE, **known)


def nccl_node(node: ANode = NODE, *, result: Result | None = None) -> NcclNode:
    empty = make_report(node)
    report = NcclNode(
        name=empty.name, uid=empty.uid, resource_version=empty.resource_version, node_uid=empty.node_uid
    )
    return report.healthy(node, result=result).pulled(node)


def due(report: Report, node: ANode = NODE, **known: Any) -> float:
    context = make_context(**{"node": node, "report": report, "defaults": INSTALLED} | known)
    return min(KINDS[name].due_at(context) for name in (names.PROBE_PULL, names.PROBE_NCCL))


def situation(report: NcclNode, node: ANode = NODE, **known: Any) -> Snapshot:
    change = report.status.change
    start: dict[str, Any] = {
        "node": node.carrying(report.status.desired),
        "report": report,
        "now": NOW + MINUTE,
        "granted": frozenset({names.PROBE_HEALTH, names.PROBE_NCCL}),
        "defaults": INSTALLED,
        "posted": (change.run, change.reason) if change else ("", ""),
    }
    return make_snapshot(**start | known)


def started(report: NcclNode, node: ANode = NODE, **known: Any) -> str:
    step = next_step(situation(report, node, **known))
    return step.probe if isinstance(step, CreatePod) else ""
