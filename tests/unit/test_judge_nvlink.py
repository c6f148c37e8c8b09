"""Links between GPUs: refused, missing, hidden, unclear, with errors, or down on every GPU at first sight."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, LinkErrors, LinkGroup, Result, Unavailable
from nodegauge_judge import CATALOGUE, Judgement, Severity, judge_health
from support.judge_results import codes, only


def test_refused_p2p_fails_and_names_pair_status_and_next_step() -> None:
    """The message holds what a person needs at night: which pair, how many links, which status, what next."""
    finding = only(judge_health(made.with_pair(made.titan(), 0, 1, read=5, nvlink=4)))
    assert (finding.code, finding.severity) == ("p2p-refused", Severity.FAIL)
    assert finding.subject == "GPU 0 (0000:0f:00.0) - GPU 1 (0000:10:00.0)"
    assert "2 NVLinks up" in finding.message
    assert "READ (NS: not supported), NVLINK (DR: disabled by a registry key)" in finding.message
    assert finding.message.endswith(f"Next: {CATALOGUE['p2p-refused'].next_step}")
    assert "WRITE" not in finding.message


def test_many_refused_pairs_are_one_finding() -> None:
    """28 pairs of one cause make one finding that counts them, the worst pair first."""
    result = made.h100()
    for i in range(8):
        for j in range(i + 1, 8):
            result = made.with_pair(result, i, j, nvlink=5)
    result = made.with_pair(result, 2, 3, read=5, write=5)
    finding = only(judge_health(result))
    assert finding.subject == "GPU 2 (0000:11:00.0) - GPU 3 (0000:12:00.0) and 27 more"
    assert finding.evidence["pairs"] == 28
    assert str(finding.evidence["also"]).startswith("0-1, 0-2, ")


def test_a_fabric_that_is_not_ready_is_named_before_the_pairs_that_refuse() -> None:
    """The cause leads, the consequences are counted."""
    result = made.with_pair(made.with_gpu(made.h100(), 7, fabric=Fabric(state=2)), 0, 1, read=5)
    finding = only(judge_health(result))
    assert finding.code == "p2p-refused"
    assert finding.subject == "GPU 7 (0000:16:00.0) and 1 more"
    assert "still in progress" in finding.message
    assert finding.evidence["fabric_state"] == 2


def test_missing_links_warn_and_far_too_few_fail() -> None:
    """Behind switches siblings tell: 17 of 18 warns, 13 of 18 fails; the numbers are in the evidence."""
    warned = only(judge_health(made.without_links(made.h100(), 3, count=1)))
    failed = only(judge_health(made.without_links(made.h100(), 3, count=5)))
    assert (warned.severity, failed.severity) == (Severity.WARN, Severity.FAIL)
    assert failed.evidence == {"links": 13, "expected": 18, "against": "siblings", "limit": 0.75}
    assert "13 NVLinks active; its siblings have 18 (72%, below 75%" in failed.message


def test_links_are_compared_with_siblings_and_history() -> None:
    """All siblings degraded alike are seen against the past."""
    history = judge_health(made.h100()).history
    result = made.h100()
    for gpu_index in range(8):
        result = made.without_links(result, gpu_index, count=2)
    finding = only(judge_health(result, history=history))
    assert finding.evidence["against"] == "history"
    assert finding.subject.endswith("and 7 more")


def test_unresolved_links_warn_and_are_not_degraded() -> None:
    """A doubt is not a lost link, even with a past to compare with."""
    history = judge_health(made.titan()).history
    result = made.with_links(made.with_links(made.titan(), 0, state=3), 1, state=3)
    finding = only(judge_health(result, history=history))
    assert (finding.code, finding.severity) == ("nvlink-unresolved", Severity.WARN)
    assert "traffic is disabled" in finding.message


def test_a_gpu_with_all_links_down_is_degraded() -> None:
    """Zero of 18 is a fact, although the GPU still counts its wires to the switches."""
    finding = only(judge_health(made.with_links(made.h100(), 1, state=0)))
    assert (finding.code, finding.evidence["links"]) == ("nvlink-degraded", 0)


def test_a_pair_that_lost_all_links_is_degraded_but_not_unresolved() -> None:
    """All links of a pair gone while NVLINK P2P still reads OK: one finding, against the past."""
    gone = made.with_links(made.with_links(made.titan(), 0, state=0), 1, state=0)
    assert codes(judge_health(gone, history=judge_health(made.titan()).history)) == ["nvlink-degraded/fail"]
    assert codes(judge_health(gone)) == ["nvlink-unresolved/warn"]


def test_unreadable_p2p_warns() -> None:
    """What could not be told is neither refused nor fine."""
    finding = only(judge_health(made.with_pair(made.titan(), 0, 1, write=Unavailable("Unknown"))))
    assert (finding.code, finding.severity) == ("nvlink-unresolved", Severity.WARN)
    assert "WRITE (not readable: Unknown)" in finding.message
    absent = only(judge_health(replace(made.titan(), pairs=replace(made.titan().pairs, read=[]))))
    assert "READ (not in the document)" in absent.message


OLDER = {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}


def with_errors(**errors: int) -> Result:
    """A mesh of four whose GPU 2 has counted these."""
    return made.with_gpu(made.hgx_a100_4(), 2, link_errors=LinkErrors(**errors))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (OLDER | {"replay": 5}, OLDER | {"replay": 6}, ["nvlink-degraded/warn"]),
        (OLDER | {"crc_flit": 5}, OLDER | {"crc_flit": 6}, ["nvlink-degraded/warn"]),
        (OLDER | {"crc_data": 5}, OLDER | {"crc_data": 6}, ["nvlink-degraded/warn"]),
        (OLDER | {"replay": 5}, OLDER | {"replay": 5}, []),
        ({"recovery_failed": 0}, {"recovery_failed": 1}, ["nvlink-degraded/fail"]),
        ({"recovery_failed": 1}, {"recovery_failed": 1}, []),
        ({"effective": 1}, {"effective": 2}, ["nvlink-degraded/warn"]),
        ({"symbol": 9}, {"symbol": 9000}, []),
    ],
)
def test_nvlink_errors_are_judged_by_growth(
    before: dict[str, int], now: dict[str, int], expected: list[str]
) -> None:
    """Replays and CRC errors warn, a failed recovery fails; corrected bits are what links live with."""
    history = judge_health(with_errors(**before)).history
    judgement = judge_health(made.later(with_errors(**now)), history=history)
    assert codes(judgement) == expected
    if expected:
        assert only(judgement).subject == "GPU 2 (0000:11:00.0)"


ONE_OF_NCV4 = replace(made.ncv4(), gpus=made.ncv4().gpus[:1], pairs=made.pairs([[0]]))
MIG = made.with_gpu(made.with_pair(made.h100(), 1, 2, read=5), 0, mig=1, fabric=Fabric(state=2))
MIG_ERRORS = made.with_gpu(made.later(with_errors(recovery_failed=3)), 0, mig=1)
SHORT_H800 = made.with_gpu(made.without_links(made.h100(), 3, count=9), 3, name="NVIDIA H800")


@pytest.mark.parametrize(
    ("result", "before", "expected"),
    [
        pytest.param(made.dgx1([0, 1, 2, 3]), None, [], id="a-mesh-may-be-uneven"),
        pytest.param(SHORT_H800, None, ["mixed-gpus/info"], id="another-model-may-have-fewer-links"),
        pytest.param(ONE_OF_NCV4, None, [], id="one-gpu-of-a-bridged-pair-in-a-virtual-machine"),
        pytest.param(MIG, made.h100(), [], id="refused-p2p-and-a-fabric-in-progress-with-mig"),
        pytest.param(MIG_ERRORS, with_errors(recovery_failed=0), [], id="errors-of-links-with-mig"),
    ],
)
def test_links_that_look_odd_and_are_not(result: Result, before: Result | None, expected: list[str]) -> None:
    """With MIG on, NVML reports links as down, whatever they count."""
    history = judge_health(before).history if before else None
    assert codes(judge_health(result, history=history)) == expected


def test_a_failed_recovery_without_a_past_warns() -> None:
    """Whether it is new is not known."""
    finding = only(judge_health(with_errors(recovery_failed=2)))
    assert (finding.code, finding.severity) == ("nvlink-degraded", "warn")
    assert "2 NVLink recoveries failed since the driver was loaded" in finding.message


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
