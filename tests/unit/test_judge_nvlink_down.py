"""NVLinks that are down on every GPU at first sight: dead boards warn, unbridged cards are healthy."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, LinkGroup, Result, Unavailable
from nodegauge_judge import Judgement, judge_health
from support.judge_results import codes, only

PASSTHROUGH = 1

ABSENT = LinkGroup(
    links=list(range(18)),
    state=Unavailable("NVML_ERROR_NOT_SUPPORTED"),
    p2p=Unavailable("NVML_ERROR_NOT_SUPPORTED"),
)
"""As a driver answers for links that a GPU does not have."""


def down(count: int, name: str, links: int, **more: Any) -> Result:
    """GPUs whose links the driver lists as capable and inactive; P2P over NVLink is not supported."""
    idle = [LinkGroup(links=list(range(links)), state=0, p2p=1)] if links else []
    gpus = [made.gpu(i, name=name, links=idle, **more) for i in range(count)]
    return made.machine(gpus, [[False] * count for _ in range(count)])


def klass(judgement: Judgement) -> tuple[str | None, str]:
    """The interconnect class and its reason."""
    return judgement.interconnect.klass, judgement.interconnect.reason


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(down(8, "NVIDIA H100 80GB HBM3", 18), id="hgx-h100"),
        pytest.param(
            down(8, "NVIDIA H100 80GB HBM3", 18, switch_links=18), id="hgx-h100-that-knows-its-wires"
        ),
        pytest.param(down(8, "NVIDIA B200", 18, compute_capability="10.0"), id="hgx-b200"),
        pytest.param(down(4, "NVIDIA GB200", 18), id="gb200-tray"),
        pytest.param(down(16, "Tesla V100-SXM3-32GB", 6), id="dgx2"),
        pytest.param(down(4, "Tesla P100-SXM2-16GB", 4), id="p100-mesh"),
        pytest.param(down(8, "NVIDIA H20", 0), id="nvlink-disabled-in-the-driver"),
        pytest.param(made.every_gpu(down(8, "NVIDIA A800-SXM4-80GB", 0), links=[ABSENT]), id="no-link-calls"),
        pytest.param(down(8, "NVIDIA H200", 18, virtualization=PASSTHROUGH), id="whole-board-in-a-vm"),
        pytest.param(down(2, "NVIDIA Z100", 20, switch_links=20), id="unknown-model-wired-to-switches"),
        pytest.param(
            down(4, "NVIDIA GH200 480GB", 18, fabric=Fabric(state=3, status=0)), id="gh200-in-a-fabric"
        ),
    ],
)
def test_a_board_without_any_active_link_warns_and_has_no_class(result: Result) -> None:
    """SXM modules and superchips always have NVLinks: all of them down is no PCIe machine."""
    judgement = judge_health(result)
    assert codes(judgement) == ["nvlink-down/warn"]
    assert klass(judgement) == (None, "LinksDown")
    assert "nvidia-fabricmanager" in only(judgement).message
    assert "nvidia-smi nvlink -s" in only(judgement).message


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(down(2, "NVIDIA GeForce RTX 3090", 4), id="rtx-3090"),
        pytest.param(down(2, "NVIDIA A40", 4), id="a40"),
        pytest.param(down(2, "NVIDIA H100 PCIe", 18), id="h100-pcie"),
        pytest.param(down(4, "NVIDIA H100 NVL", 18), id="h100-nvl"),
        pytest.param(down(8, "NVIDIA H200 NVL", 18, compute_capability="9.0"), id="h200-nvl"),
        pytest.param(down(2, "NVIDIA A100 80GB PCIe", 12), id="a100-pcie-of-nvsentinel-1481"),
        pytest.param(down(2, "NVIDIA A100-PCIE-40GB", 12, compute_capability="8.0"), id="a100-pcie"),
        pytest.param(down(2, "NVIDIA A800 40GB Active", 12), id="a800-active"),
        pytest.param(down(4, "NVIDIA A30", 4, compute_capability="8.0"), id="a30"),
        pytest.param(down(2, "NVIDIA TITAN RTX", 2), id="titan-rtx"),
        pytest.param(down(2, "Quadro GV100", 4), id="gv100"),
        pytest.param(down(2, "NVIDIA RTX A6000", 4, virtualization=PASSTHROUGH), id="a6000-in-a-vm"),
        pytest.param(down(2, "Graphics Device", 4, compute_capability="8.6"), id="chip-that-only-cards-have"),
        pytest.param(down(8, "NVIDIA L40S", 0), id="l40s"),
        pytest.param(made.every_gpu(down(4, "NVIDIA L40S", 0), links=[ABSENT]), id="l40s-without-link-calls"),
    ],
)
def test_cards_without_a_bridge_are_healthy_pcie_machines(result: Result) -> None:
    """The driver lists their links as inactive, which they are."""
    judgement = judge_health(result)
    assert judgement.findings == []
    assert klass(judgement) == ("pcie", "NoNvlink")


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(down(2, "NVIDIA Z100", 20), id="unknown-form"),
        pytest.param(down(2, "NVIDIA GH200 480GB", 18), id="gh200"),
        pytest.param(down(2, "NVIDIA H100 80GB HBM3", 18, virtualization=PASSTHROUGH), id="two-partitions"),
        pytest.param(down(2, "Tesla V100-SXM2-32GB", 6, virtualization=PASSTHROUGH), id="far-ends-of-a-mesh"),
        pytest.param(down(4, "NVIDIA A100-SXM4-80GB", 0, virtualization=PASSTHROUGH), id="no-links-shown"),
    ],
)
def test_what_may_be_healthy_is_an_info_without_a_class(result: Result) -> None:
    """A form that nobody knows, and modules in a virtual machine that may have no NVLink by design."""
    judgement = judge_health(result)
    assert (codes(judgement), judgement.verdict) == (["nvlink-down/info"], "pass")
    assert klass(judgement) == (None, "LinksDown")


def test_one_gpu_has_no_peer_to_miss() -> None:
    """A single module in a virtual machine has no NVLink by design."""
    judgement = judge_health(down(1, "NVIDIA H100 80GB HBM3", 18))
    assert (judgement.findings, judgement.interconnect.reason) == ([], "SingleGpu")


def test_a_dead_module_of_a_mesh_is_found_among_its_peers() -> None:
    """HGX A100 4-GPU without switches: no sibling is comparable, but a module without a link is no card."""
    result = made.hgx_a100_4()
    for gpu_index in range(4):
        groups = [
            replace(group, state=0) if 0 in (gpu_index, n) else group
            for n, group in enumerate(result.gpus[gpu_index].links)
        ]
        result = made.with_gpu(result, gpu_index, links=groups)
    result = replace(
        result, pairs=made.pairs([[i != j and 0 not in (i, j) for j in range(4)] for i in range(4)])
    )
    judgement = judge_health(result)
    assert codes(judgement) == ["nvlink-down/warn"]
    assert only(judgement).subject == "GPU 0 (0000:0f:00.0)"
    assert klass(judgement) == (None, "LinksDown")


def short(name: str, links: int, *, count: int = 8, **more: Any) -> Result:
    """GPUs behind switches with so many active links each."""
    return made.switched(count, name=name, links=links, mbps=25_000, **more)


@pytest.mark.parametrize(
    ("name", "links", "healthy"),
    [
        ("NVIDIA A100-SXM4-80GB", 10, 12),
        ("NVIDIA H100 80GB HBM3", 14, 18),
        ("NVIDIA B200", 9, 18),
        ("NVIDIA H200", 13, 18),
        ("Tesla V100-SXM3-32GB-H", 5, 6),
        ("NVIDIA H800", 6, 8),
        ("NVIDIA GB300", 17, 18),
    ],
)
def test_links_that_every_gpu_lacks_warn_and_take_the_class(name: str, links: int, healthy: int) -> None:
    """One NVSwitch that is out for all: siblings agree, the model tells."""
    assert judge_health(short(name, healthy)).findings == []
    judgement = judge_health(short(name, links))
    assert codes(judgement) == ["nvlink-down/warn"]
    assert only(judgement).evidence["expected"] == healthy
    assert klass(judgement) == (None, "LinksDown")


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(short("NVIDIA Z100", 10), id="model-without-a-source"),
        pytest.param(
            short("NVIDIA A100-SXM4-80GB", 6, count=2, virtualization=PASSTHROUGH), id="part-of-a-board"
        ),
        pytest.param(
            made.mesh([[0, 8], [8, 0]], name="NVIDIA A100-SXM4-80GB", mbps=25_000), id="mesh-without-switches"
        ),
    ],
)
def test_the_model_decides_only_behind_switches_of_a_whole_board(result: Result) -> None:
    """A mesh, a partition and an unknown model have what they show."""
    judgement = judge_health(result)
    assert (codes(judgement), judgement.interconnect.klass) == ([], "nvlink")


def test_the_model_tells_how_short_a_gpu_is_whose_siblings_lack_links_too() -> None:
    """13 of 18 fails beside siblings with 17, as it does beside siblings with 18."""
    result = made.h100()
    for gpu_index in range(8):
        result = made.without_links(result, gpu_index, count=5 if gpu_index == 0 else 1)
    judgement = judge_health(result)
    assert codes(judgement) == ["nvlink-degraded/fail", "nvlink-down/warn"]
    assert judgement.findings[0].evidence["expected"] == 18
    assert judgement.interconnect.reason == "LinksDegraded"


def test_without_a_number_that_stays_the_label_shows_the_weakest_gpu() -> None:
    """A model without a source: the GPU fails beside its siblings, and the label has its bandwidth."""
    result = made.without_links(made.switched(4, name="NVIDIA Z100", links=18, mbps=25_000), 2, count=5)
    judgement = judge_health(result)
    assert codes(judgement) == ["nvlink-degraded/fail"]
    assert judgement.interconnect.nvlink_gbps == 13 * 25


@pytest.mark.parametrize("more", [{"mig": 1}, {"virtualization": 2}, {"fabric": Fabric(state=1)}])
def test_another_reason_explains_links_that_are_down(more: dict[str, Any]) -> None:
    """MIG, a vGPU and a fabric that has not started are named instead."""
    judgement = judge_health(down(4, "NVIDIA H100 80GB HBM3", 18, **more))
    assert not [code for code in codes(judgement) if code.startswith("nvlink-down")]
    assert judgement.interconnect.klass is None


def test_links_that_were_up_before_are_degraded_against_history() -> None:
    """With a history the failure is proven; the finding about first sight stays away."""
    history = judge_health(made.h100(2)).history
    gone = down(2, "NVIDIA H100 80GB HBM3", 18)
    assert codes(judge_health(gone, history=history)) == ["nvlink-degraded/fail"]


def test_links_whose_state_is_unreadable_are_not_called_down() -> None:
    """They are unresolved, which says less."""
    result = made.every_gpu(
        down(2, "NVIDIA H100 80GB HBM3", 0),
        links=[LinkGroup(links=[0, 1], state=Unavailable("Unknown"), p2p=1)],
    )
    assert codes(judge_health(result)) == ["nvlink-unresolved/warn"]
