"""`make e2e` as the program that it is: however it ends, the machine is as before.

What it shows when it runs to its end is its own business: its exit code says whether all was seen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import cgroups, hoststate, needs
from support.program import Program
from testbed.wait import wait_for

ASKED = os.environ.get("NODEGAUGE_E2E") == "1"
REASON = (
    needs.missing() if ASKED else "not asked for: NODEGAUGE_E2E=1 make test ARGS=tests/cluster/test_e2e.py"
)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(REASON), reason=f"make e2e: {REASON}"),
]
WITHIN = 300.0


class Run(Program):
    """A run of some steps."""

    def __init__(self, directory: Path, *steps: str) -> None:
        super().__init__(directory, "e2e", *steps, within=WITHIN)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """One that brings the node up and starts a pod."""
    run = Run(tmp_path / "a folder", "trivial_pod")
    yield run
    run.process.kill()
    run.process.wait()


def test_ctrl_c_leaves_the_machine_as_it_was(run: Run) -> None:
    """While a pod starts: exit code 130, no process, no file, and the program's own comparison says equal."""
    before = hoststate.read(marker=str(run.directory))
    run.wait_for_output("is Ready: kubelet")
    assert len(hoststate.namespaces("net")) > len(before.network_namespaces)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.wait(WITHIN) == 130, run.output
    assert "): equal" in run.output
    assert "Traceback" not in run.output
    assert list(run.directory.iterdir()) == []
    assert not hoststate.read(marker=str(run.directory)).processes


def test_killed_it_leaves_no_process_and_no_namespace(run: Run) -> None:
    """SIGKILL, when it can tidy up nothing: the namespaces end all the same, and with them all mounts."""
    before = hoststate.read(marker=str(run.directory))
    shared = cgroups.parents()
    run.wait_for_output("is Ready: kubelet")
    run.process.kill()
    run.process.wait()

    def as_before() -> bool:
        now = hoststate.read(marker=str(run.directory))
        return (now.mounts, now.network_namespaces, now.interfaces, now.sysctls) == (
            before.mounts,
            before.network_namespaces,
            before.interfaces,
            before.sysctls,
        ) and not now.processes

    wait_for(as_before, what="the machine as it was")
    for folder in run.directory.glob("nodegauge-e2e-*"):  # what only a living program can tidy up
        cgroups.remove(cgroups.container_ids(folder), there_before=shared)
