"""Hosts that cannot be measured fail alone, say what to do, and keep nothing of ours."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.archive import module_of
from support.gpu_hosts import QUICK, GpuHosts, fake_archive
from support.playbook import COLLECTION
from testbed.processes import with_argument
from testbed.wait import wait_for

HANG = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", {mark!r}])
    time.sleep(300)
"""
LEAVES = """
    import tempfile
    open(os.path.join(tempfile.mkdtemp(), "unpacked"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""
FAKES = {
    "rubbish": ("print('Segmentation fault')", ["without a document", "Segmentation fault", "Check `arch"]),
    "silent": ("sys.exit(1)", ["code 1", "printed nothing"]),
    "half": ("print('{')", ["without a document"]),
    "other": ("print('[1]')", ["without a document"]),
    "endless": ("\nwhile True: sys.stdout.write('x' * 65536)", ["more than 1048576 bytes"]),
    "killed": (LEAVES, ["killed by SIGKILL", "memory ran out"]),
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
"""What an archive does instead of measuring, and what the message says."""
SAYS: dict[str, tuple[str, ...] | list[str]] = {
    **{name: parts for name, (_, parts) in FAKES.items()},
    "deaf": ("did not end within 3 s", "raise `timeout`"),
    "driver": ("timeout 30 nvidia-smi",),
    "nolibrary": ("NVIDIA driver", "1. Run `nvidia-smi` on the host"),
    "wrong": ("window", "float"),
    "async": ("async",),
}


def test_each_host_that_cannot_be_measured_fails_with_what_to_do(hosts: GpuHosts) -> None:
    """A hanging probe is ended with all of its processes, though it ignores SIGTERM; nothing of it stays."""
    mark = str(hosts.top / "mark")
    for name, (body, _) in (FAKES | {"deaf": (HANG.format(mark=mark), [])}).items():
        path = fake_archive(hosts.ansible.folder / f"{name}.pyz", body)
        hosts.add(name, "t4-1", options={**QUICK, "archive": str(path)})
    hosts.variables["deaf"]["options"]["timeout"] = 3
    hosts.add("driver", "t4-1", "hung-call", options={**QUICK, "timeout": 15})
    hosts.add("nolibrary", "t4-1", drop=["LD_LIBRARY_PATH"], options=QUICK)
    hosts.add("wrong", "t4-1", options={"window": "long"})
    hosts.add("async", "t4-1", options=QUICK, asynchronous=60)
    hosts.add("healthy", "t4-1", options=QUICK)
    played = hosts.play("gpu_health", **{"async": "{{ asynchronous | default(0) }}", "poll": 1})
    assert hosts.task(played, "healthy").result["verdict"] == "pass", played.output
    for name, parts in SAYS.items():
        task = hosts.task(played, name)
        assert task.status == "failed", task
        assert [part for part in parts if part not in task.result["msg"]] == [], task
    assert hosts.task(played, "nolibrary").result["verdict"] == "unknown"
    assert hosts.task(played, "driver").result["document"]["problem"]["kind"] == "call-hung"
    assert (with_argument(mark), hosts.left()) == ([], [])


@pytest.mark.parametrize("printed", ["", '{"schema": "nodegauge.dev/probe-result"}'])
def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    """As in state D in the driver: here, signals do not arrive. Its document, if it wrote one, counts."""
    probe = module_of("host_probe", COLLECTION / "plugins" / "module_utils" / "probe.py")
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
    [process], [pid] = started, with_argument(mark)
    with process:  # which waits for it, and closes its pipes
        os.kill(pid, signal.SIGKILL)
    assert f"Process {pid} (" in message
    assert "cannot be killed: reboot the host" in message


def test_a_task_that_ansible_ends_takes_its_probe_along(hosts: GpuHosts) -> None:
    """Its keyword `timeout` removes the task's files; the module sees that."""
    mark = str(hosts.top / "mark")
    path = fake_archive(hosts.ansible.folder / "hang.pyz", HANG.format(mark=mark))
    hosts.add("host", "t4-1", options={"archive": str(path), "timeout": 600})
    hosts.add("real", "t4-1", options={"window": 40, "timeout": 600})
    played = hosts.play("gpu_health", timeout=12)  # long enough for both to begin
    assert [task.status for task in played.tasks] == ["failed", "failed"]
    wait_for(lambda: not with_argument(mark) and not hosts.left(), what="the probe and its files are gone")
