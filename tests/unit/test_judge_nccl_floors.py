"""Floors: published expectations, the policy's, floors from link rates, and which of them set a taint."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Collective, Gpu, Result, Unavailable
from nodegauge_contract.nccl import busbw_factor
from nodegauge_judge import Answer, Thresholds, Verdict
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.expectations import Expectation, Expectations, is_model
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.measurement import MeasuredArm, MeasuredCell, Measurement
from support.nccl_results import GIB, MIB, codes, finding

ROOT = Path(__file__).parents[2]
PUBLISHED = Expectations.default()
CRITERIA = floors.Criteria(expectations=PUBLISHED, thresholds=Thresholds())
MACHINES: dict[str, tuple[str, str, float | None, int, float | None]] = {
    "*A100-SXM4*": ("NVIDIA A100-SXM4-80GB", "nvswitch", 300.0, 80, None),
    "*H100*HBM3*": ("NVIDIA H100 80GB HBM3", "nvswitch", 450.0, 90, None),
    "NVIDIA H200*": ("NVIDIA H200", "nvswitch", 450.0, 90, None),
    "NVIDIA B200*": ("NVIDIA B200", "nvswitch", 900.0, 100, None),
    "*V100-SXM2*": ("Tesla V100-SXM2-32GB", "nvlink", 150.0, 70, None),
    "*A100*PCIe*": ("NVIDIA A100 80GB PCIe", "nvlink", 300.0, 80, 31.5),
    "*H100 NVL*": ("NVIDIA H100 NVL", "nvlink", 300.0, 90, 63.0),
    "*H100 PCIe*": ("NVIDIA H100 PCIe", "nvlink", 300.0, 90, 63.0),
    "*RTX PRO 6000*": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "pcie", None, 120, 63.0),
    "*RTX 5090*": ("NVIDIA GeForce RTX 5090", "pcie", None, 120, 63.0),
    "*2080 Ti*": ("NVIDIA GeForce RTX 2080 Ti", "nvlink", 50.0, 75, 15.75),
    "*TITAN RTX*": ("TITAN RTX", "nvlink", 50.0, 75, 15.75),
}
"""By the glob of an expectation: NVML's name of such a GPU, how the GPUs are joined, NVLink rate, compute
capability and PCIe rate, from NVIDIA's data sheets."""

every_published = pytest.mark.parametrize(
    "expectation",
    tuple(PUBLISHED),
    ids=lambda e: f"{e.gpu} x{e.count} {e.collective} {e.bytes >> 20} MiB {e.kind} {e.nvls}",
)


# -- busbw


# -- published expectations


def machine(expectation: Expectation) -> Measurement:
    """The machine that the expectation is about."""
    gpu, joined, nvlink, sm, pcie = MACHINES[expectation.gpu]
    if expectation.link == "pcie":
        joined, nvlink = "pcie" if expectation.kind == "reference" else "nvlink-pairs", None
    return Measurement(
        gpu=gpu,
        ranks=expectation.count,
        interconnect=joined.replace("nvswitch", "nvlink"),
        nvswitch=joined == "nvswitch",
        nvlink_gbps=nvlink,
        sm=sm,
        pcie_gbps=pcie,
    )


@every_published
def test_published_measurements_are_above_their_floors(expectation: Expectation) -> None:
    """A floor above healthy machines would taint them, so a complaint is above its floor, too."""
    complaint = expectation.kind == "complaint"
    size = max(expectation.bytes, GIB) if complaint else expectation.bytes
    us = size * busbw_factor(expectation.collective, expectation.count) / expectation.busbw / 1e3
    algorithm = "NVLS" if expectation.nvls else "RING"
    cell = MeasuredCell(Collective(expectation.collective), size, us, 0, algorithm)
    transport = nccl.SHM if expectation.link == "pcie" else nccl.P2P
    arm = MeasuredArm(name=ArmName.DEFAULT, transport=transport, nvls=expectation.nvls, cells=(cell,))
    node = machine(expectation)
    from_links = floors.by_link_rate(node, cell, arm, criteria=CRITERIA)
    if complaint:
        assert (expectation.busbw > from_links.gbps, from_links.gates) == (True, False)
        return
    applying = floors.by_expectation(node, cell, arm, criteria=CRITERIA)
    assert (applying is not None) == (expectation.kind in ("measured", "accept-floor"))
    own = applying if expectation.kind == "measured" else None  # an accept floor is no measurement
    assert all(expectation.busbw >= floor.gbps for floor in (own, from_links) if floor is not None)


