"""Expectations as data: every published row with its source, and the rule beside them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from nodegauge_contract import ArmName, Collective
from nodegauge_judge import Thresholds
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.expectations import Expectation, Expectations, is_model
from nodegauge_judge.nccl.measurement import GIB, MeasuredArm, MeasuredCell, Measurement, busbw_factor
from nodegauge_judge.nccl.reference import page

ROOT = Path(__file__).parents[2]
ROWS = tuple(Expectations.default())
CRITERIA = floors.Criteria(expectations=Expectations.default(), thresholds=Thresholds())
MACHINES: dict[str, tuple[str, str, float | None, int, float | None]] = {
    "*A100-SXM4*": ("NVIDIA A100-SXM4-80GB", "nvswitch", 300.0, 80, None),
    "*H100*HBM3*": ("NVIDIA H100 80GB HBM3", "nvswitch", 450.0, 90, None),
    "NVIDIA H200*": ("NVIDIA H200", "nvswitch", 450.0, 90, None),
    "NVIDIA B200*": ("NVIDIA B200", "nvswitch", 900.0, 100, None),
    "*V100-SXM2*": ("Tesla V100-SXM2-32GB", "nvlink", 150.0, 70, None),
    "*A100*PCIe*": ("NVIDIA A100 80GB PCIe", "nvlink", 300.0, 80, 31.5),
    "*H100 NVL*": ("NVIDIA H100 NVL", "nvlink", 300.0, 90, 63.0),
    "*H100 PCIe*": ("NVIDIA H100 PCIe", "nvlink", 300.0, 90, 63.0),
    "*RTX 5090*": ("NVIDIA GeForce RTX 5090", "pcie", None, 120, 63.0),
    "*2080 Ti*": ("NVIDIA GeForce RTX 2080 Ti", "nvlink", 50.0, 75, 15.75),
    "*TITAN RTX*": ("TITAN RTX", "nvlink", 50.0, 75, 15.75),
}
"""By the glob of an expectation: NVML's name of such a GPU, how the GPUs are joined, NVLink rate, compute
capability and PCIe rate, from NVIDIA's data sheets."""


def name(row: Expectation) -> str:
    """The row in a word."""
    return f"{row.gpu} x{row.count} {row.collective} {row.bytes >> 20} MiB {row.kind} {row.nvls}"


def machine(row: Expectation) -> Measurement:
    """The machine that the expectation is about."""
    gpu, joined, nvlink, sm, pcie = MACHINES[row.gpu]
    if row.link == "pcie":
        joined, nvlink = "pcie" if row.kind == "reference" else "nvlink-pairs", None
    return Measurement(
        gpu=gpu,
        ranks=row.count,
        interconnect=joined.replace("nvswitch", "nvlink"),
        nvswitch=joined == "nvswitch",
        nvlink_gbps=nvlink,
        sm=sm,
        pcie_gbps=pcie,
    )


def seen(row: Expectation, *, size: int) -> tuple[MeasuredCell, MeasuredArm]:
    """The row's number as a cell of that size, through host memory for what was measured so."""
    us = size * busbw_factor(row.collective, row.count) / row.busbw / 1e3
    algorithm = "NVLS" if row.nvls else "RING"
    cell = MeasuredCell(Collective(row.collective), size, us, 0, algorithm)
    way = "SHM/direct/direct" if row.link == "pcie" else "P2P/direct pointer"
    return cell, MeasuredArm(name=ArmName.DEFAULT, transport=way, nvls=row.nvls, cells=(cell,))


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_was_measured_is_above_its_floor_and_a_complaint_is_below(row: Expectation) -> None:
    """A floor that healthy machines of the record miss would taint them; one that complaints pass is none."""
    where = machine(row)
    cell, arm = seen(row, size=max(row.bytes, GIB) if row.kind == "complaint" else row.bytes)
    rule = floors.by_link_rate(where, cell, arm, thresholds=CRITERIA.thresholds)
    if row.kind == "complaint":
        assert rule is not None
        assert row.busbw < rule.gbps
        return
    applying = floors.by_expectation(where, cell, arm, criteria=CRITERIA)
    assert (applying is not None) == (row.kind in ("measured", "accept-floor"))
    mine = applying if row.kind == "measured" else None  # an accept floor is no measurement
    assert all(row.busbw >= floor.gbps for floor in (mine, rule) if floor is not None)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_each_row_names_its_source_and_a_gpu_that_there_is(row: Expectation) -> None:
    """A number without a source is an opinion, and a glob that fits no name a row that is never used."""
    assert row.source
    assert is_model(MACHINES[row.gpu][0], row.gpu)
    assert [glob for glob, machine in MACHINES.items() if is_model(machine[0], row.gpu)] == [row.gpu]


