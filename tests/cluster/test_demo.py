"""`make demo` as a new user runs it: what it prints, how it ends, and that it leaves nothing behind.

One demo runs to its end; others start beside it and are interrupted.  Temporary folders have a space in their
names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.program import Program
from testbed.demo.fleet import FLEET, HOT_NODE
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

WITHIN = 900.0


class Demo(Program):
    """A demo that runs."""

    def __init__(self, directory: Path, **environ: str) -> None:
        super().__init__(directory, "testbed.demo", within=WITHIN, environ=environ)

    def processes(self) -> list[str]:
        """Command lines of all processes with its folder in their arguments, environment or cwd."""
        entries = [entry for entry in Path("/proc").glob("[0-9]*") if entry.name != str(os.getpid())]
        return [command(entry) for entry in entries if names(entry, self.directory)]

    def kill(self) -> None:
        """End it and whatever it started; harmless when it has ended."""
        super().kill()
        wait_for(lambda: not self.processes(), seconds=WITHIN, what="the demo's processes gone")


def command(entry: Path) -> str:
    """A process' command line; empty when it has just gone."""
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def names(entry: Path, directory: Path) -> bool:
    """Whether a process of ours has the folder in its arguments, environment or cwd."""
    needle = os.fsencode(directory)
    try:
        if needle in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
            return True
        return (entry / "cwd").readlink().is_relative_to(directory)
    except OSError:  # it has ended, or is somebody else's
        return False


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo that runs to its end."""
    demo = Demo(tmp_path_factory.mktemp("demo") / "a folder")
    yield demo
    demo.kill()


@pytest.fixture
def other(running: Demo, tmp_path: Path) -> Iterator[Demo]:
    """A second demo, started while the first one runs."""
    demo = Demo(tmp_path / "another folder")
    yield demo
    demo.kill()


@pytest.fixture
def finished(running: Demo) -> str:
    """The output of the demo that ran to its end."""
    assert running.process.wait(WITHIN) == 0, running.output
    return running.output


def test_the_inventory_in_the_collection_s_readme_is_the_demo_s(finished: str) -> None:
    """What `ansible-inventory --graph` prints there, line by line."""
    readme = (Path(__file__).parents[2] / "ansible" / "README.md").read_text(encoding="utf-8")
    graph = readme.split("--graph\n")[1].split("```")[0]
    assert graph.count("|--") > 20
    assert graph in finished


@pytest.mark.parametrize(
    ("moment", "again"),
    [("starting the control plane", False), ("the operator is running", True)],
    ids=["while the control plane starts", "many times while pods run"],
)
def test_ctrl_c_ends_the_demo_and_everything_it_started(other: Demo, moment: str, again: bool) -> None:
    """At any moment, and pressed any number of times: exit code 130, no process, no file, no traceback."""
    other.wait_for_output(moment)
    assert other.processes()
    other.interrupt()

    def ended() -> bool:
        if again and other.process.poll() is None:
            other.interrupt()
        return other.process.poll() is not None

    wait_for(ended, seconds=WITHIN, what="the end of the demo")
    assert other.process.wait(WITHIN) == 130, other.output
    wait_for(lambda: not other.processes(), seconds=WITHIN, what=f"{other.processes()} gone")
    assert list(other.directory.iterdir()) == []
    assert "interrupted: stopping everything" in other.output
    assert "Traceback" not in other.output


def test_a_demo_that_cannot_start_explains_why_and_leaves_nothing(tmp_path: Path) -> None:
    """Exit code 1, the reason, what to do about it, and no traceback."""
    demo = Demo(tmp_path / "a folder", KUBEBUILDER_ASSETS=str(tmp_path / "nowhere"))
    assert demo.process.wait(WITHIN) == 1
    assert "demo failed: KUBEBUILDER_ASSETS is" in demo.output
    assert "correct it or unset it" in demo.output
    assert "Traceback" not in demo.output
    assert list(demo.directory.iterdir()) == []


def test_the_demo_ends_well_and_leaves_nothing(running: Demo, finished: str) -> None:
    """Each of its steps checks what it shows; it ends with 0 although others ran beside it.  It prints a row
    for every node before NCCL runs and after them."""
    rows = [line.split()[0] for line in finished.splitlines() if line.startswith("gpu-")]
    assert rows[: 2 * len(FLEET)] == [*FLEET, *FLEET]
    assert "every check passed" in finished
    assert "no label, taint, condition, report or pod of nodegauge is left" in finished
    assert "Traceback" not in finished
    assert running.processes() == []
    assert list(running.directory.iterdir()) == []


def test_the_hot_node_is_tainted_after_two_runs_and_untainted_after_three_good_ones(finished: str) -> None:
    """The first bad run sets no taint, and two good ones do not lift it.

    On a slow machine there may be a third bad run before the load ends."""
    counted = re.findall(rf"{HOT_NODE}: run \d+ \(.*\): .* is (\S+), (\d) bad and (\d) good", finished)
    assert counted[:2] == [("watching", "1", "0"), ("gated", "2", "0")], finished
    good = [count for count in counted if count[2] != "0"]
    assert good[:2] == [("gated", "0", "1"), ("gated", "0", "2")], finished