@every_published
def test_every_expectation_has_a_source_and_a_real_gpu(expectation: Expectation) -> None:
    """A glob must match the name of exactly one known GPU."""
    assert expectation.source
    matches = [glob for glob, (gpu, *_) in MACHINES.items() if is_model(gpu, expectation.gpu)]
    assert matches == [expectation.gpu]


def test_no_expectation_hides_another() -> None:
    """No two are for the same case and kind."""
    keys = [(e.gpu, e.count, e.collective, e.bytes, e.nvls, e.link, e.kind) for e in PUBLISHED]
    assert len(set(keys)) == len(keys)
    assert sum(e.kind == "complaint" for e in PUBLISHED) == 1


def find(expectations: Expectations, **changes: object) -> Expectation | None:
    """The expectation for 8 H100 with NVLS at 1 GiB, with some of it changed."""
    case = {"gpu": "NVIDIA H100 80GB HBM3", "count": 8, "collective": "all_reduce", "bytes": GIB}
    return expectations.find(**(case | {"nvls": True, "link": "nvlink"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "NVIDIA H100 PCIe"},
        {"count": 7},
        {"collective": "all_gather"},
        {"bytes": 2 * GIB},
        {"nvls": False},
        {"nvls": None},
    ],
    ids=str,
)
def test_an_expectation_applies_to_its_own_case_only(change: dict[str, object]) -> None:
    """Bandwidth depends on model, count, collective, size and NVLS too much to extrapolate."""
    assert find(PUBLISHED) is not None
    assert find(PUBLISHED, **change) is None


@pytest.mark.parametrize(("link", "applies"), [("nvlink", True), ("pcie", False), ("", False)])
def test_a_card_with_an_optional_bridge_has_expectations_by_link(link: str, applies: bool) -> None:
    """Two A100 PCIe reach 193 GB/s over their bridge, and far less without it."""
    change = {"gpu": "NVIDIA A100 80GB PCIe", "count": 2, "bytes": 16 * GIB, "nvls": False, "link": link}
    assert (find(PUBLISHED, **change) is not None) is applies


@pytest.mark.parametrize(
    ("gpu", "superchip"), [("NVIDIA B200", "NVIDIA GB200"), ("NVIDIA H200", "NVIDIA GH200 480GB")]
)
def test_a_superchip_is_not_taken_for_its_gpu(gpu: str, superchip: str) -> None:
    """Its name contains the GPU's."""
    change = {"count": 4, "bytes": 8 * GIB, "nvls": False}
    assert find(PUBLISHED, gpu=gpu, **change) is not None
    assert find(PUBLISHED, gpu=superchip, **change) is None


def test_the_policy_comes_first_and_changes_the_digest() -> None:
    """The user's number wins even if it is lower, and old results are graded again."""
    own = Expectation(gpu="*h100*", count=8, collective="all_reduce", bytes=GIB, busbw=300)
    with_own = PUBLISHED.with_policy([own])
    assert find(with_own) == find(with_own, policy_only=True) == own
    assert find(PUBLISHED, policy_only=True) is None
    assert with_own.digest() != PUBLISHED.digest() == Expectations.default().digest()


def test_the_package_contains_the_expectations() -> None:
    """An installed operator has no checkout beside it: packaging takes *.yaml of every package."""
    assert files("nodegauge_judge.nccl").joinpath("expectations.yaml").is_file()
    assert '"*" = ["py.typed", "*.yaml"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# -- the floor of a result


def low_on(result: Result, **options: Any) -> bool:
    """Whether the result is below its floor."""
    return "busbw-low/warn" in codes(judge_nccl(result, **options))


def test_an_expectation_of_the_same_size_gives_the_floor_and_is_named() -> None:
    """0.9 of 462 is 415.8: 416 passes, 415 does not."""
    assert judge_nccl(nccl.h100(416)).verdict is Verdict.PASS
    low = finding(judge_nccl(nccl.h100(415)), "busbw-low")
    assert low.evidence["floor_gbps"] == 415.8
    assert low.evidence["source"] == "published report, 8x H100 SXM with NVLS"
    assert "published report" in low.message


