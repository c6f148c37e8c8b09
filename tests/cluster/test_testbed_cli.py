"""The command `python -m testbed`, as a person types it: up, nodes, faults, down, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed import daemon
from testbed.cluster import Testbed, wait_for
from testbed.errors import TestbedError
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

    def __call__(self, *arguments: str) -> str:
        """Run it; its output. AssertionError with its words when it fails."""
        with self.start(*arguments) as process:
            out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def refused(self, *arguments: str) -> str:
        """Run it and expect exit code 1 and one line of explanation, no traceback; that line."""
        with self.start(*arguments) as process:
            _, err = process.communicate()
        assert process.returncode == 1
        assert "Traceback" not in err
        return err.strip()

    def row(self, node: str) -> list[str]:
        """The node's line of `nodes`, by column."""
        [line] = [line for line in self("nodes").splitlines() if line.split()[0] == node]
        return line.split()

    def processes(self) -> list[int]:
        """Every process whose command line names the directory."""
        needle = os.fsencode(self.directory)
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if needle in command_line(entry)]


def command_line(entry: Path) -> bytes:
    """A process' command line; empty when it has just gone."""
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def all_gone(cli: Cli) -> Callable[[], bool]:
    """Whether no process of the testbed is left."""
    return lambda: not cli.processes()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A directory with a space in its name; whatever a failed test leaves running is ended."""
    cli = Cli(tmp_path / "my testbed")
    yield cli
    daemon.stop(cli.directory)


def test_a_day_with_the_testbed(cli: Cli) -> None:
    """Every command does what it says, refuses what it cannot do with a reason, and down leaves nothing."""
    assert "export KUBECONFIG=" in cli("up")
    pid = daemon.holder(cli.directory)
    assert pid is not None
    for name, profile in DEFAULT_NODES.items():
        assert cli.row(name)[1:3] == ["Ready", profile or "-"]
    assert cli("fault", "gpu-h100", "link-down", "gpu=3", "link=2") == "gpu-h100: link-down\n"
    assert cli.row("gpu-h100")[4] == "link-down"
    cli("heal", "gpu-h100")
    assert cli.row("gpu-h100")[4] == "-"
    assert cli("plug", "titan-rtx-nv2", "gpu-new") == "gpu-new\n"
    assert cli.row("gpu-new")[1:4] == ["Ready", "titan-rtx-nv2", "2"]
    cli("unplug", "gpu-new")
    assert "gpu-new" not in cli("nodes")
    assert f"pid {pid.pid}, 5 nodes" in cli("status")
    assert Path(cli("env").split("=", 1)[1].strip().strip("'")).exists()
    assert "no fault" in cli.refused("fault", "gpu-h100", "nonsense")
    assert "there are gpu-dgx1" in cli.refused("heal", "gpu-x")
    assert "no GPUs" in cli.refused("fault", "system-1", "p2p-refused")
    assert "no profile" in cli.refused("plug", "nonsense")
    assert "is there already" in cli.refused("plug", "titan-rtx-nv2", "gpu-h100")
    assert "KEY=VALUE" in cli.refused("fault", "gpu-h100", "link-down", "gpu")
    cli("up")
    again = daemon.holder(cli.directory)
    assert again == pid, "a second up must not start a second testbed"
    assert cli("down") == "stopped\n"
    assert cli.processes() == []
    assert cli("down") == "not running\n"
    assert " up`" in cli.refused("nodes")


def test_a_killed_testbed_takes_everything_along(cli: Cli) -> None:
    """SIGKILL to the process that holds the testbed ends all of its processes, and `up` starts a new one."""
    cli("up")
    holder = daemon.holder(cli.directory)
    assert holder is not None
    assert len(cli.processes()) > 4
    os.kill(holder.pid, signal.SIGKILL)
    wait_for(all_gone(cli), what="all processes of the testbed gone")
    assert "no testbed runs" in cli.refused("status")
    cli("up")
    assert cli.row("gpu-h100")[1] == "Ready"
    cli("down")


def test_ctrl_c_during_up_leaves_nothing(cli: Cli) -> None:
    """SIGINT while the control plane starts ends `up` with 130 and every process that it started."""
    with cli.start("up") as process:
        wait_for(lambda: (cli.directory / "control-plane").exists(), what="the control plane starts")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    wait_for(all_gone(cli), what="all processes of the testbed gone")


def test_a_foreign_process_with_the_recorded_pid_is_left_alone(cli: Cli) -> None:
    """A pid whose start time differs is somebody else: it is neither believed nor killed."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        cli.directory.mkdir()
        daemon._write(cli.directory, daemon.Holder(pid=stranger.pid, started="1", kubeconfig="x"))
        assert cli("down") == "not running\n"
        assert stranger.poll() is None
        stranger.kill()


def boot_id(testbed: Testbed, node: str) -> str:
    """The boot id that the node reports."""
    return testbed.control_plane.rest().get(f"/api/v1/nodes/{node}")["status"]["nodeInfo"]["bootID"]


def test_the_python_interface(tmp_path: Path) -> None:
    """Testbed starts, reboots and removes nodes, shows a pod's process, log and words, and ends cleanly."""
    with Testbed(tmp_path / "testbed", nodes={"gpu-1": "titan-rtx-nv2"}) as testbed:
        rest = testbed.control_plane.rest()
        before = boot_id(testbed, "gpu-1")
        script = "import signal; print('hello', flush=True); signal.pause()"
        container = {"name": "main", "image": "python:3", "command": ["python", "-c", script]}
        body = {"metadata": {"name": "talker"}, "spec": {"containers": [container], "restartPolicy": "Never"}}
        rest.create("/api/v1/namespaces/default/pods", body)
        wait_for(lambda: "hello" in testbed.logs("default", "talker"), what="the pod's log")
        [process] = testbed.processes("default", "talker")
        assert process.node == "gpu-1"
        testbed.restart_node("gpu-1")
        assert testbed.processes("default") == []
        wait_for(lambda: boot_id(testbed, "gpu-1") != before, what="a new boot id")
        testbed.add_node("plain", labels={"zone": "a"}, taints=[{"key": "k", "effect": "NoSchedule"}])
        plain = rest.get("/api/v1/nodes/plain")
        assert plain["metadata"]["labels"]["zone"] == "a"
        assert {"key": "k", "effect": "NoSchedule"} in plain["spec"]["taints"]
        testbed.remove_node("gpu-1")
        names = [node["metadata"]["name"] for node in rest.get("/api/v1/nodes")["items"]]
        assert names == ["plain"]
        with pytest.raises(TestbedError, match="no node gpu-1: there are plain"):
            testbed.hardware("gpu-1")
    assert Cli(tmp_path / "testbed").processes() == []


def test_a_testbed_ends_with_the_program_that_holds_it(tmp_path: Path) -> None:
    """SIGKILL to a program that uses Testbed leaves no process of it."""
    cli = Cli(tmp_path / "testbed")
    program = (
        "import sys, time; from pathlib import Path; from testbed.cluster import Testbed\n"
        "with Testbed(Path(sys.argv[1]), nodes={'plain': None}):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(cli.directory)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(cli.processes()) >= 6
        process.kill()
    began = time.monotonic()
    wait_for(all_gone(cli), what="all processes of the testbed gone")
    assert time.monotonic() - began < 30
