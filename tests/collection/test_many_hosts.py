"""Many hosts in one play: the right verdict for each, and whoever fails does so alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage
from testbed.hardware.plugged import Hardware, plug

VERDICT = "nodegauge.gpu.validate : Give the verdict"
OLD_PYTHON = """\
#!/bin/sh
echo "  File \\"<stdin>\\", line 1" >&2
echo "SyntaxError: future feature annotations is not defined" >&2
exit 1
"""
"""What every Python before 3.7 answers to a module."""
LOSES = """\
#!/bin/sh
for last; do :; done
case "$last" in
*bin/python*AnsiballZ_gpu_health*) timeout -s KILL 1 sh -c "$last" >/dev/null 2>&1; exit 255 ;;
esac
exec sh -c "$last"
"""
"""An ssh that runs commands here, and loses its connection while the probe reads."""


@dataclass(frozen=True)
class Planned:
    """A host: its machine and fault, how it is reached, and the verdict and cause that must follow."""

    profile: str
    verdict: str = "pass"
    cause: str = ""
    fault: str = ""
    reached: str = "local"


PLAN: dict[str, Planned] = {
    "h100-sxm-8": Planned("h100-sxm-8"),
    "t4-1": Planned("t4-1"),
    "gpu-lost": Planned("h800-sxm-8", "fail", "gpu-lost", "gpu-lost"),
    "one-link-less": Planned("h100-sxm-8-drv580", "warn", "nvlink-degraded", "link-down"),
    "hangs": Planned("p100-sxm-8", "unknown", "call-hung", "hung-call"),
    "no-driver": Planned("l40s-4", "unknown", "library-not-found", reached="no-driver"),
    "old-python": Planned("l40s-4", "unknown", "not-measured", reached="old-python"),
    "two-titans": Planned("titan-rtx-nv2"),
    "lost": Planned("titan-rtx-nv2", "unknown", "unreachable", reached="loses"),
    "away": Planned("titan-rtx-nv2", "unknown", "unreachable", reached="nobody-listens"),
}


NOBODY_LISTENS = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}


def plugged(folder: Path, *chosen: str) -> dict[str, Hardware]:
    """The chosen hosts' machines, all of them where none is named, with their faults."""
    result = {name: plug(PLAN[name].profile, folder / name, seed=name) for name in chosen or PLAN}
    for name, hardware in result.items():
        if PLAN[name].fault:
            hardware.fault(PLAN[name].fault)
    return result


def variables(folder: Path, hardware: Mapping[str, Hardware]) -> dict[str, dict[str, Any]]:
    """The inventory."""
    old = folder / "python3.6"
    old.write_text(OLD_PYTHON, encoding="utf-8")
    old.chmod(0o755)
    result: dict[str, dict[str, Any]] = {}
    for name, machine in hardware.items():
        planned, environment = PLAN[name], machine.env()
        if planned.reached == "no-driver":
            del environment["LD_LIBRARY_PATH"]
        result[name] = {"simulated": environment}
        if planned.reached == "nobody-listens":
            result[name] |= NOBODY_LISTENS
        if planned.reached == "old-python":
            result[name]["ansible_python_interpreter"] = str(old)
        if planned.reached == "loses":
            result[name] |= loses(folder)
        if name == "two-titans":
            result[name] |= {"validate_expected_interconnect": "nvlink", "validate_expected_model": "*TITAN*"}
        if planned.verdict == "pass":
            result[name]["validate_expected_gpus"] = machine.gpu_count
    return result


def loses(folder: Path) -> dict[str, Any]:
    """Variables of a host that is reached by LOSES."""
    program = folder / "ssh"
    program.write_text(LOSES, encoding="utf-8")
    program.chmod(0o755)
    return {
        "ansible_connection": "ssh",
        "ansible_ssh_executable": str(program),
        "ansible_ssh_transfer_method": "piped",
        "ansible_ssh_args": "",
    }


@pytest.fixture
def ansible(tmp_path: Path, host_archive: Path) -> Ansible:
    """ansible-core with the collection staged, and the archive in it."""
    stage(tmp_path, archive=host_archive)
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


def left(folder: Path) -> set[str]:
    """Files of modules and probes on the hosts."""
    return {
        str(path.relative_to(folder)) for name in ("remote", "tmp") for path in (folder / name).rglob("*")
    }


def test_each_host_gets_its_verdict_and_fails_alone(ansible: Ansible) -> None:
    """Also with a hung probe, without a driver, without a Python, and where nobody answers."""
    played = play(ansible, variables(ansible.folder, plugged(ansible.folder / "machines")))
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
    chosen = ("t4-1", "gpu-lost", "no-driver", "old-python")
    hosts = variables(ansible.folder, plugged(ansible.folder / "machines", *chosen))
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


def test_every_probe_runs_before_the_verdict(ansible: Ansible) -> None:
    """One that cannot measure accepts nothing, and says what it lacks; documents stay out of the output."""
    hosts = variables(ansible.folder, plugged(ansible.folder / "machines", "two-titans"))
    played = play(ansible, hosts, nccl=True, load=True, load_seconds=2)
    [row] = rows(ansible).values()
    assert set(row["probes"]) == {"health", "nccl", "load"}, played.output
    assert (row["probes"]["nccl"], row["verdict"]) == ("skipped", "unknown")
    assert "  1. With nccl-tests on the host" in played.task(VERDICT, "two-titans").result["msg"]
    assert len(played.output) < 12_000