@pytest.mark.parametrize(
    ("gbps", "algorithm", "floor"),
    [(369, "NVLS", None), (368, "NVLS", 368.8), (100, "RING", 270), (100, "TREE", 270)],
)
def test_a_count_without_an_expectation_gets_the_floor_of_its_algorithm(
    gbps: float, algorithm: str, floor: float | None
) -> None:
    """7 H100 with NVLS: 0.85 of 450 GB/s and 27/28 of that; the algorithm comes from NCCL's log."""
    arm = nccl.default_arm(gbps, gather=350, ranks=7, algorithm=algorithm)
    judgement = judge_nccl(nccl.node(nccl.h100(count=7), arm))
    if floor is None:
        assert judgement.verdict is Verdict.PASS
        return
    low = finding(judgement, "busbw-low")
    assert low.evidence["floor_gbps"] == floor
    assert "no expectation applies" in low.message


def test_an_unknown_algorithm_gets_the_lower_floor() -> None:
    """NCCL may create NVLS channels without using them: 8 H100 at 300 GB/s may be rings."""
    silent = nccl.default_arm(300, gather=350, ranks=8, algorithm="", nvls=True)
    assert judge_nccl(nccl.node(nccl.h100(), silent)).verdict is Verdict.PASS


def test_only_all_reduce_gets_the_floor_of_nvls() -> None:
    """all_gather with NVLS still moves every byte: its floor is that of rings, 270 of 450 GB/s."""
    arm = nccl.default_arm(440, gather=300, ranks=7, algorithm="NVLS")
    cells = [replace(cell, algorithm="NVLS") for cell in arm.cells]
    assert judge_nccl(nccl.node(nccl.h100(count=7), replace(arm, cells=cells))).verdict is Verdict.PASS


@pytest.mark.parametrize(("ranks", "gbps"), [(2, 193), (3, 290), (4, 347), (5, 388), (6, 412), (7, 433)])
def test_nvls_on_fewer_gpus_has_a_lower_floor(ranks: int, gbps: float) -> None:
    """The same traffic, 1 + 1/n of the size, makes less busbw (NVIDIA/nccl issue 2140, curves of H200); NCCL
    creates NVLS channels from two GPUs on since 2.30."""
    assert judge_nccl(nccl.h100(gbps, count=ranks)).verdict is Verdict.PASS
    assert codes(judge_nccl(nccl.h100(gbps * 0.8, count=ranks))) == {"busbw-low/warn"}


@pytest.mark.parametrize(
    ("ranks", "algorithm", "gbps", "low"),
    [
        (8, "NVLS", 586, False),
        (8, "NVLS", 584, True),
        (2, "RING", 382, False),
        (2, "RING", 350, True),
        (3, "RING", 479, False),
        (4, "RING", 530, True),
    ],
)
def test_b200_has_shares_of_its_own(ranks: int, algorithm: str, gbps: float, low: bool) -> None:
    """0.65 of 900 GB/s with NVLS, as 0.85 would fail what was measured at 8 GiB; rings of two and three GPUs
    are slow (NVIDIA/nccl pull request 2343: 382 on two healthy B200, 479 on three)."""
    machine = made.switched(ranks, name="NVIDIA B200", links=18, mbps=53_125)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability="10.0")
    arm = nccl.default_arm(gbps, gather=600, ranks=ranks, algorithm=algorithm)
    assert low_on(nccl.node(machine, arm)) is low


def test_all_gather_has_its_own_floor() -> None:
    """ZeRO-3 depends on it, and a fast all_reduce with NVLS says nothing about it."""
    low = finding(judge_nccl(nccl.h100(gather=200)), "busbw-low")
    assert low.subject == "all_gather and 1 more"


def test_an_expectation_of_the_policy_replaces_the_published_one() -> None:
    """A lower number removes a finding; one for 64 MiB is checked at 64 MiB."""
    assert low_on(nccl.h100(340))
    own = Expectation(gpu="*H100*", count=8, collective="all_reduce", bytes=GIB, busbw=350, source="ours")
    assert not low_on(nccl.h100(340), expectations=PUBLISHED.with_policy([own]))
    small = PUBLISHED.with_policy([replace(own, bytes=64 * MIB, floor=300.0)])
    low = judge_nccl(nccl.h100(), expectations=small)
    assert finding(low, "busbw-low").evidence["bytes"] == 64 * MIB
    assert not low_on(nccl.h100(600), expectations=small)


