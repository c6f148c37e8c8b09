"""The whole benchmark with the project's engines in its children, on fake libraries and made-up programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.nccl_probe import NcclOn
from support.nccltests import installed

FAKES = Path(__file__).parent / "fakes"


@pytest.mark.parametrize(("processes", "number"), [("one", 1), ("auto", 2), ("perGPU", 2)])
def test_nccl4py_measures_every_arm(nccl_on: NcclOn, tmp_path: Path, processes: str, number: int) -> None:
    """With one process per GPU unless one for all was asked for.  What there is no memory for is cut and
    named; the rest is there, with the right data."""
    run = nccl_on("pcie-phb-2")
    run.environment |= {
        "PYTHONPATH": os.pathsep.join([str(FAKES), *sys.path]),
        "NODEGAUGE_FAKE_BYTES": "65536",
        "NODEGAUGE_FAKE_FOLDER": str(tmp_path),
        "NODEGAUGE_FAKE_US": "30000",
    }
    nccl = run.nccl("--engine", "nccl4py", "--processes", processes)
    assert {arm.processes for arm in nccl.arms} == {number}
    assert (nccl.engine, nccl.engine_version, nccl.nccl, nccl.cuda) == (
        "nccl4py",
        "0.6.0",
        "2.32.3",
        "12.9",
    )
    assert [(arm.name, arm.outcome) for arm in nccl.arms] == [("default", "done"), ("p2p-off", "done")]
    default, off = nccl.arms
    assert {(cell.collective, cell.bytes) for cell in default.cells} == {
        ("all_reduce", 8),
        ("all_reduce", 4096),
        ("all_reduce", 65536),
        ("all_gather", 65536),
        ("reduce_scatter", 65536),
    }
    assert [(cell.collective, cell.bytes) for cell in off.cells] == [("all_reduce", 65536)]
    assert {cell.wrong for arm in nccl.arms for cell in arm.cells if cell.bytes == 65536} == {0}
    assert {"all_reduce/1073741824", "p2p-off:all_reduce/268435456", "pairs/268435456"} <= set(nccl.cut)


def test_without_its_packages_nccl4py_is_skipped(nccl_on: NcclOn) -> None:
    """The light image has no NCCL: that is said, and is nobody's fault."""
    nccl = nccl_on("pcie-phb-2").nccl("--engine", "nccl4py")
    assert (nccl.skipped, nccl.arms, nccl.ranks) == ("no-engine", [], 0)
    assert "nccl" in nccl.message


def test_nccl_tests_measures_every_arm(nccl_on: NcclOn, tmp_path: Path) -> None:
    """Three arms of eight H100: all that was ordered but pairs, which it cannot copy between."""
    folder = tmp_path / "programs"
    folder.mkdir()
    run = nccl_on("h100-sxm-8")
    run.environment["NODEGAUGE_NCCL_TESTS"] = str(installed(folder))
    nccl = run.nccl("--engine", "nccl-tests")
    assert (nccl.engine, nccl.engine_version, nccl.nccl) == ("nccl-tests", "2.18.3", "2.30.3")
    assert [(arm.name, arm.outcome, len(arm.cells)) for arm in nccl.arms] == [
        ("default", "done", 10),
        ("p2p-off", "done", 4),
        ("nvls-off", "done", 1),
    ]
    assert nccl.cut == ["pairs/268435456"]
    assert {cell.wrong for arm in nccl.arms for cell in arm.cells} == {0}
