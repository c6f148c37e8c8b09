"""The archive under every Python that it supports: the documents are the same.

musl and arm64 cannot be run here: that their packages are in the archive is all that is shown.
"""

from __future__ import annotations

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
from support.probing import QUICK
from testbed.hardware import plug
from testbed.hardware.loads import following

OTHERS = [version for version in archive.PYTHONS if version != f"3.{sys.version_info[1]}"]
VARYING = ("_ms", "energy_mj", "seconds", "samples", "longest", "events.read")
"""How members end that differ between two runs of one program: times, and how many samples fit into one."""
MACHINES = {"h100-sxm-8": "row-remap", "a100-mig-4": "", "vm-hidden-pci-8": ""}
"""Machines and what is broken there: NVLink and sensors, MIG, unreadable values."""
CHILD = """
import json, os, sys
order = json.loads(sys.argv[sys.argv.index("--order") + 1])
def emit(**line):
    os.write(int(os.environ["NODEGAUGE_PROTOCOL_FD"]), json.dumps(line).encode() + b"\\n")
emit(engine={"name": "script", "version": "7", "nccl": "2.32.3", "uuids": order["uuids"]})
for phase in ("init", "load", "measure"):
    emit(phase=phase)
for cell in order["cells"]:
    emit(cell={"collective": cell["collective"], "bytes": cell["bytes"], "us": 100.0, "spread": 0.01})
emit(phase="teardown")
emit(done=True)
"""


@pytest.fixture(params=OTHERS)
def python(request: pytest.FixtureRequest) -> Path:
    """Another Python than the one of the tests."""
    program = archive.interpreter(request.param)
    if program is None:
        pytest.skip(f"no python{request.param} on PATH or in $NODEGAUGE_PYTHONS")
    return program


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, host_archive: Path) -> Callable[[str], Host]:
    """A machine with its fault, shared by the tests."""

    @cache
    def of(profile: str) -> Host:
        folder = tmp_path_factory.mktemp("host")
        (folder / "unpacked").mkdir()
        hardware = plug(profile, folder / "machine", seed="nodegauge")
        if MACHINES.get(profile):
            hardware.fault(MACHINES[profile])
        return Host(host_archive, hardware, folder)

    return of


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


def document(
    host: Host,
    *command: str,
    python: str | Path = sys.executable,
    by: Callable[[Any], Any] = lambda whole: whole,
) -> dict[str, Any]:
    """What one run printed, by path.  `by`: how its form is read; by column as it is, equal numbers show."""
    done = host.run("probe", *command, python=python)
    assert (done.returncode, done.stderr, host.left()) == (0, "", [])
    return dict(leaves(by(json.loads(done.stdout))))


def shape(values: dict[str, Any]) -> dict[str, Any]:
    """The values; of a measured number only what it is."""
    return {path: "number" if isinstance(value, float | int) else value for path, value in values.items()}


@pytest.fixture(scope="module")
def reference(machine: Callable[[str], Host]) -> Callable[[str], dict[str, Any]]:
    """What the Python of the tests prints on a machine."""
    return cache(lambda profile: document(machine(profile), "health", *QUICK))


@pytest.mark.parametrize("profile", MACHINES)
def test_the_health_document_is_the_same(
    machine: Callable[[str], Host], reference: Callable[[str], dict[str, Any]], python: Path, profile: str
) -> None:
    """Every value but times and counts of samples, on machines that differ in what can be read."""
    assert document(machine(profile), "health", *QUICK, python=python) == reference(profile)


def test_the_load_document_has_the_same_shape(machine: Callable[[str], Host], python: Path) -> None:
    """The processes that compute are started from the archive, too."""
    host = machine("pcie-phb-2")
    with following(host.hardware):
        values = [
            document(host, "load", "--seconds", "1", python=one, by=unfold)
            for one in (python, sys.executable)
        ]
    assert shape(values[0]) == shape(values[1])
    assert (values[0].get(".problem"), values[0][".load.ended"]) == (None, values[1][".load.ended"])


@pytest.mark.parametrize("probe", ["nccl", "pull"])
def test_the_nccl_document_is_the_same(
    machine: Callable[[str], Host], python: Path, probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a child that says what NCCL would."""
    host = machine("pcie-phb-2")
    child = host.folder / "child"
    child.write_text(f"#!{sys.executable}\n{CHILD}")
    child.chmod(0o755)
    monkeypatch.setenv("NODEGAUGE_NCCL_CHILD", str(child))
    assert document(host, probe, python=python) == document(host, probe)
