"""Floors: published expectations, the policy's, floors from link rates, and which of them set a taint."""

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
from nodegauge_judge.gpu_models import is_model
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.measurement import MeasuredArm, MeasuredCell, Measurement, NcclJudgement
from support.judge_results import Row, Table, rows
from support.nccl_results import GIB, MIB, check, finding

ROOT = Path(__file__).parents[2]
PUBLISHED = Expectations.default()
CRITERIA = floors.Criteria(expectations=PUBLISHED, thresholds=Thresholds())
MACHINES: dict[str, tuple[str, str, float | None, int, float | None]] = {
    "*A100-SXM4*": ("NVIDIA A100-SXM4-80GB", "nvswitch", 300.0, 80, None),
    "*H100*HBM3*": ("NVIDIA H100 80GB HBM3", "nvswitch", 450.0, 90, None),
    "NVIDIA H200*": ("NVIDIA H200", "nvswitch", 450.0, 90, None),
    "NVIDIA B200*": ("NVIDIA B200", "nvswitch", 900.0, 100, None),
    "* B300*": ("NVIDIA B300 SXM6 AC", "nvswitch", 900.0, 103, None),
    "*GB200*": ("NVIDIA GB200", "nvswitch", 900.0, 100, None),
    "* H20": ("NVIDIA H20", "nvswitch", 450.0, 90, None),
    "* H20[- ]*": ("NVIDIA H20-3e", "nvswitch", 450.0, 90, None),
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


def machine(expectation: Expectation) -> Measurement:
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
        assert (expectation.busbw > from_links.gbps, from_links.gates_below) == (True, 0)
        return
    applying = floors.by_expectation(node, cell, arm, criteria=CRITERIA)
    assert (applying is not None) == (expectation.kind in ("measured", "accept-floor", "derived"))
    own = None if expectation.kind == "accept-floor" else applying  # an accept floor is no measurement
    assert all(expectation.busbw >= floor.gbps for floor in (own, from_links) if floor is not None)


def test_no_expectation_hides_another() -> None:
    for one in PUBLISHED:
        assert [glob for glob, (gpu, *_) in MACHINES.items() if is_model(gpu, one.gpu)] == [one.gpu]
    keys = [(e.gpu, e.count, e.collective, e.bytes, e.nvls, e.link, e.kind) for e in PUBLISHED]
    assert len(set(keys)) == len(keys)
    assert sum(e.kind == "complaint" for e in PUBLISHED) == 1


def find(expectations: Expectations, **changes: object) -> Expectation | None:
    case = {"gpu": "NVIDIA H100 80GB HBM3", "count": 8, "collective": "all_reduce", "bytes": GIB}
    return expectations.find(**(case | {"nvls": True, "link": "nvlink"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "NVIDIA H100 PCIe"},
        {"count": 7},
        {"collective": "all_gather", "bytes": 8 * GIB},
        {"bytes": 2 * GIB},
        {"bytes": 8 * GIB, "nvls": False},
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


def test_the_policy_comes_first_and_changes_the_digest() -> None:
    own = Expectation(gpu="*h100*", count=8, collective="all_reduce", bytes=GIB, busbw=300)
    with_own = PUBLISHED.with_policy([own])
    assert find(with_own) == find(with_own, policy_only=True) == own
    assert find(PUBLISHED, policy_only=True) is None
    assert with_own.digest() != PUBLISHED.digest() == Expectations.default().digest()


def test_the_package_contains_the_expectations() -> None:
    """An installed operator has no checkout beside it: packaging takes *.yaml of every package."""
    assert files("nodegauge_judge").joinpath("gpu_models.yaml").is_file()
    assert '"*" = ["py.typed", "*.yaml"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def ran(algorithm: str, gbps: float, *, ranks: int = 7, gather: float = 350, **arm: Any) -> Result:
    first = nccl.default_arm(gbps, gather=gather, ranks=ranks, algorithm=algorithm, **arm)
    return nccl.node(nccl.h100(count=ranks), first)


def b200(ranks: int, algorithm: str, gbps: float, name: str = "NVIDIA B200", gather: float = 640) -> Result:
    machine = made.switched(ranks, name=name, links=18, mbps=53_125)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability="10.3" if "B300" in name else "10.0")
    return nccl.node(machine, nccl.default_arm(gbps, gather=gather, ranks=ranks, algorithm=algorithm))


def all_nvls() -> Result:
    result = ran("NVLS", 440, gather=300)
    cells = [replace(cell, algorithm="NVLS") for cell in nccl.arm_of(result, ArmName.DEFAULT).cells]
    return nccl.with_cells(result, ArmName.DEFAULT, *cells)


def below(ancestor: Any, gbps: float, **gpu: Any) -> Result:
    result = nccl.phb(gbps, transport=nccl.P2P)
    grid: list[list[Any]] = [[-1 if i == j else ancestor for j in range(2)] for i in range(2)]
    return made.every_gpu(replace(result, pairs=replace(result.pairs, ancestor=grid)), **gpu)


def by_own(result: Result, **own: Any) -> NcclJudgement:
    known: dict[str, Any] = {"gpu": "*H100*", "count": 8, "collective": "all_reduce", "bytes": GIB}
    return judge_nccl(result, expectations=PUBLISHED.with_policy([Expectation(**known | own)]))


OF_ONE_REPORT = {"floor_gbps": 415.8, "source": "published report, 8x H100 SXM with NVLS"}
LOW, PASS = "busbw-low/warn", {"verdict": Verdict.PASS}
NO_FLOOR = ("", PASS, {"busbw-low": Answer.GOOD}, "no floor")
TABLE: Table = {
    "0.9 of 462 is 415.8: an expectation of the same size gives the floor and is named": [
        (nccl.h100(416), "", PASS),
        (nccl.h100(415), LOW, OF_ONE_REPORT, "published report"),
    ],
    "7 H100 have no expectation: 0.85 of 450 GB/s and 27/28 of that with NVLS, 270 without": [
        (ran("NVLS", 369), "", PASS),
        (ran("NVLS", 368), LOW, {"floor_gbps": 368.8}, "no expectation applies"),
        (ran("RING", 100), LOW, {"floor_gbps": 270}, "no expectation applies"),
        (ran("TREE", 100), LOW, {"floor_gbps": 270}, "no expectation applies"),
    ],
    "NCCL may create NVLS channels without using them: an unknown algorithm gets the lower floor": [
        (ran("", 380, ranks=8, nvls=True), "", PASS),
        (ran("", 320, ranks=8, nvls=True), "nvls-unused/warn"),
    ],
    "all_gather with NVLS still moves every byte: its floor is that of rings": [(all_nvls(), "", PASS)],
    "NVLS on fewer GPUs makes 1 + 1/n of the traffic (NVIDIA/nccl issue 2140, curves of H200)": [
        row
        for ranks, gbps in ((2, 193), (3, 290), (4, 347), (5, 388), (6, 412), (7, 433))
        for row in ((nccl.h100(gbps, count=ranks), "", PASS), (nccl.h100(gbps * 0.8, count=ranks), LOW))
    ],
    "seven B200 with NVLS, unpublished: 0.65 of 900 GB/s, as 0.85 would fail what was measured at 8 GiB": [
        (b200(7, "NVLS", 565), ""),
        (b200(7, "NVLS", 563), LOW),
    ],
    "rings of two and three B200 are slow: 382 and 479 GB/s (NVIDIA/nccl pull request 2343)": [
        (b200(2, "RING", 382), ""),
        (b200(2, "RING", 350), LOW),
        (b200(3, "RING", 479), ""),
        (b200(4, "RING", 530), LOW),
    ],
    "ZeRO-3 depends on all_gather, of which a fast all_reduce says nothing": [
        (nccl.h100(gather=200), LOW, "all_gather and 1 more: ")
    ],
    "an expectation of the policy replaces the published one": [
        (nccl.h100(340), LOW),
        (by_own(nccl.h100(340), busbw=350, source="ours"), ""),
    ],
    "a cell at exactly its floor is fast enough": [(by_own(nccl.h100(), busbw=462, floor=462), "")],
    "an expectation for 64 MiB is checked at 64 MiB": [
        (by_own(nccl.h100(), bytes=64 * MIB, busbw=350, floor=300.0), LOW, {"bytes": 64 * MIB}),
        (by_own(nccl.h100(600), bytes=64 * MIB, busbw=350, floor=300.0), ""),
    ],
    "352 GB/s without NVLS is graded only by expectations for it": [
        (by_own(nccl.h100(), busbw=400), ""),
        (by_own(nccl.h100(), busbw=400, nvls=False), LOW),
    ],
    "through host memory the host decides, so there is no floor": [
        (nccl.phb(gbps, host=gbps), *NO_FLOOR) for gbps in (0.4, 4.0, 28.0)
    ],
    "P2P below PCIe switches reaches half of the slowest link: 31.5 GB/s for generation 4 x16": [
        (below(ancestor, gbps), expected)
        for ancestor in (10, 20)
        for gbps, expected in ((16.0, ""), (15.0, LOW))
    ],
    "a hypervisor may show switches between GPUs that are on two sockets": [
        (below(ancestor, gbps, virtualization=mode), expected)
        for ancestor, gbps in ((10, 15.0), (20, 9.0), (0, 4.0))
        for mode, expected in ((0, LOW), (1, ""))
    ],
    "across a CPU 12.7 GB/s have been measured (tinygrad/open-gpu-kernel-modules, pull request 22)": [
        (below(ancestor, 12.7), *NO_FLOOR)
        for ancestor in (30, 40, 50, Unavailable("NVML_ERROR_NOT_SUPPORTED"))
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_a_run_is_compared_with_its_floor(row: Row) -> None:
    check(*row)


def test_a_missing_nvls_state_is_named_as_the_reason() -> None:
    silent = nccl.arm("default", [nccl.cell(nccl.AR, GIB, 462, ranks=8)])
    result = replace(nccl.node(nccl.h100(), silent), gpus=[Gpu(index=0, name="NVIDIA X1")])
    message = finding(by_own(result, gpu="* X1", busbw=462, nvls=True), "not-gradable").message
    assert "There is no expectation" not in message
    assert "NCCL_DEBUG_SUBSYS=INIT,TUNING" in message


def pair(gpu: str, gbps: float, links: int, sm: str = "9.0", *, mbps: int = 25_000) -> Result:
    machine = made.mesh([[0, links], [links, 0]], name=gpu, mbps=mbps)
    machine = made.every_gpu(machine, pcie=nccl.GEN4, compute_capability=sm)
    arm = nccl.default_arm(gbps, gather=gbps, ranks=2, algorithm="RING")
    return nccl.node(machine, arm, nccl.p2p_off_arm(gbps / 8, ranks=2))


def switched(gpu: str, gbps: float, ranks: int, links: int, sm: str, *, mbps: int = 25_781) -> Result:
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
    "2x A30, unpublished": (pair("NVIDIA A30", 40.0, 4, "8.0"), 60.0, False),
    "16x V100 (DGX-2), unpublished": (switched("Tesla V100-SXM3-32GB", 80.0, 16, 6, "7.0"), 90.0, False),
    "4x A100 SXM, unpublished": (switched("NVIDIA A100-SXM4-80GB", 120.0, 4, 12, "8.0"), 180.0, False),
    "8x A800": (switched("NVIDIA A800-SXM4-80GB", 100.0, 8, 8, "8.0"), 120.0, True),
    "7x H20 on rings": (switched("NVIDIA H20", 200.0, 7, 18, "9.0"), 270.0, True),
    "7x B300, unpublished": (switched("NVIDIA B300", 500.0, 7, 18, "10.3", mbps=53_125), 540.0, False),
    "8x of the next generation": (switched("NVIDIA Rubin", 700.0, 8, 36, "13.0", mbps=53_125), 1080.0, False),
}


@pytest.mark.parametrize(("gbps", "answer"), [(30.0, Answer.BAD), (40.5, Answer.GOOD)])
def test_a_floor_of_the_policy_sets_a_taint_for_any_machine(gbps: float, answer: Answer) -> None:
    """Exactly the floor is enough: the log's whole microseconds make 40.5001 of 40.5."""
    own = Expectation(gpu="*3090*", count=2, collective="all_reduce", bytes=GIB, busbw=40.5001)
    measured = pair("NVIDIA GeForce RTX 3090", gbps, 4, mbps=14_062)
    expectations, all_of_it = Expectations.default().with_policy([own]), Thresholds(busbw_expected_share=1.0)
    judgement = judge_nccl(measured, thresholds=all_of_it, expectations=expectations)
    assert judgement.answers["busbw-low"] is answer


B300, GB200 = "NVIDIA B300 SXM6 AC", "NVIDIA GB200"
PUBLISHED_AND_NOT |= {
    "8x B200 with NVLS, of 723 published": (b200(8, "NVLS", 600), 650.7, True),
    "8x B200 on rings, of 682 at 8 GiB": (b200(8, "RING", 560), 583.2, False),
    "8x B200 on rings, below what links gave a machine": (b200(8, "RING", 530), 583.2, True),
    "8x B200, all_gather and reduce_scatter": (b200(8, "NVLS", 723, gather=550), 585.9, False),
    "4x B200": (b200(4, "RING", 560), 575.1, False),
    "8x B300 with NVLS, accepted from 800": (b200(8, "NVLS", 600, name=B300), 684.0, False),
    "8x B300 below what links gave a machine": (b200(8, "NVLS", 580, name=B300), 684.0, True),
    "4x GB200 of a tray": (b200(4, "RING", 570, name=GB200), 582.2, True),
    "8x H100, all_gather": (nccl.h100(gather=275), 311.4, False),
    "8x H100, all_gather, below the links' floor": (nccl.h100(gather=265), 311.4, True),
    "8x A100": (switched("NVIDIA A100-SXM4-80GB", 150.0, 8, 12, "8.0"), 180.0, True),
    "8x A100 at 185": (switched("NVIDIA A100-SXM4-80GB", 185.0, 8, 12, "8.0"), 0, False),
    "8x B200 as published": (b200(8, "NVLS", 723, gather=628), 0, False),
    "8x B200 whose NCCL chose rings": (b200(8, "RING", 645), 0, False),
    "4x GB200 as published": (b200(4, "RING", 646, name=GB200), 0, False),
    "8x H20 as published": (switched("NVIDIA H20", 357.0, 8, 18, "9.0"), 0, False),
    "8x H100 without NVLS": (nccl.h100(ring=346, gather=346), 0, False),
    "an unknown product on PCIe": (nccl.phb(20.0), 0, False),
}


@pytest.mark.parametrize("name", PUBLISHED_AND_NOT)
def test_only_a_floor_that_a_published_machine_reaches_sets_a_taint(name: str) -> None:
    """All others warn, in every run.  H100 PCIe: NVIDIA/nccl issue 1161; A100 PCIe: nccl-tests issue 178;
    RTX 2080 Ti: nccl-tests issue 44; H100 NVL: azurehpc-health-checks, NC80adis."""
    result, floor, gates = PUBLISHED_AND_NOT[name]
    first = judge_nccl(result)
    second = judge_nccl(result, previous=first.record)
    if not floor:
        assert first.answers["busbw-low"] is Answer.GOOD
        assert "busbw-low" not in {one.code for one in first.findings}
        return
    low = finding(second, "busbw-low")
    assert low.evidence["floor_gbps"] == pytest.approx(floor, rel=1e-3)
    assert second.answers["busbw-low"] is (Answer.BAD if gates else Answer.UNSURE)
    assert low.severity.value == ("fail" if gates else "warn")
    assert gates or "only warns" in low.message
