"""GPUs in different cliques of a fabric, and GPUs that a hypervisor shares among virtual machines."""

from __future__ import annotations

from typing import Any

import pytest

import support.results as made
from nodegauge_contract import Fabric, Result, Unavailable
from nodegauge_judge import Severity, judge_health
from support.judge_results import codes, only

RACK = "c1a570f0-0000-4000-8000-0000000000aa"
OTHER = "c1a570f0-0000-4000-8000-0000000000bb"
NONE = "0" * 32


def tray(*fabrics: Fabric) -> Result:
    """A GB200 tray whose GPUs report these."""
    result = made.switched(len(fabrics), name="NVIDIA GB200", links=18, mbps=53_125)
    for gpu_index, each in enumerate(fabrics):
        result = made.with_gpu(result, gpu_index, fabric=each)
    return result


def joined(uuid: str | Unavailable, clique: int | Unavailable, **more: Any) -> Fabric:
    """A completed registration."""
    return Fabric(**({"state": 3, "status": 0, "cluster_uuid": uuid, "clique": clique} | more))


@pytest.mark.parametrize(
    ("fabrics", "members"),
    [
        pytest.param(
            [joined(RACK, 1), joined(RACK, 1), joined(RACK, 2), joined(RACK, 2)],
            ["GPU 0, GPU 1 in c1a570f0", "00aa.1; GPU 2, GPU 3 in c1a570f0"],
            id="two-halves-of-a-tray",
        ),
        pytest.param(
            [joined(RACK, 32766), joined(RACK, 32766), joined(RACK, 32766), joined(RACK, 7)],
            ["GPU 3 in c1a570f00000400080000000000000aa.7"],
            id="one-gpu-left-the-default-partition",
        ),
        pytest.param([joined(RACK, 1), joined(OTHER, 1)], ["00aa.1", "00bb.1"], id="two-clusters"),
        pytest.param([joined(RACK, 1), joined(NONE, 0)], ["GPU 1 in 0000"], id="one-without-a-cluster"),
        pytest.param([joined(NONE, 0), joined(NONE, 3)], [".0;", ".3"], id="cliques-without-a-cluster"),
    ],
)
def test_gpus_in_different_cliques_warn_and_have_no_class(fabrics: list[Fabric], members: list[str]) -> None:
    """NVLink does not join them, whatever their links say; the finding names who is where, as GFD does."""
    judgement = judge_health(tray(*fabrics))
    finding = only(judgement)
    assert (finding.code, finding.severity, finding.subject) == ("fabric-cliques", Severity.WARN, "node")
    assert all(text in finding.message for text in members), finding.message
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (None, "CliquesDiffer")


@pytest.mark.parametrize(
    "fabrics",
    [
        pytest.param([joined(NONE, 0)] * 8, id="hgx-h100"),
        pytest.param([joined(RACK, 5)] * 4, id="one-clique"),
        pytest.param(
            [joined(RACK.upper(), 5), joined(RACK.replace("-", ""), 5)], id="one-cluster-in-two-forms"
        ),
        pytest.param([joined(RACK, 5), Fabric(state=0), Fabric()], id="gpus-without-a-fabric"),
        pytest.param([joined(RACK, 5), joined(Unavailable("Unknown"), 9)], id="unreadable-cluster"),
        pytest.param([joined(RACK, 5), joined(OTHER, Unavailable("Unknown"))], id="unreadable-clique"),
    ],
)
def test_gpus_of_one_clique_or_of_none_are_healthy(fabrics: list[Fabric]) -> None:
    """A single-node machine reports clique 0 of an all-zero cluster; missing data accuses nobody."""
    judgement = judge_health(tray(*fabrics))
    assert (codes(judgement), judgement.interconnect.klass) == ([], "nvlink")


@pytest.mark.parametrize(
    ("result", "mode"),
    [
        pytest.param(made.phb(), 2, id="vgpu-without-links"),
        pytest.param(made.h100(), 2, id="vgpus-with-links"),
        pytest.param(made.a100_bridged_pairs(), 3, id="vgpu-host"),
        pytest.param(made.rtx3090(), 4, id="vsga-host"),
    ],
)
def test_virtual_gpus_have_no_class_and_an_info(result: Result, mode: int) -> None:
    """What the hypervisor shows of them is not how they are joined."""
    judgement = judge_health(made.every_gpu(result, virtualization=mode))
    assert (codes(judgement), judgement.verdict) == (["virtual-gpu/info"], "pass")
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (None, "VirtualGpu")
    assert "NVML" in only(judgement).message


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(made.with_pair(made.h100(2), 0, 1, read=5, nvlink=5), id="p2p-refused-by-the-profile"),
        pytest.param(made.without_links(made.h100(4), 2, count=9), id="fewer-links"),
        pytest.param(made.with_pair(made.ncv4(), 0, 2, nvlink=0), id="far-ends-hidden"),
        pytest.param(made.with_gpu(made.h100(2), 1, fabric=Fabric(state=2)), id="fabric-in-progress"),
        pytest.param(tray(joined(RACK, 1), joined(RACK, 2)), id="two-cliques"),
    ],
)
@pytest.mark.parametrize("mode", [2, 3])
def test_what_a_hypervisor_shows_of_links_accuses_no_node(result: Result, mode: int) -> None:
    """A vGPU may refuse P2P and hide links by design; nothing of it is remembered either."""
    history = judge_health(made.h100(len(result.gpus))).history
    judgement = judge_health(made.every_gpu(result, virtualization=mode), history=history)
    assert codes(judgement) == ["virtual-gpu/info"]
    assert {gpu.links.sum for gpu in judgement.history.gpus.values()} == {18}


@pytest.mark.parametrize("mode", [0, 1, 99, Unavailable("NVML_ERROR_NOT_SUPPORTED")])
@pytest.mark.parametrize(
    ("result", "klass"),
    [(made.phb(), "pcie"), (made.h100(), "nvlink"), (made.ncv4(), "nvlink-pairs"), (made.titan(), "nvlink")],
)
def test_whole_gpus_keep_what_links_and_p2p_show(result: Result, klass: str, mode: int | Unavailable) -> None:
    """On bare metal, passed through to a virtual machine, and where the mode is not known."""
    judgement = judge_health(made.every_gpu(result, virtualization=mode))
    assert (codes(judgement), judgement.interconnect.klass) == ([], klass)
