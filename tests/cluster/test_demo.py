"""`make demo` as a new user runs it, in folders with a space; another starts beside it and is interrupted."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.demo.fleet import FLEET
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

TESTS = Path(__file__).resolve().parents[1]
WITHIN = 900.0


class Demo:
    """A demo in a session of its own like a terminal's, with a new folder for its temporary files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self._output = directory.with_suffix(".txt")
        own = {"PYTHONPATH": str(TESTS), "TMPDIR": str(directory)}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "testbed.demo"],
                cwd=TESTS.parent,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def others(self) -> list[str]:
        """The other processes of ours with the folder in their arguments, environment or cwd."""
        result = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                command, needle = (entry / "cmdline").read_bytes(), os.fsencode(self.directory)
                inside = (entry / "cwd").readlink().is_relative_to(self.directory)
                named = inside or needle in command + (entry / "environ").read_bytes()
                if named and entry.name != str(os.getpid()):
                    result.append(command.replace(b"\0", b" ").decode(errors="replace"))
        return result

    def leaves_nothing(self) -> None:
        """No process, no file, no traceback."""
        wait_for(lambda: not self.others(), seconds=WITHIN, what="every process gone")
        assert list(self.directory.iterdir()) == []
        assert "Traceback" not in self.output


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with started(tmp_path_factory.mktemp("demo") / "a folder") as demo:
        yield demo


@contextmanager
def started(directory: Path) -> Iterator[Demo]:
    """A demo; afterwards neither it nor whatever it started runs."""
    demo = Demo(directory)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()
        wait_for(lambda: not demo.others(), seconds=WITHIN, what="the demo's processes gone")


@pytest.mark.usefixtures("running")
def test_ctrl_c_ends_the_demo_and_everything_it_started(tmp_path: Path) -> None:
    """Pressed any number of times, beside another demo: exit code 130, nothing is left."""
    with started(tmp_path / "another folder") as demo:

        def begun() -> bool:
            assert demo.process.poll() is None, demo.output
            return "starting the control plane" in demo.output

        wait_for(begun, seconds=WITHIN, what="the control plane's start")
        assert demo.others()

        def ended() -> bool:
            if demo.process.poll() is None:
                os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal: to all of the foreground's group
            return demo.process.poll() is not None

        wait_for(ended, seconds=WITHIN, what="the end of the demo")
        assert demo.process.wait(WITHIN) == 130, demo.output
        demo.leaves_nothing()
        assert "interrupted: stopping everything" in demo.output


def test_the_demo_ends_well_and_leaves_nothing(running: Demo) -> None:
    """A row for every node before and after NCCL runs, and the inventory of the collection's README."""
    assert running.process.wait(WITHIN) == 0, running.output
    finished = running.output
    readme = (TESTS.parent / "ansible" / "README.md").read_text(encoding="utf-8")
    graph = readme.split("--graph\n")[1].split("```")[0]
    assert graph.count("|--") > 20
    assert graph in finished
    rows = [line.split()[0] for line in finished.splitlines() if line.startswith("gpu-")]
    assert rows[: 2 * len(FLEET)] == [*FLEET, *FLEET]
    assert "every check passed" in finished
    assert "no label, taint, condition, report, rule or pod of nodegauge is left" in finished
    running.leaves_nothing()