@pytest.mark.parametrize(("nvls", "low"), [(None, False), (False, True)])
def test_the_arm_without_nvls_is_graded_only_by_expectations_for_it(nvls: bool | None, low: bool) -> None:
    """352 GB/s without NVLS is below 0.9 of 400; other expectations describe NCCL's default."""
    own = Expectation(gpu="*H100*", count=8, collective="all_reduce", bytes=GIB, busbw=400, nvls=nvls)
    assert low_on(nccl.h100(), expectations=PUBLISHED.with_policy([own])) is low


def test_a_missing_nvls_state_is_named_as_the_reason() -> None:
    """A log of nccl-tests without NCCL's own lines: the finding says how to get them."""
    silent = nccl.arm("default", [nccl.cell(nccl.AR, GIB, 462, ranks=8)])
    result = replace(nccl.node(nccl.h100(), silent), gpus=[Gpu(index=0, name="NVIDIA H100 80GB HBM3")])
    message = finding(judge_nccl(result), "not-gradable").message
    assert "There is no expectation" not in message
    assert "NCCL_DEBUG_SUBSYS=INIT,TUNING" in message


# -- PCIe


def with_ancestor(result: Result, ancestor: Any) -> Result:
    """The machine with this NVML topology level between all its GPUs."""
    gpus = range(len(result.gpus))
    grid: list[list[Any]] = [[-1 if i == j else ancestor for j in gpus] for i in gpus]
    return replace(result, pairs=replace(result.pairs, ancestor=grid))


@pytest.mark.parametrize("gbps", [0.4, 4.0, 28.0])
def test_gpus_that_communicate_through_host_memory_have_no_floor(gbps: float) -> None:
    """The host decides, so the number is recorded, labelled, and good."""
    judgement = judge_nccl(nccl.phb(gbps, host=gbps))
    assert (judgement.verdict, judgement.answers["busbw-low"]) == (Verdict.PASS, Answer.GOOD)
    assert "no floor" in judgement.summary


@pytest.mark.parametrize(("gbps", "low"), [(16.0, False), (15.0, True)])
@pytest.mark.parametrize("ancestor", [10, 20])
def test_p2p_below_pcie_switches_must_reach_half_of_the_slowest_link(
    gbps: float, low: bool, ancestor: int
) -> None:
    """Generation 4 x16 carries 31.5 GB/s one way."""
    assert low_on(with_ancestor(nccl.phb(gbps, transport=nccl.P2P), ancestor)) is low


@pytest.mark.parametrize(("virtualization", "low"), [(0, True), (1, False)])
@pytest.mark.parametrize(("ancestor", "gbps"), [(10, 15.0), (20, 9.0), (0, 4.0)])
def test_the_pci_tree_of_a_virtual_machine_gives_no_floor(
    virtualization: int, low: bool, ancestor: int, gbps: float
) -> None:
    """A hypervisor may show switches between GPUs that are on two sockets."""
    result = with_ancestor(nccl.phb(gbps, transport=nccl.P2P), ancestor)
    assert low_on(made.every_gpu(result, virtualization=virtualization)) is low


@pytest.mark.parametrize("ancestor", [30, 40, 50, Unavailable("NVML_ERROR_NOT_SUPPORTED")])
def test_p2p_across_a_cpu_has_no_floor(ancestor: Any) -> None:
    """NCCL uses it between two GPUs of an AMD machine: 12.7 GB/s have been measured on generation 4
    (tinygrad/open-gpu-kernel-modules, pull request 22)."""
    judgement = judge_nccl(with_ancestor(nccl.phb(12.7, transport=nccl.P2P), ancestor))
    assert (judgement.verdict, judgement.answers["busbw-low"]) == (Verdict.PASS, Answer.GOOD)
    assert "no floor" in judgement.summary


def pair(gpu: str, gbps: float, links: int, sm: str = "9.0", *, mbps: int = 25_000) -> Result:
    """Two such cards with bridges, and what all three collectives reach."""
    machine = made.mesh([[0, links], [links, 0]], name=gpu, mbps=mbps)
    machine = made.every_gpu(machine, pcie=nccl.GEN4, compute_capability=sm)
    arm = nccl.default_arm(gbps, gather=gbps, ranks=2, algorithm="RING")
    return nccl.node(machine, arm, nccl.p2p_off_arm(gbps / 8, ranks=2))


