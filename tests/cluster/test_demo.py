"""`make demo` for somebody who types it for the first time: what it prints, how it ends, what it leaves.

It runs as the program that it is, with a temporary folder whose name has a space in it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.program import Program
from testbed.cluster import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

WITHIN = 180.0
REPORTED = {
    "gpu-h100": "nvlink 450 reported - pass none - True -",
    "gpu-gb200": "nvlink 900 reported - pass - - True -",
    "gpu-h800": "nvlink 200 reported - pass - - True -",
    "gpu-a100": "nvlink 300 reported - pass - - True -",
    "gpu-mesh4": "nvlink 300 reported - pass - ok True -",
    "gpu-dgx2": "nvlink 150 reported - pass - - True -",
    "gpu-dgx1": "nvlink 150 reported - pass - - True -",
    "gpu-titan": "nvlink 50 reported - pass - - True -",
    "gpu-3090": "nvlink 56 reported - pass - ok True -",
    "gpu-pairs": "nvlink-pairs - reported - pass - - True -",
    "gpu-phb": "pcie - reported - pass - - True -",
    "gpu-single": "- - - - pass - - True -",
    "gpu-mig": "- - - - pass - ok True -",
    "gpu-hidden": "- - - - - - - Unknown -",
    "gpu-cable": "- - - - fail - fault False unhealthy=power-cable:NoSchedule",
    "gpu-p2p": "- - - - fail - - False unhealthy=p2p:NoSchedule",
}
"""Node to interconnect, GB/s, evidence, busbw, health, throttled, psu, condition, taint; nothing measured."""
BROKEN = "gpu-h800"
MEASURED = {node: row.replace("reported -", "measured B") for node, row in REPORTED.items()} | {
    BROKEN: "- - - B pass - - False unhealthy=busbw:NoSchedule"
}
"""The same afterwards; B is bus bandwidth, whose numbers the demo itself compares."""
NVLINK_NODES = {node for node, row in MEASURED.items() if row.startswith("nvlink ")}
HOT = "gpu-3090"


class Demo(Program):
    """A demo that runs."""

    def __init__(self, directory: Path, **environ: str) -> None:
        super().__init__(directory, "testbed.demo", within=WITHIN, environ=environ)

    def processes(self) -> list[str]:
        """Command lines of all processes that its folder is named by: arguments, environment or cwd."""
        entries = [entry for entry in Path("/proc").glob("[0-9]*") if entry.name != str(os.getpid())]
        return [command(entry) for entry in entries if names(entry, self.directory)]

    def kill(self) -> None:
        """End it and whatever it started; harmless when it has ended."""
        super().kill()
        wait_for(lambda: not self.processes(), what="the demo's processes gone")


def command(entry: Path) -> str:
    """A process' command line; empty when it has just gone."""
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def names(entry: Path, directory: Path) -> bool:
    """Whether a living process of ours has anything to do with the folder."""
    needle = os.fsencode(directory)
    try:
        if needle in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
            return True
        return (entry / "cwd").readlink().is_relative_to(directory)
    except OSError:  # it has ended, or is somebody else's
        return False


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    """Two demos that were started at the same moment."""
    started = [Demo(tmp_path / f"folder number {number}") for number in (1, 2)]
    yield started
    for demo in started:
        demo.kill()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """One demo."""
    demo = Demo(tmp_path / "a folder")
    yield demo
    demo.kill()


