"""Many hosts in one play: the right verdict for each, and whoever fails does so alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage
from testbed.hardware import plug

NCCL_AND_LOAD = {"nccl": True, "load": True, "load_seconds": 2}
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
NOBODY_LISTENS = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
TITANS = {"validate_expected_interconnect": "nvlink", "validate_expected_model": "*TITAN*"}
PLAN: dict[str, tuple[str, str, str, str]] = {
    "h100-sxm-8": ("h100-sxm-8", "", "pass", ""),
    "t4-1": ("t4-1", "", "pass", ""),
    "two-titans": ("titan-rtx-nv2", "", "pass", ""),
    "benchmarks": ("titan-rtx-nv2", "", "unknown", "skipped"),
    "gpu-lost": ("h800-sxm-8", "gpu-lost", "fail", "gpu-lost"),
    "one-link-less": ("h100-sxm-8-drv580", "link-down", "warn", "nvlink-degraded"),
    "hangs": ("p100-sxm-8", "hung-call", "unknown", "call-hung"),
    "no-driver": ("l40s-4", "", "unknown", "library-not-found"),
    "old-python": ("l40s-4", "", "unknown", "not-measured"),
    "loses": ("titan-rtx-nv2", "", "unknown", "unreachable"),
    "away": ("titan-rtx-nv2", "", "unknown", "unreachable"),
}
"""By host: its machine and fault, and the verdict and cause that must follow."""


def hosts_of(folder: Path, *chosen: str) -> dict[str, dict[str, Any]]:
    """The inventory of the chosen hosts, all of them where none is named; how some are reached is in it."""
    for name, text in (("python3.6", OLD_PYTHON), ("ssh", LOSES)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    loses = {"connection": "ssh", "ssh_executable": str(folder / "ssh")}
    loses |= {"ssh_transfer_method": "piped", "ssh_args": "", "pipelining": False}
    more: dict[str, dict[str, Any]] = {
        "two-titans": TITANS,
        "benchmarks": {f"validate_{name}": value for name, value in NCCL_AND_LOAD.items()},
        "old-python": {"ansible_python_interpreter": str(folder / "python3.6")},
        "loses": {f"ansible_{name}": value for name, value in loses.items()},
        "away": NOBODY_LISTENS,
    }
    result: dict[str, dict[str, Any]] = {}
    for name in chosen or PLAN:
        profile, fault, verdict, _ = PLAN[name]
        machine = plug(profile, folder / "machines" / name, seed=name)
        if fault:
            machine.fault(fault)
        result[name] = {"simulated": machine.env(), **more.get(name, {})}
        if verdict == "pass":
            result[name]["validate_expected_gpus"] = machine.gpu_count
    if "no-driver" in result:
        del result["no-driver"]["simulated"]["LD_LIBRARY_PATH"]
    return result


@pytest.fixture
def ansible(tmp_path: Path, host_archive: Path) -> Ansible:
    """ansible-core with the collection staged, and the archive in it."""
    stage(tmp_path, archive=host_archive)
    for name in ("remote", "tmp"):
        (tmp_path / name).mkdir()
    return Ansible(tmp_path)


def play(ansible: Ansible, hosts: Mapping[str, Mapping[str, Any]], *options: str) -> Played:
    """The role on these hosts, with a report."""
    run = {"name": "run", "ansible.builtin.include_role": {"name": "nodegauge.gpu.validate"}}
    report = {"validate_report_dir": str(ansible.folder / "report")}
    one = {"hosts": "all", "gather_facts": False, "vars": report, "tasks": [run]}
    more = {"ANSIBLE_FORKS": "20", "ANSIBLE_REMOTE_TMP": str(ansible.folder / "remote")}
    more |= {"TMPDIR": str(ansible.folder / "tmp")}
    return ansible.play([one | {"environment": "{{ simulated }}"}], hosts, *options, more=more)


def rows(ansible: Ansible) -> dict[str, dict[str, Any]]:
    text = (ansible.folder / "report" / "report.json").read_text(encoding="utf-8")
    return {row["host"]: row for row in json.loads(text)["hosts"]}


def left(folder: Path) -> set[Path]:
    """Files of modules and probes on the hosts."""
    return {path for name in ("remote", "tmp") for path in (folder / name).rglob("*")}


def test_each_host_gets_its_verdict_and_fails_alone(ansible: Ansible) -> None:
    """Also with a hung probe, without a driver, without a Python, and where nobody answers.

    Every probe that was asked for runs before the verdict: one that cannot measure accepts nothing, and says
    what it lacks.  Documents stay out of the output.
    """
    played = play(ansible, hosts_of(ansible.folder))
    seen = rows(ansible)
    wanted = {name: (verdict, cause) for name, (_, _, verdict, cause) in PLAN.items()}
    causes = {name: row["cause"] for name, row in seen.items()}
    causes["benchmarks"] = causes["benchmarks"].partition(",")[0]  # then those of its load
    judged = {name: (row["verdict"], causes[name]) for name, row in seen.items()}
    assert judged == wanted, played.output
    for name, (verdict, _) in wanted.items():
        task = played.task(VERDICT, name)
        assert task.status == ("ok" if verdict in ("pass", "warn") else "failed")
        lines = task.result["msg"].splitlines()
        assert lines[0].startswith(f"{verdict.upper()} {name}")
        assert verdict == "pass" or any(line.startswith("  1. ") for line in lines), lines
    probes = seen["benchmarks"]["probes"]
    assert (probes.keys(), probes["nccl"]) == ({"health", "nccl", "load"}, "skipped")
    assert "  1. With nccl-tests on the host" in played.task(VERDICT, "benchmarks").result["msg"]
    assert len(played.output) < 3_000 * len(PLAN)
    assert "nodegauge.dev/probe-result" not in played.output


def test_a_second_run_and_check_mode_change_nothing(ansible: Ansible) -> None:
    """Not on the hosts, and not in the report; check mode writes none."""
    hosts = hosts_of(ansible.folder, "t4-1", "gpu-lost", "no-driver", "old-python")
    checked = play(ansible, hosts, "--check")
    assert not (ansible.folder / "report").exists()
    assert left(ansible.folder) == set(), checked.output
    first = play(ansible, hosts)
    assert {name: row["verdict"] for name, row in rows(ansible).items()} == {
        name: PLAN[name][2] for name in hosts
    }, first.output
    written = ("Create the folder of the report", "Write the page for people", "Write the page for programs")
    assert {task.name for task in first.changed} <= {f"nodegauge.gpu.report : {name}" for name in written}
    assert play(ansible, hosts).changed == []
    assert left(ansible.folder) == set()
