"""Twenty hosts in one play: the right verdict for each, and whoever fails does so alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support import archive, sshd
from support.nccl_probe import environment_of, pids
from support.playbook import Ansible, Played, stage
from support.twenty_hosts import PLAN, plugged, variables

VERDICT = "nodegauge.gpu.validate : Give the verdict"


@pytest.fixture
def ansible(tmp_path: Path, host_archive: Path) -> Ansible:
    """ansible-core with the collection staged, and the archive in it."""
    files = stage(tmp_path) / "files"
    files.mkdir(exist_ok=True)
    shutil.copy(host_archive, files / "nodegauge-host.pyz")
    for name in ("remote", "tmp"):
        (tmp_path / name).mkdir()
    return Ansible(tmp_path)


def play(ansible: Ansible, hosts: Mapping[str, Mapping[str, Any]], *options: str, **role: Any) -> Played:
    """The role on these hosts, with a report."""
    report = {"report_dir": str(ansible.folder / "report")}
    run = {
        "name": "run",
        "ansible.builtin.include_role": {"name": "nodegauge.gpu.validate"},
        "vars": {f"validate_{name}": value for name, value in {**report, **role}.items()},
    }
    one = {"hosts": "all", "gather_facts": False, "environment": "{{ simulated }}", "tasks": [run]}
    more = {"ANSIBLE_FORKS": "20", "ANSIBLE_REMOTE_TMP": str(ansible.folder / "remote")}
    return ansible.play([one], hosts, *options, more={**more, "TMPDIR": str(ansible.folder / "tmp")})


def rows(ansible: Ansible) -> dict[str, dict[str, Any]]:
    text = (ansible.folder / "report" / "report.json").read_text(encoding="utf-8")
    return {row["host"]: row for row in json.loads(text)["hosts"]}


def of_machine(folder: Path) -> list[int]:
    """The processes that use this machine."""
    return [pid for pid in pids() if any(str(folder).encode() in entry for entry in environment_of(pid))]


@contextlib.contextmanager
def losing(connection: sshd.Sshd, machine: Path) -> Iterator[list[int]]:
    """Kill the connection as soon as a probe runs on this machine, once; then what is left of the probe."""
    over, lost = threading.Event(), []

    def watch() -> None:
        while not over.wait(0.05):
            probes = [pid for pid in of_machine(machine) if b"\0probe\0health" in command(pid)]
            if probes and not lost:
                time.sleep(0.2)  # the probe, not its start, loses its connection
                lost.append(connection.drop())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()
        for pid in of_machine(machine):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def left(folder: Path) -> set[str]:
    """Files of modules and probes on the hosts."""
    return {
        str(path.relative_to(folder)) for name in ("remote", "tmp") for path in (folder / name).rglob("*")
    }


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[dict[str, sshd.Sshd]]:
    """Two of them: one works, and one will lose its connection."""
    with contextlib.ExitStack() as stack:
        try:
            yield {
                name: stack.enter_context(sshd.running(tmp_path / f"sshd-{name}")) for name in ("ssh", "lost")
            }
        except sshd.NoSshd as error:
            pytest.skip(str(error))


def test_each_of_twenty_hosts_gets_its_verdict_and_fails_alone(
    ansible: Ansible, ssh: dict[str, sshd.Sshd], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with a hung probe, without a driver, without a Python, and when the connection is lost."""
    machines = ansible.folder / "machines"
    hardware = plugged(machines)
    hosts = variables(ansible.folder, hardware, {name: one.variables for name, one in ssh.items()})
    assert len(hosts) == 20
    with losing(ssh["lost"], machines / "connection-lost") as lost:
        started = time.monotonic()
        played = play(ansible, hosts)
        seconds = time.monotonic() - started
    with capsys.disabled():
        print(f"\n{len(hosts)} hosts in {seconds:.1f} s")
    assert lost, played.output
    seen = rows(ansible)
    assert {name: (seen[name]["verdict"], seen[name]["cause"]) for name in PLAN} == {
        name: (planned.verdict, planned.cause) for name, planned in PLAN.items()
    }, played.output
    ended = {task.host: task.status for task in played.tasks if task.name == VERDICT}
    assert ended == {
        name: "ok" if planned.verdict in ("pass", "warn") else "failed" for name, planned in PLAN.items()
    }
    for name, planned in PLAN.items():
        lines = played.task(VERDICT, name).result["msg"].splitlines()
        assert lines[0].startswith(f"{planned.verdict.upper()} {name}")
        assert planned.verdict == "pass" or any(line.startswith("  1. ") for line in lines), lines


def test_a_second_run_and_check_mode_change_nothing(ansible: Ansible) -> None:
    """Not on the hosts, and not in the report; check mode writes none."""
    hardware = plugged(ansible.folder / "machines")
    chosen = ("t4-1", "l40s-4", "gpu-lost", "no-driver", "old-python")
    everyone = variables(ansible.folder, hardware, {})
    hosts = {name: everyone[name] for name in chosen}
    checked = play(ansible, hosts, "--check", nccl=True)
    assert not (ansible.folder / "report").exists()
    assert left(ansible.folder) == set(), checked.output
    assert "not-run: Not run: check mode" in checked.task(VERDICT, "t4-1").result["msg"]
    first = play(ansible, hosts)
    assert {name: row["verdict"] for name, row in rows(ansible).items()} == {
        name: PLAN[name].verdict for name in chosen
    }, first.output
    assert {task.name for task in first.changed} <= {
        f"nodegauge.gpu.report : {name}"
        for name in (
            "Create the folder of the report",
            "Write the page for people",
            "Write the page for programs",
        )
    }
    assert play(ansible, hosts).changed == []
    assert left(ansible.folder) == set()


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_a_host_with_an_old_python_is_measured_or_says_so(ansible: Ansible, version: str) -> None:
    """3.9 is the oldest that the probe needs."""
    python = archive.interpreter(version)
    if python is None:
        pytest.skip(f"needs python{version} on PATH or in $NODEGAUGE_PYTHONS")
    hardware = plugged(ansible.folder / "machines")
    host = variables(ansible.folder, hardware, {})["t4-1"]
    played = play(ansible, {"t4-1": {**host, "ansible_python_interpreter": str(python)}})
    lines = played.task(VERDICT, "t4-1").result["msg"].splitlines()
    if version == "3.9":
        assert lines[0].startswith("PASS t4-1: 1x Tesla T4: healthy")
    else:
        assert lines[0].startswith("UNKNOWN t4-1 must not join: ")
        assert any("Python 3.9 or newer" in line for line in lines[1:])


def test_every_probe_runs_before_the_verdict(ansible: Ansible) -> None:
    """One that cannot measure accepts nothing, and says what it lacks; documents stay out of the output."""
    hardware = plugged(ansible.folder / "machines")
    hosts = {"over-ssh": variables(ansible.folder, hardware, {})["over-ssh"]}
    played = play(ansible, hosts, nccl=True, load=True, load_seconds=2)
    [row] = rows(ansible).values()
    assert set(row["probes"]) == {"health", "nccl", "load"}, played.output
    assert (row["probes"]["nccl"], row["verdict"]) == ("skipped", "unknown")
    assert "  1. With nccl-tests on the host" in played.task(VERDICT, "over-ssh").result["msg"]
    assert len(played.output) < 12_000
