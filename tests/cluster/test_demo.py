"""`make demo` as a new user runs it: what it prints, how it ends, and that it leaves nothing behind.

One demo runs to its end; others start beside it and are interrupted.  Temporary folders have a space in their
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.program import ROOT, Program, processes_of
from testbed.demo.fleet import FLEET, HOT_NODE
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

WITHIN = 900.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The demo that runs to its end."""
    with started(tmp_path_factory.mktemp("demo") / "a folder") as demo:
        yield demo


@pytest.fixture
def finished(running: Program) -> str:
    """The output of the demo that ran to its end."""
    assert running.process.wait(WITHIN) == 0, running.output
    return running.output


@contextmanager
def started(directory: Path, **environ: str) -> Iterator[Program]:
    """A demo; afterwards neither it nor whatever it started runs."""
    demo = Program(directory, "testbed.demo", within=WITHIN, environ=environ)
    try:
        yield demo
    finally:
        demo.kill()
        wait_for(lambda: not processes_of(directory), seconds=WITHIN, what="the demo's processes gone")


def nothing_is_left(demo: Program) -> None:
    """No process, no file, no traceback."""
    wait_for(lambda: not processes_of(demo.directory), seconds=WITHIN, what="every process gone")
    assert list(demo.directory.iterdir()) == []
    assert "Traceback" not in demo.output


def test_the_inventory_in_the_collection_s_readme_is_the_demo_s(finished: str) -> None:
    """What `ansible-inventory --graph` prints there, line by line."""
    readme = (ROOT / "ansible" / "README.md").read_text(encoding="utf-8")
    graph = readme.split("--graph\n")[1].split("```")[0]
    assert graph.count("|--") > 20
    assert graph in finished


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("moment", "again"),
    [("starting the control plane", False), ("the operator is running", True)],
    ids=["while the control plane starts", "many times while pods run"],
)
def test_ctrl_c_ends_the_demo_and_everything_it_started(tmp_path: Path, moment: str, again: bool) -> None:
    """At any moment, and pressed any number of times, beside another demo: exit code 130, nothing is left."""
    with started(tmp_path / "another folder") as demo:
        demo.wait_for_output(moment)
        assert processes_of(demo.directory)
        demo.interrupt()

        def ended() -> bool:
            if again and demo.process.poll() is None:
                demo.interrupt()
            return demo.process.poll() is not None

        wait_for(ended, seconds=WITHIN, what="the end of the demo")
        assert demo.process.wait(WITHIN) == 130, demo.output
        nothing_is_left(demo)
        assert "interrupted: stopping everything" in demo.output


def test_a_demo_that_cannot_start_explains_why_and_leaves_nothing(tmp_path: Path) -> None:
    """Exit code 1, the reason, and what to do about it."""
    with started(tmp_path / "a folder", KUBEBUILDER_ASSETS=str(tmp_path / "nowhere")) as demo:
        assert demo.process.wait(WITHIN) == 1
        assert "demo failed: KUBEBUILDER_ASSETS is" in demo.output
        assert "correct it or unset it" in demo.output
        nothing_is_left(demo)


def test_the_demo_ends_well_and_leaves_nothing(running: Program, finished: str) -> None:
    """Each of its steps checks what it shows; it ends with 0 although others ran beside it.  It prints a row
    for every node before NCCL runs and after them."""
    rows = [line.split()[0] for line in finished.splitlines() if line.startswith("gpu-")]
    assert rows[: 2 * len(FLEET)] == [*FLEET, *FLEET]
    assert "every check passed" in finished
    assert "no label, taint, condition, report or pod of nodegauge is left" in finished
    nothing_is_left(running)


def test_the_hot_node_is_tainted_after_two_runs_and_untainted_after_three_good_ones(finished: str) -> None:
    """The first bad run sets no taint, and two good ones do not lift it.

    On a slow machine there may be a third bad run before the load ends."""
    counted = re.findall(rf"{HOT_NODE}: run \d+ \(.*\): .* is (\S+), (\d) bad and (\d) good", finished)
    assert counted[:2] == [("watching", "1", "0"), ("gated", "2", "0")], finished
    good = [count for count in counted if count[2] != "0"]
    assert good[:2] == [("gated", "0", "1"), ("gated", "0", "2")], finished
