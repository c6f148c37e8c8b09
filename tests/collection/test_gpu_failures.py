"""Hosts that cannot be measured fail alone, say what to do, and keep nothing of ours."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import archive
from support.gpu_hosts import GpuHosts, fake_archive, running
from support.playbook import COLLECTION, Ansible, stage
from testbed.wait import wait_for

QUICK = {"window": 0.2, "hz": 10}
HANG = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", {mark!r}])
    time.sleep(300)
"""


@pytest.fixture
def hosts(tmp_path: Path, host_archive: Path) -> GpuHosts:
    """No hosts yet; the collection contains the archive."""
    stage(tmp_path / "controller", archive=host_archive)
    return GpuHosts(Ansible(tmp_path / "controller"), tmp_path / "hosts")


FAKES = {
    "rubbish": ("print('Segmentation fault')", ["without a document", "Segmentation fault", "Check `arch"]),
    "silent": ("sys.exit(1)", ["code 1", "printed nothing"]),
    "half": ("print('{')", ["without a document"]),
    "other": ("print('[1]')", ["without a document"]),
    "endless": ("\nwhile True: sys.stdout.write('x' * 65536)", ["more than 1048576 bytes"]),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", ["killed by SIGKILL", "memory ran out"]),
    "noexec": (
        "sys.exit('ImportError: _core.so: failed to map segment from shared object')",
        ["refused to load", "remote_tmp", "TMPDIR", "noexec", "ausearch"],
    ),
    "full": (
        "print('nodegauge: cannot unpack: [Errno 28] No space left on device', file=sys.stderr); sys.exit(4)",
        ["No space left on device", "remote_tmp", "TMPDIR", "30 MB"],
    ),
    "option": ("sys.stderr.write('--window: long'); sys.exit(2)", ["--window: long", "options"]),
}


def test_a_probe_that_returns_no_document_fails_its_host_with_what_to_do(hosts: GpuHosts) -> None:
    """Each way to end badly has its own sentence; a healthy host in the same play is measured."""
    for name, (body, _) in FAKES.items():
        path = fake_archive(hosts.ansible.folder / f"{name}.pyz", body)
        hosts.add(name, "t4-1", options={**QUICK, "archive": str(path)})
    hosts.add("nolibrary", "t4-1", drop=["LD_LIBRARY_PATH"], options=QUICK)
    hosts.add("healthy", "t4-1", options=QUICK)
    wrong = {"window": "long"}
    hosts.add("wrong", "t4-1", options=wrong)
    played = hosts.play("gpu_health")
    assert hosts.task(played, "healthy").result["verdict"] == "pass"
    expected = {name: parts for name, (_, parts) in FAKES.items()}
    expected["nolibrary"] = ["NVIDIA driver", "1. Run `nvidia-smi` on the host"]
    expected["wrong"] = ["window", "float"]
    for name, parts in expected.items():
        task = hosts.task(played, name)
        assert task.status == "failed", name
        for part in parts:
            assert part in task.result["msg"], name
    assert hosts.task(played, "nolibrary").result["verdict"] == "unknown"
    assert hosts.left() == []


def test_a_probe_that_hangs_is_ended_with_all_of_its_processes(hosts: GpuHosts) -> None:
    """In time, though it ignores SIGTERM; a call that hangs in the driver comes back as a document."""
    mark = str(hosts.top / "mark")
    path = fake_archive(hosts.ansible.folder / "hang.pyz", HANG.format(mark=mark))
    hosts.add("deaf", "t4-1", options={"archive": str(path), "timeout": 3})
    hosts.add("driver", "t4-1", "hung-call", options={**QUICK, "timeout": 15})
    played = hosts.play("gpu_health")
    deaf, driver = (hosts.task(played, name) for name in ("deaf", "driver"))
    assert (deaf.status, driver.status) == ("failed", "failed")
    assert "did not end within 3 s" in deaf.result["msg"]
    assert "raise `timeout`" in deaf.result["msg"]
    assert driver.result["document"]["problem"]["kind"] == "call-hung"
    assert "timeout 30 nvidia-smi" in driver.result["msg"]
    assert running(mark) == []
    assert hosts.left() == []


