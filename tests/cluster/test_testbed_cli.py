"""The command `python -m testbed`: up, nodes, faults, a shell's environment, down; nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.nodes import DEFAULT_NODES

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).resolve().parents[1]


class Cli:
    """The command on one directory, in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def up(self) -> str:
        """`up` as the program that it is, since what it starts outlives it."""
        command = [sys.executable, "-m", "testbed", "--dir", str(self.directory), "up"]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def __call__(self, *arguments: str, code: int = 0) -> None:
        assert main(["--dir", str(self.directory), *arguments]) == code


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A testbed that `up` has started, in a directory with a space in its name, and that `down` ends."""
    cli = Cli(tmp_path_factory.mktemp("running") / "my testbed")
    assert " env)" in cli.up()
    yield cli
    cli("down")
    commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    assert not any(os.fsencode(cli.directory) in command for command in commands)


def row(running: Cli, node: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The node's line of `nodes`, by column; empty without one."""
    capsys.readouterr()
    running("nodes")
    return next((line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(node)), [])


def test_nodes_and_faults_come_and_go(running: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    """Every node is Ready and shows its profile and faults; a plugged one joins, an unplugged one leaves."""
    for name, profile in DEFAULT_NODES.items():
        assert row(running, name, capsys)[1:3] == ["Ready", profile or "-"]
    running("fault", "gpu-h100", "link-down", "gpu=3", "link=2")
    assert row(running, "gpu-h100", capsys)[4] == "link-down"
    running("heal", "gpu-h100")
    assert row(running, "gpu-h100", capsys)[4] == "-"
    running("plug", "titan-rtx-nv2", "gpu-new")
    assert row(running, "gpu-new", capsys)[1:4] == ["Ready", "titan-rtx-nv2", "2"]
    running("unplug", "gpu-new")
    assert row(running, "gpu-new", capsys) == []


def test_mistakes_are_explained(running: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be done ends with 1 and says what could be."""
    mistakes = {
        ("fault", "gpu-h100", "nonsense"): "no fault",
        ("fault", "system-1", "p2p-refused"): "no GPUs",
        ("plug", "nonsense", "gpu-x"): "no hardware profile",
        ("unplug", "gpu-x"): "there are gpu-dgx1",
    }
    for arguments, message in mistakes.items():
        running(*arguments, code=1)
        assert message in capsys.readouterr().err


def test_a_shell_gets_programs_and_kubeconfig(
    running: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`eval "$(testbed env)"` in a shell without kubectl and helm: both run, and find the cluster."""
    kubectl = tmp_path / "built for this test"
    kubectl.write_text('#!/bin/sh\necho "kubectl with $KUBECONFIG"\n')
    kubectl.chmod(0o755)
    monkeypatch.setattr("testbed.cli.build_kubectl", lambda _: kubectl)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    capsys.readouterr()
    running("env")
    script = 'eval "$1"; kubectl; helm list --all-namespaces --short; helm version --short'
    shell = ["/bin/sh", "-c", script, "sh", capsys.readouterr().out]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, version = done.stdout.splitlines()
    assert first == f"kubectl with {running.directory / 'control-plane' / 'kubeconfig'}"
    assert version.startswith("v")
