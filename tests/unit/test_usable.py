"""How many GPUs of a node can be used, and to which cause the others are lost."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.report import GateState, GateStatus, ReportStatus
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.usable import Usable, usable
from support.objects import LOST, NOW, STALE, AReport, make_node, make_policy, make_report, read

NODE = make_node()
H100 = "8 x NVIDIA-H100-80GB-HBM3"
PRODUCT = {"nvidia.com/gpu.product": H100[4:]}
WELL = make_report().after(read(made.h100()), node=NODE)
FEWER = replace(WELL.status, gpus=replace(WELL.status.gpus, count=7, missing=WELL.status.gpus.items[:1]))


def gated(*codes: str, state: GateState = GateState.GATED, of: ReportStatus = WELL.status) -> ReportStatus:
    return replace(of, gates=[GateStatus(code=code, state=state) for code in codes])


def stale(report: AReport) -> ReportStatus:
    failed = report.after(LOST, node=NODE, at=NOW + 60)
    return failed.seen(node=NODE, at=NOW + 10 * STALE).status


LEFT_ALONE = Override(kind="leave-alone")
SHARED = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "8"} | {
    key: f"{product}-SHARED" for key, product in PRODUCT.items()
}
MIG = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "nvidia.com/gpu.count": "56"}
NEVER = ReportStatus()
CASES: dict[str, tuple[ReportStatus, NodeView, dict[str, int]]] = {
    "sound": (WELL.status, NODE, {}),
    "a bad run": (gated("hot", state=GateState.WATCHING), NODE, {}),
    "on trial": (gated("hot", state=GateState.PROBATION), NODE, {}),
    "held back": (gated("hot", state=GateState.HELD_BACK), NODE, {"thermal": 8}),
    "worst of two": (gated("hot", "gpu-lost"), NODE.cordoned(), {"gpu-lost": 8}),
    "slow before lesser": (gated("hot", "nvlink-errors"), NODE, {"thermal": 8}),
    "a newer version's": (gated("quantum"), NODE, {}),
    "gone and confirmed": (gated("gpu-lost", of=FEWER), NODE, {"gpu-lost": 8}),
    "gone": (FEWER, NODE, {"missing": 1}),
    "gone and cordoned": (FEWER, NODE.cordoned(), {"missing": 1, "cordoned": 7}),
    "cordoned": (WELL.status, NODE.cordoned(), {"cordoned": 8}),
    "not ready": (WELL.status, NODE.not_ready().cordoned(), {"away": 8}),
    "left alone": (replace(WELL.status, override=LEFT_ALONE), NODE, {"paused": 8}),
    "stale": (stale(WELL), NODE.cordoned(), {"unread": 8}),
    "tainted anew": (WELL.status, NODE.tainted(names.TAINT_UNVALIDATED), {"unvalidated": 8}),
    "never passed": (replace(WELL.status, passed_at=""), NODE, {"unvalidated": 8}),
    "never read": (NEVER, NODE.offering(0, of=8).bearing(PRODUCT), {"unread": 8}),
    "never read, shared": (NEVER, NODE.offering(32).bearing(SHARED), {"unread": 8}),
    "shared": (WELL.status, NODE.offering(32).bearing(SHARED), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_gpu_counts_once_for_the_worst_cause(name: str) -> None:
    status, node, lost = CASES[name]
    expected = Usable(klass=H100, gpus=8, usable=8 - sum(lost.values()), lost=lost)
    assert usable(status, node, make_policy()) == usable(status, node, None) == expected


@pytest.mark.parametrize(
    ("spec", "node", "lost"),
    [
        ({"expectedGpus": 9}, NODE, {"missing": 1}),
        ({"expectedGpus": 8}, NODE.offering(10), {}),
        ({}, NODE.offering(10), {"missing": 2}),
        ({"mode": "Paused"}, NODE, {"paused": 8}),
    ],
)
def test_the_policy_and_the_cluster_say_how_many_there_should_be(
    spec: dict[str, Any], node: NodeView, lost: dict[str, int]
) -> None:
    seen = usable(WELL.status, node, make_policy().of(spec))
    assert (seen.gpus, seen.lost) == (seen.usable + sum(lost.values()), lost)


@pytest.mark.parametrize(
    ("node", "gpus"), [(NODE, 0), (NODE.offering(56).bearing(MIG), 0), (NODE.offering(8), 8)]
)
def test_what_nobody_knows_is_said(node: NodeView, gpus: int) -> None:
    """Neither the number nor the model of a node that was never read may be made up."""
    seen = usable(NEVER, node, make_policy())
    assert (seen.klass, seen.gpus, seen.usable, seen.counted) == (
        "unknown",
        gpus,
        0,
        gpus > 0,
    )


def test_a_node_without_gpus_is_counted() -> None:
    bare = replace(WELL.status, gpus=replace(WELL.status.gpus, count=0, items=[], product=""))
    assert usable(bare, NODE, make_policy()) == Usable()
