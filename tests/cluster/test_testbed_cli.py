"""The command `python -m testbed`: up, nodes, faults, down, and nothing left behind."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gpu_hosts import running as processes_with
from testbed import daemon
from testbed.cli import main
from testbed.nodes import DEFAULT_NODES

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).resolve().parents[1]


class Cli:
    """The command on one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {**os.environ, "PYTHONPATH": str(TESTS)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in a session of its own, as a terminal does."""
        return subprocess.Popen(
            [sys.executable, "-m", "testbed", "--dir", str(self.directory), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def up(self) -> str:
        """Run `up` as the program that it is, since what it starts outlives it; its output."""
        with self.start("up") as process:
            out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def __call__(self, *arguments: str) -> str:
        """Run it in this process; its output. AssertionError with its words when it fails."""
        code, out, err = self._run(*arguments)
        assert code == 0, err
        return out

    def refused(self, *arguments: str) -> str:
        """Run it and expect exit code 1; the explanation."""
        code, _, err = self._run(*arguments)
        assert code == 1
        return err.strip()

    def _run(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--dir", str(self.directory), *arguments])
        return code, out.getvalue(), err.getvalue()

    def row(self, node: str) -> list[str]:
        """The node's line of `nodes`, by column."""
        [line] = [line for line in self("nodes").splitlines() if line.split()[0] == node]
        return line.split()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A directory with a space in its name; whatever a failed test leaves running is ended."""
    cli = Cli(tmp_path / "my testbed")
    yield cli
    daemon.stop(cli.directory)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A testbed that `up` has started, for the tests that only use one."""
    cli = Cli(tmp_path_factory.mktemp("running") / "my testbed")
    assert " env)" in cli.up()
    yield cli
    assert cli("down") == "stopped\n"
    assert processes_with(str(cli.directory)) == []


def test_default_nodes_are_plugged_and_faults_come_and_go(running: Cli) -> None:
    """Every node is Ready and shows its profile; `fault` shows in `nodes`, and `heal` takes it away."""
    for name, profile in DEFAULT_NODES.items():
        assert running.row(name)[1:3] == ["Ready", profile or "-"]
    assert running("fault", "gpu-h100", "link-down", "gpu=3", "link=2") == "gpu-h100: link-down\n"
    assert running.row("gpu-h100")[4] == "link-down"
    running("heal", "gpu-h100")
    assert running.row("gpu-h100")[4] == "-"


def test_nodes_are_plugged_and_unplugged(running: Cli) -> None:
    """A plugged node is Ready with its hardware; an unplugged one leaves the cluster."""
    assert running("plug", "titan-rtx-nv2", "gpu-new") == "gpu-new\n"
    assert running.row("gpu-new")[1:4] == ["Ready", "titan-rtx-nv2", "2"]
    running("unplug", "gpu-new")
    assert "gpu-new" not in running("nodes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fault", "gpu-h100", "nonsense"), "no fault"),
        (("fault", "gpu-h100", "link-down", "gpu"), "KEY=VALUE"),
        (("fault", "system-1", "p2p-refused"), "no GPUs"),
        (("plug", "nonsense", "gpu-x"), "no profile"),
        (("plug", "titan-rtx-nv2", "gpu-h100"), "is there already"),
        (("unplug", "gpu-x"), "there are gpu-dgx1"),
    ],
)
def test_mistakes_are_explained(running: Cli, arguments: tuple[str, ...], message: str) -> None:
    """What cannot be done ends with 1 and says what could be."""
    assert message in running.refused(*arguments)


def test_up_again_finds_the_one_that_runs(running: Cli) -> None:
    """A second `up` starts nothing; status tells of the first."""
    before = daemon.holder(running.directory)
    running.up()
    assert before is not None
    assert daemon.holder(running.directory) == before
    assert f"pid {before.pid}, {len(DEFAULT_NODES)} nodes" in running("status")


def test_a_shell_gets_programs_and_kubeconfig(
    running: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`eval "$(testbed env)"` in a shell without kubectl and helm: both run, and find the cluster."""
    kubectl = tmp_path / "built for this test"
    kubectl.write_text('#!/bin/sh\necho "kubectl with $KUBECONFIG"\n')
    kubectl.chmod(0o755)
    monkeypatch.setattr("testbed.cli.build_kubectl", lambda _: kubectl)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    script = 'eval "$1"; kubectl; helm list --all-namespaces --short; helm version --short'
    done = subprocess.run(["/bin/sh", "-c", script, "sh", running("env")], capture_output=True, text=True)
    assert done.stderr == ""
    first, version = done.stdout.splitlines()
    assert first == f"kubectl with {running.directory / 'control-plane' / 'kubeconfig'}"
    assert version.startswith("v")


def test_down_without_up(cli: Cli) -> None:
    """`down` is harmless when nothing runs, and other commands then say how to start."""
    assert cli("down") == "not running\n"
    assert " up`" in cli.refused("nodes")