def host_module() -> ModuleType:
    """The module_utils that run on hosts."""
    path = COLLECTION / "plugins" / "module_utils" / "probe.py"
    spec = importlib.util.spec_from_file_location("host_probe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("printed", ["", '{"schema": "nodegauge.dev/probe-result"}'])
def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    """As in state D in the driver: here, signals do not arrive. Its document, if it wrote one, counts."""
    probe = host_module()
    started = []

    class Deaf(probe.Run):  # type: ignore[misc, name-defined]
        _signal = staticmethod(lambda number, pid: None)

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self.process)

    monkeypatch.setattr(probe, "Run", Deaf)
    mark = str(tmp_path / "stuck.pyz")
    path = fake_archive(tmp_path / "stuck.pyz", f"print({printed!r}, flush=True); time.sleep(300)")
    try:
        document = probe.measure([str(path)], dict(os.environ), 1, path)
        message = document["problem"]["message"]
    except probe.CannotMeasure as error:
        message = str(error)
    [process], [pid] = started, running(mark)
    with process:  # which waits for it, and closes its pipes
        os.kill(pid, signal.SIGKILL)
    assert f"Process {pid} (" in message
    assert "cannot be killed: reboot the host" in message


def test_a_task_that_ansible_ends_takes_its_probe_along(hosts: GpuHosts) -> None:
    """The keyword `timeout` removes the task's files; the module sees that, ends the probe, and cleans up."""
    mark = str(hosts.top / "mark")
    path = fake_archive(hosts.ansible.folder / "hang.pyz", HANG.format(mark=mark))
    hosts.add("host", "t4-1", options={"archive": str(path), "timeout": 600})
    hosts.add("real", "t4-1", options={"window": 40, "timeout": 600})
    played = hosts.play("gpu_health", timeout=12)  # long enough for both to begin
    assert [task.status for task in played.tasks] == ["failed", "failed"]
    wait_for(lambda: not running(mark) and not hosts.left(), what="the probe and its files are gone")


def test_a_probe_that_is_killed_leaves_nothing(hosts: GpuHosts) -> None:
    """Also what the archive unpacked goes, though the archive could not remove it."""
    body = """
        import tempfile
        open(os.path.join(tempfile.mkdtemp(), "unpacked"), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = fake_archive(hosts.ansible.folder / "killed.pyz", body)
    hosts.add("host", "t4-1", options={"archive": str(path)})
    task = hosts.task(hosts.play("gpu_health"), "host")
    assert (task.status, signal.Signals.SIGKILL.name in task.result["msg"]) == ("failed", True)
    assert hosts.left() == []


def test_a_host_without_a_fitting_python_says_so(hosts: GpuHosts) -> None:
    """No Python at that path, one that ansible-core refuses, one that only the archive refuses."""
    pythons = {"absent": "/nonexistent/python3"}
    for version in ("2.7", "3.6", "3.7", "3.8"):
        if (python := archive.interpreter(version)) is not None:
            pythons[f"old-{version}"] = str(python)
    for name, python in pythons.items():
        hosts.add(name, "t4-1", options=QUICK, ansible_python_interpreter=python)
    played = hosts.play("gpu_health")
    for name in pythons:
        task = hosts.task(played, name)
        assert task.status == "failed", task
        assert "ansible_python_interpreter" in task.result["msg"], (name, task.result)
        assert "3.9 or newer" in task.result["msg"], (name, task.result)
    assert hosts.left() == []


def test_async_is_refused(hosts: GpuHosts) -> None:
    """The controller judges after the probe, so it must wait for it."""
    hosts.add("host", "t4-1", options=QUICK)
    played = hosts.play("gpu_health", **{"async": 60, "poll": 1})
    assert hosts.task(played, "host").status == "failed"
    assert "async" in hosts.task(played, "host").result["msg"]
    assert hosts.left() == []