def test_every_row_can_be_reached() -> None:
    """No row stands behind another that always fits first with the same number for the same thing."""
    keys = [(r.gpu, r.count, r.collective, r.bytes, r.nvls, r.link, r.kind) for r in ROWS]
    assert len(set(keys)) == len(keys)
    assert sum(row.kind == "complaint" for row in ROWS) == 2


def find(expectations: Expectations, **asked: object) -> Expectation | None:
    """The row for 8 H100 with NVLS at 1 GiB, but for what is asked otherwise."""
    known = {"gpu": "NVIDIA H100 80GB HBM3", "count": 8, "collective": "all_reduce", "bytes": GIB}
    return expectations.find(**(known | {"nvls": True, "link": "nvlink"} | asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
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
def test_a_row_is_used_for_its_very_own_case_alone(other: dict[str, object]) -> None:
    """Bandwidth depends on model, count, collective, size and NVLS too much to be carried over."""
    assert find(Expectations.default()) is not None
    assert find(Expectations.default(), **other) is None


@pytest.mark.parametrize(("link", "found"), [("nvlink", True), ("pcie", False), ("", False)])
def test_a_card_that_comes_with_and_without_a_bridge_has_rows_for_either(link: str, found: bool) -> None:
    """Two A100 PCIe reach 193 GB/s over their bridge, and nothing like it without."""
    asked = {"gpu": "NVIDIA A100 80GB PCIe", "count": 2, "bytes": 16 * GIB, "nvls": False, "link": link}
    assert (find(Expectations.default(), **asked) is not None) is found


def test_rows_of_the_policy_come_first_and_change_the_digest() -> None:
    """A user's number beats ours, even where it is lower, and old results are to be graded anew."""
    default = Expectations.default()
    own = Expectation(gpu="*h100*", count=8, collective="all_reduce", bytes=GIB, busbw=300)
    with_own = default.with_policy([own])
    assert find(with_own) == own
    assert find(with_own, policy_only=True) == own
    assert find(default, policy_only=True) is None
    assert with_own.digest() != default.digest() == Expectations.default().digest()


@pytest.mark.parametrize(
    ("own", "other"), [("NVIDIA B200", "NVIDIA GB200"), ("NVIDIA H200", "NVIDIA GH200 480GB")]
)
def test_a_superchip_is_not_taken_for_its_gpu(own: str, other: str) -> None:
    """Its name holds the other's."""
    asked = {"count": 4, "bytes": 8 * GIB, "nvls": False}
    assert find(Expectations.default(), gpu=own, **asked) is not None
    assert find(Expectations.default(), gpu=other, **asked) is None


def test_the_data_is_inside_the_package() -> None:
    """An installed operator has no checkout beside it: packaging takes *.yaml of every package."""
    assert files("nodegauge_judge.nccl").joinpath("expectations.yaml").is_file()
    assert '"*" = ["py.typed", "*.yaml"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_committed_page_is_what_the_data_says() -> None:
    """Every row stands on it with its source, and nobody edits it by hand."""
    committed = (ROOT / "docs" / "reference" / "expectations.md").read_text(encoding="utf-8")
    assert committed == page()
    assert all(row.source in committed for row in ROWS)
