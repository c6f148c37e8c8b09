"""`gpu_health` on simulated machines: verdicts, what it returns, and that it changes nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import archive
from support.gpu_hosts import QUICK, GpuHosts, staged, tree
from support.playbook import Ansible, Played
from support.validated import health, host

MACHINES: dict[str, tuple[str, tuple[str, ...], dict[str, Any], str]] = {
    "eight": ("h100-sxm-8", (), {"expected_gpus": 8}, "pass"),
    "missing": ("h100-sxm-8", (), {"expected_gpus": 9}, "fail"),
    "pair": ("titan-rtx-nv2", (), {}, "pass"),
    "single": ("t4-1", (), {}, "pass"),
    "refused": ("titan-rtx-nv2", ("p2p-refused",), {}, "fail"),
    "busy": ("t4-1", ("gpu-in-use",), {}, "pass"),
}
"""By host: machine, faults, options of the task, and the verdict."""
CHECKED = ("eight", "refused", "pipelined", "nobody")
"""Hosts that are measured in check mode too."""
BECOME = {"method": "su", "user": "nobody", "flags": "-s /bin/sh"}


@dataclass(frozen=True)
class Measured:
    """What a play in check mode, and one without, said; the hosts' files were `before` and `after` them."""

    hosts: GpuHosts
    plays: tuple[Played, Played]
    before: dict[str, str]
    after: dict[str, str]

    def result(self, name: str) -> dict[str, Any]:
        return self.plays[1].task("measure", name).result


def add_nobody(hosts: GpuHosts) -> None:
    """A host that the task works on as another user, if this machine allows it."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() or not shutil.which("su") or system is None:
        return
    more = {"ansible_become": True, **{f"ansible_become_{key}": value for key, value in BECOME.items()}}
    machine = hosts.add("nobody", options=QUICK, ansible_python_interpreter=system, **more)
    driver = hosts.folder("nobody") / "driver"
    shutil.copytree(machine.env()["LD_LIBRARY_PATH"], driver)
    hosts.variables["nobody"]["simulated"]["LD_LIBRARY_PATH"] = str(driver)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, host_archive: Path) -> Iterator[Measured]:
    controller = staged(tmp_path_factory.mktemp("measured"), host_archive).ansible
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own is closed to other users
        Path(folder).chmod(0o755)
        hosts = GpuHosts(controller, Path(folder))
        for name, (machine, faults, options, _) in MACHINES.items():
            hosts.add(name, machine, *faults, options=QUICK | options)
        for version in archive.PYTHONS:
            if (python := archive.interpreter(version)) is not None:
                hosts.add(f"python-{version}", options=QUICK, ansible_python_interpreter=str(python))
        hosts.add("pipelined", options=QUICK, ansible_pipelining=True)
        add_nobody(hosts)
        before = tree(hosts.top)
        plays = hosts.play("gpu_health", "--check", "--limit", ",".join(CHECKED)), hosts.play("gpu_health")
        yield Measured(hosts, plays, before, tree(hosts.top))


def test_each_host_gets_its_own_verdict_and_nothing_changes(measured: Measured) -> None:
    wanted = dict.fromkeys(measured.hosts.variables, "pass")
    wanted |= {name: verdict for name, (_, _, _, verdict) in MACHINES.items()}
    for played in measured.plays:
        assert (played.code, played.changed) == (0, []), played.output
        hosts = CHECKED if played is measured.plays[0] else wanted
        seen = {task.host: task.result["verdict"] for task in played.tasks}
        assert seen == {host: verdict for host, verdict in wanted.items() if host in hosts}
    assert (measured.after, measured.hosts.left()) == (measured.before, [])


def codes_of(result: dict[str, Any]) -> list[str]:
    """Codes of what was found on the simulated GPUs; the clock is this machine's."""
    codes = [finding["code"] for finding in result["findings"]]
    return [code for code in codes if code != "clock-unsynchronised"]


def test_a_host_returns_facts_findings_and_its_document(measured: Measured) -> None:
    facts = measured.result("eight")["facts"]
    seen = (facts["gpu_count"], facts["models"], facts["interconnect"], facts["driver"][0])
    assert seen == (8, ["NVIDIA H100 80GB HBM3"], "nvlink", "5")
    refused = measured.result("refused")
    assert refused["document"]["node"] == "refused"
    assert codes_of(refused) == ["p2p-refused"]
    assert refused["judge_version"] == refused["probe_version"]


