"""The documents are the same under every Python of the archive; no musl and no arm64 here."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract.columns import unfold
from support import archive
from support.archive import Host
from support.nccl_probe import PRELUDE
from support.probing import QUICK
from testbed.hardware import plug
from testbed.hardware.loads import following

OTHERS = [version for version in archive.PYTHONS if version != f"3.{sys.version_info[1]}"]
VARYING = ("_ms", "energy_mj", "seconds", "samples", "longest", "events.read", "clock_error_us")
"""How members end that differ between two runs of one program: times, and how many samples fit into one."""
MACHINES = {"h100-sxm-8": "row-remap", "a100-mig-4": "", "vm-hidden-pci-8": ""}
"""Machines and what is broken there: NVLink and sensors, MIG, unreadable values."""
RUNS = {"health": ("health", *QUICK), "load": ("load", "--seconds", "1"), "nccl": ("nccl",)}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, host_archive: Path) -> Iterator[Callable[[str], Host]]:
    """A machine with its fault, shared by the tests; in NCCL's place is a child that says what it would."""

    @cache
    def of(profile: str) -> Host:
        folder = tmp_path_factory.mktemp("host")
        (folder / "unpacked").mkdir()
        hardware = plug(profile, folder / "machine", seed="nodegauge")
        if MACHINES.get(profile):
            hardware.fault(MACHINES[profile])
        return Host(host_archive, hardware, folder)

    child = tmp_path_factory.mktemp("nccl") / "child"
    child.write_text(f"#!{sys.executable}\n{PRELUDE % {'arm': 'all'}}all_well()\n")
    child.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODEGAUGE_NCCL_CHILD", str(child))
        yield of


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document with its path; what varies has none."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from (
                [(f"{path}.{key}", "varies")]
                if f"{path}.{key}".endswith(VARYING)
                else leaves(one, f"{path}.{key}")
            )
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, f"{path}[{number}]")
    else:
        yield path, value


def document(host: Host, probe: str, *, python: str | Path = sys.executable) -> dict[str, Any]:
    """What one run printed, by path; of a load's numbers only that they are numbers, and nothing of why
    clocks were low: what a sample meets depends on its moment."""
    with following(host.hardware):
        done = host.run("probe", *RUNS[probe], python=python)
    assert (done.returncode, done.stderr, host.left()) == (0, "", [])
    whole = json.loads(done.stdout)
    if probe != "load":
        return dict(leaves(whole))
    steady = {path: v for path, v in leaves(unfold(whole)) if ".reasons[" not in path}
    return {path: "number" if isinstance(v, float | int) else v for path, v in steady.items()}


@pytest.fixture(scope="module")
def reference(machine: Callable[[str], Host]) -> Callable[[str, str], dict[str, Any]]:
    return cache(lambda profile, probe: document(machine(profile), probe))


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize(
    ("profile", "probe"),
    [*((profile, "health") for profile in MACHINES), ("pcie-phb-2", "load"), ("pcie-phb-2", "nccl")],
)
def test_the_document_is_the_same(
    machine: Callable[[str], Host],
    reference: Callable[[str, str], dict[str, Any]],
    python: Path,
    profile: str,
    probe: str,
) -> None:
    """Every value but times and counts of samples; a load's processes are of the archive, too."""
    wanted = reference(profile, probe)
    assert document(machine(profile), probe, python=python) == wanted
    assert wanted.get(".problem") is None