def test_two_demos_side_by_side_see_everything_and_leave_nothing(demos: list[Demo]) -> None:
    """Both end with 0, print what the hardware demands and where jobs ran, and clean up behind themselves."""
    for demo in demos:
        assert demo.process.wait(2 * WITHIN) == 0, demo.output
        rows = [line.split() for line in demo.output.splitlines() if line.startswith("gpu-")]
        found = [(row[0], re.sub(r"\d+/\d+/\d+", "B", " ".join(row[-9:]))) for row in rows]
        assert dict(found[: len(REPORTED)]) == REPORTED
        assert dict(found[len(REPORTED) :]) == MEASURED
        placed = dict(re.findall(r"job (\S+): kube-scheduler placed it on (\S+),", demo.output))
        assert placed.keys() == {"zero-any-nvlink", "zero-over-400", "zero-second"}
        assert placed["zero-any-nvlink"] in NVLINK_NODES
        assert placed["zero-over-400"] in {"gpu-h100", "gpu-gb200"}
        assert placed["zero-second"] in NVLINK_NODES - {HOT}
        assert "no label, taint, condition, report or pod of nodegauge is left" in demo.output
        assert "Traceback" not in demo.output
        assert demo.processes() == []
        assert list(demo.directory.iterdir()) == []


def test_the_hot_node_is_tainted_after_two_runs_and_trusted_after_three_good_ones(demo: Demo) -> None:
    """Not by the first bad run, not lifted by idle ones, and lifted by the third good one under load."""
    assert demo.process.wait(2 * WITHIN) == 0, demo.output
    counted = re.findall(rf"{HOT}: run \d+: .* is (\S+), (\d) bad and (\d) good", demo.output)
    assert counted[:2] == [("watching", "1", "0"), ("gated", "2", "0")], demo.output
    assert f"{HOT} is still tainted" in demo.output
    assert counted[2:4] == [("gated", "0", "1"), ("gated", "0", "2")], demo.output
    assert f"{HOT}: the taint is gone, label throttled=none" in demo.output
    assert f"job zero-only-here ran on {HOT} and ended well" in demo.output


def test_bandwidth_has_the_last_word(demo: Demo) -> None:
    """A number takes a label away by a number, GPUs that took part are counted, and a job goes first."""
    assert demo.process.wait(2 * WITHIN) == 0, demo.output
    words = r": Contradicted: all_reduce at 1 GiB \(RING\) reaches 2\d[.\d]* GB/s, .* with 200 GB/s per GPU"
    assert re.search(BROKEN + words, demo.output), demo.output
    assert re.search(r"gpu-a100: 7 of 8 GPUs took part\. Not among them: GPU-\w{8}\.", demo.output)
    assert re.search(
        r"preempted the benchmark: zero-all-gpus ran \d\.\d s after it was asked for", demo.output
    )


@pytest.mark.parametrize("moment", ["starting the control plane", "helm install", "helm uninstall"])
def test_ctrl_c_ends_the_demo_and_everything_it_started(demo: Demo, moment: str) -> None:
    """Whatever it is about: exit code 130, no process, no file, and no traceback to be frightened by."""
    demo.wait_for_words(moment)
    assert demo.processes()
    demo.interrupt()
    assert demo.process.wait(WITHIN) == 130, demo.output
    wait_for(lambda: not demo.processes(), what=f"{demo.processes()} gone")
    assert list(demo.directory.iterdir()) == []
    assert "interrupted: ending everything" in demo.output
    assert "Traceback" not in demo.output


def test_an_impatient_second_ctrl_c_does_no_harm(demo: Demo) -> None:
    """While it ends what it started, probes and all, more of them are not heard; the end is the same."""
    demo.wait_for_words("waiting for probes")
    demo.interrupt()
    while demo.process.poll() is None:
        demo.interrupt()
        time.sleep(0.05)
    assert demo.process.returncode == 130, demo.output
    wait_for(lambda: not demo.processes(), what=f"{demo.processes()} gone")
    assert list(demo.directory.iterdir()) == []
    assert "Traceback" not in demo.output


def test_a_demo_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """Exit code 1, the reason with the way out, and no traceback."""
    demo = Demo(tmp_path / "a folder", KUBEBUILDER_ASSETS=str(tmp_path / "nowhere"))
    assert demo.process.wait(WITHIN) == 1
    assert "demo failed: KUBEBUILDER_ASSETS is" in demo.output
    assert "correct it or unset it" in demo.output
    assert "Traceback" not in demo.output
    assert list(demo.directory.iterdir()) == []