def switched(gpu: str, gbps: float, ranks: int, links: int, sm: str, *, mbps: int = 25_781) -> Result:
    """So many GPUs with NVSwitches, and what rings reach."""
    machine = made.switched(ranks, name=gpu, links=links, mbps=mbps)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability=sm)
    arm = nccl.default_arm(gbps, gather=gbps, ranks=ranks, algorithm="RING")
    return nccl.node(machine, arm, nccl.p2p_off_arm(gbps / 20, ranks=ranks))


PUBLISHED_AND_NOT: dict[str, tuple[Result, float, bool]] = {
    "2x H100 PCIe as published": (pair("NVIDIA H100 PCIe", 115.4, 12), 0, False),
    "2x H100 PCIe, half of it": (pair("NVIDIA H100 PCIe", 58.0, 12), 104.7, True),
    "2x H100 NVL, half of what is accepted": (pair("NVIDIA H100 NVL", 104.0, 12), 180.0, True),
    "2x A100 PCIe as published": (pair("NVIDIA A100 80GB PCIe", 208.0, 12, "8.0"), 0, False),
    "2x A100 PCIe, half of it": (pair("NVIDIA A100 80GB PCIe", 104.0, 12, "8.0"), 180.0, True),
    "2x 2080 Ti as published": (pair("NVIDIA GeForce RTX 2080 Ti", 21.5, 2, "7.5"), 0, False),
    "2x RTX 3090, unpublished": (pair("NVIDIA GeForce RTX 3090", 30.0, 4, mbps=14_062), 33.6, False),
    "2x RTX A6000, unpublished": (pair("NVIDIA RTX A6000", 20.0, 4, mbps=14_062), 33.6, False),
    "2x A30, unpublished": (pair("NVIDIA A30", 40.0, 4, "8.0"), 60.0, False),
    "2x Quadro GV100, unpublished": (pair("Quadro GV100", 40.0, 4, "7.0"), 60.0, False),
    "16x V100 (DGX-2), unpublished": (switched("Tesla V100-SXM3-32GB", 80.0, 16, 6, "7.0"), 90.0, False),
    "4x A100 SXM, unpublished": (switched("NVIDIA A100-SXM4-80GB", 120.0, 4, 12, "8.0"), 180.0, False),
    "8x A800": (switched("NVIDIA A800-SXM4-80GB", 100.0, 8, 8, "8.0"), 120.0, True),
    "8x H20 on rings": (switched("NVIDIA H20", 200.0, 8, 18, "9.0"), 270.0, True),
    "3x H100 on rings, unpublished": (switched("NVIDIA H100 80GB HBM3", 250.0, 3, 18, "9.0"), 270.0, False),
    "8x B300, unpublished": (switched("NVIDIA B300", 500.0, 8, 18, "10.3", mbps=53_125), 540.0, False),
    "8x of the next generation": (switched("NVIDIA Rubin", 700.0, 8, 36, "13.0", mbps=53_125), 1080.0, False),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED_AND_NOT)
def test_only_a_floor_that_a_published_machine_reaches_sets_a_taint(name: str) -> None:
    """All others warn, in every run.  H100 PCIe: NVIDIA/nccl issue 1161; A100 PCIe: nccl-tests issue 178;
    RTX 2080 Ti: nccl-tests issue 44; H100 NVL: azurehpc-health-checks, NC80adis."""
    result, floor, gates = PUBLISHED_AND_NOT[name]
    first = judge_nccl(result)
    second = judge_nccl(result, previous=first.record)
    if not floor:
        assert (codes(first), first.answers["busbw-low"]) == (set(), Answer.GOOD)
        return
    low = finding(second, "busbw-low")
    assert low.evidence["floor_gbps"] == pytest.approx(floor, rel=1e-3)
    assert second.answers["busbw-low"] is (Answer.BAD if gates else Answer.UNSURE)
    assert low.severity.value == ("fail" if gates else "warn")
    assert ("only warns" in low.message) is not gates


def test_a_floor_of_the_policy_sets_a_taint_for_any_machine() -> None:
    """Whoever owns the machine may have measured it."""
    own = Expectation(gpu="*3090*", count=2, collective="all_reduce", bytes=GIB, busbw=45)
    slow = pair("NVIDIA GeForce RTX 3090", 30.0, 4, mbps=14_062)
    judgement = judge_nccl(slow, expectations=Expectations.default().with_policy([own]))
    assert judgement.answers["busbw-low"] is Answer.BAD