def test_policy_and_history_decide_as_in_a_cluster(hosts: GpuHosts) -> None:
    """Expected GPUs of a whole policy object; a counter that grew since the earlier document."""
    machine = hosts.add("alone", "a100-sxm-8", options=QUICK)
    earlier = hosts.task(hosts.play("gpu_health"), "alone").result
    machine.fault("nvlink-errors", gpu=1)
    before = earlier["document"]  # too fresh to be compared: five minutes older
    before["host"]["boottime_ms"] -= 300_000
    spec = {"nodeSelector": {}, "expectedGpus": 9}
    for name, options in {
        "compared": {"before": before},
        "expects": {"policy": {"kind": "GPUValidationPolicy", "metadata": {"name": "p"}, "spec": spec}},
        "bogus": {"policy": {"spec": {"thresholds": {"bogus": 1}}}},
    }.items():  # the same machine, read with other options
        hosts.variables[name] = hosts.variables["alone"] | {"options": QUICK | options}
    played = hosts.play("gpu_health")
    results = {name: hosts.task(played, name).result for name in ("alone", "compared", "expects")}
    assert {name: codes_of(result) for name, result in results.items()} == {
        "alone": [],
        "compared": ["nvlink-errors"],
        "expects": ["gpu-lost"],
    }
    assert (earlier["verdict"], results["expects"]["verdict"]) == ("pass", "fail")
    refused = hosts.task(played, "bogus")
    assert (refused.status, "bogus" in refused.result["msg"]) == ("failed", True)


def test_a_kept_archive_is_written_once(hosts: GpuHosts) -> None:
    """Changed when it was missing or different, also as check mode's forecast."""
    for name in ("new", "older", "folder"):
        hosts.add(name)
        kept = hosts.folder(name) if name == "folder" else hosts.folder(name) / "kept.pyz"
        hosts.variables[name]["options"] = {**QUICK, "keep_archive": str(kept)}
    (hosts.folder("older") / "kept.pyz").write_text("an older one")
    kept, seen = hosts.folder("new") / "kept.pyz", []
    for flags in (("--check",), (), ()):
        played = hosts.play("gpu_health", *flags)
        new, older, folder = (hosts.task(played, name) for name in ("new", "older", "folder"))
        seen.append((new.result["changed"], older.result["changed"], kept.exists(), new.result["verdict"]))
        assert (folder.status, "is a folder" in folder.result["msg"]) == ("failed", True)
    assert seen == [(True, True, False, "pass"), (True, True, True, "pass"), (False, False, True, "pass")]
    assert (hosts.folder("older") / "kept.pyz").read_bytes() == kept.read_bytes() != b""
    assert hosts.left() == []


def test_a_missing_archive_is_one_clear_error(hosts: GpuHosts) -> None:
    """A wrong `archive` says that it is on the controller."""
    (hosts.ansible.folder / "ansible_collections/nodegauge/gpu/files/nodegauge-host.pyz").unlink()
    hosts.add("host", options=QUICK)
    hosts.add("named", options={"archive": "/nonexistent/archive.pyz"})
    played = hosts.play("gpu_health")
    host, named = (hosts.task(played, name) for name in ("host", "named"))
    assert (host.status, named.status) == ("failed", "failed")
    assert "make tarball" in host.result["msg"]
    assert "install the released collection" in host.result["msg"]
    assert "/nonexistent/archive.pyz is no file on the controller" in named.result["msg"]


def test_a_group_sets_defaults_of_its_modules(roles: Ansible) -> None:
    """Those of `gpu` reach the probes, those of `cluster` do not."""
    tasks = [
        {
            "name": group,
            "nodegauge.gpu.gpu_health": {},
            "module_defaults": {f"group/nodegauge.gpu.{group}": {"archive": "/other.pyz"}},
        }
        for group in ("gpu", "cluster")
    ]
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
    played = roles.play([play], {"a": host(roles.folder, "a", gpu_health=health())})
    given = [played.task(group, "a").result["asked"] for group in ("gpu", "cluster")]
    assert given == [{"archive": "/other.pyz"}, {}]
