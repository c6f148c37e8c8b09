"""`gpu_health` on simulated machines: verdicts, what it returns, and that it changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support import archive
from support.gpu_hosts import GpuHosts, tree
from support.playbook import Ansible, stage

QUICK = {"window": 0.2, "hz": 10}


@pytest.fixture
def hosts(tmp_path: Path, host_archive: Path) -> GpuHosts:
    """No hosts yet; the collection contains the archive."""
    stage(tmp_path / "controller", archive=host_archive)
    return GpuHosts(Ansible(tmp_path / "controller"), tmp_path / "hosts")


def test_each_machine_gets_its_own_verdict_and_nothing_changes(hosts: GpuHosts) -> None:
    """Healthy and faulty machines, also in check mode; the hosts' files are as before."""
    hosts.add("eight", "h100-sxm-8", options={**QUICK, "expected_gpus": 8})
    hosts.add("missing", "h100-sxm-8", options={**QUICK, "expected_gpus": 9})
    hosts.add("pair", options=QUICK)
    hosts.add("single", "t4-1", options=QUICK)
    hosts.add("refused", "titan-rtx-nv2", "p2p-refused", options=QUICK)
    hosts.add("busy", "t4-1", "gpu-in-use", options=QUICK)
    before = tree(hosts.top)
    for flags in ((), ("--check",)):
        played = hosts.play("gpu_health", *flags)
        assert (played.code, played.changed) == (0, []), played.output
        verdicts = {task.host: task.result["verdict"] for task in played.tasks}
        assert verdicts == {
            "eight": "pass",
            "missing": "fail",
            "pair": "pass",
            "single": "pass",
            "refused": "fail",
            "busy": "pass",
        }
        assert hosts.left() == []
        assert tree(hosts.top) == before
    facts = played.task("measure", "eight").result["facts"]
    assert (facts["gpu_count"], facts["models"], facts["interconnect"]) == (
        8,
        ["NVIDIA H100 80GB HBM3"],
        "nvlink",
    )
    assert facts["driver"].startswith("5")
    refused = played.task("measure", "refused").result
    assert refused["document"]["node"] == "refused"
    assert [finding["code"] for finding in refused["findings"]] == ["p2p-refused"]
    assert refused["judge_version"] == refused["probe_version"]


def test_steps_and_summary_are_those_of_the_command_line(hosts: GpuHosts) -> None:
    """`nodegauge judge` prints each step that the module returns."""
    hosts.add("refused", "titan-rtx-nv2", "p2p-refused", options=QUICK)
    result = hosts.task(hosts.play("gpu_health"), "refused").result
    file = hosts.ansible.folder / "result.json"
    file.write_text(json.dumps(result["document"]))
    command = [sys.executable, "-m", "nodegauge_cli", "judge", str(file)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    steps = [step for finding in result["findings"] for step in finding["steps"]]
    assert len(steps) >= 2
    for text in (result["summary"], *steps):
        assert "".join(text.split()) in "".join(printed.split())
    assert "\n" not in result["summary"]


def test_policy_and_history_decide_as_in_a_cluster(hosts: GpuHosts) -> None:
    """Expected GPUs of a whole policy object; a counter that grew since the earlier document."""
    machine = hosts.add("host", "a100-sxm-8", options=QUICK)
    earlier = hosts.task(hosts.play("gpu_health"), "host").result
    assert earlier["verdict"] == "pass"
    policy = {
        "kind": "GPUValidationPolicy",
        "metadata": {"name": "p"},
        "spec": {"nodeSelector": {}, "expectedGpus": 9},
    }
    hosts.variables["host"]["options"] = {**QUICK, "policy": policy}
    judged = hosts.task(hosts.play("gpu_health"), "host").result
    assert (judged["verdict"], [one["code"] for one in judged["findings"]]) == ("fail", ["gpu-lost"])
    machine.fault("nvlink-errors", gpu=1)
    before = earlier["document"]  # too fresh to be compared: five minutes older
    before["host"]["boottime_ms"] -= 300_000
    alone, compared = {**QUICK}, {**QUICK, "before": before}
    codes = []
    for options in (alone, compared):
        hosts.variables["host"]["options"] = options
        result = hosts.task(hosts.play("gpu_health"), "host").result
        codes.append([one["code"] for one in result["findings"]])
    assert codes == [[], ["nvlink-degraded"]]
    hosts.variables["host"]["options"] = {**QUICK, "policy": {"spec": {"thresholds": {"bogus": 1}}}}
    refused = hosts.task(hosts.play("gpu_health"), "host")
    assert refused.status == "failed"
    assert "bogus" in refused.result["msg"]


def test_a_kept_archive_is_written_once(hosts: GpuHosts) -> None:
    """Changed when it was missing or different, also as check mode's forecast; then never again."""
    hosts.add("host", options={**QUICK})
    kept = hosts.folder("host") / "kept.pyz"
    hosts.variables["host"]["options"] = {**QUICK, "keep_archive": str(kept)}
    seen = []
    for flags in (("--check",), (), ()):
        task = hosts.task(hosts.play("gpu_health", *flags), "host")
        seen.append((task.result["changed"], kept.exists(), task.result["verdict"]))
    kept.write_text("an older one")
    again = hosts.task(hosts.play("gpu_health"), "host")
    assert seen == [(True, False, "pass"), (True, True, "pass"), (False, True, "pass")]
    assert (again.result["changed"], kept.stat().st_size > 100_000) == (True, True)
    assert hosts.left() == []
    hosts.variables["host"]["options"] = {**QUICK, "keep_archive": str(hosts.folder("host"))}
    folder = hosts.task(hosts.play("gpu_health"), "host")
    assert (folder.status, "is a folder" in folder.result["msg"]) == ("failed", True)


def test_a_missing_archive_is_one_clear_error(hosts: GpuHosts) -> None:
    """It names the file and the ways to get it; a wrong `archive` says that it is on the controller."""
    (hosts.ansible.folder / "ansible_collections/nodegauge/gpu/files/nodegauge-host.pyz").unlink()
    hosts.add("host", options=QUICK)
    hosts.add("named", options={"archive": "/nonexistent/archive.pyz"})
    played = hosts.play("gpu_health")
    host, named = (hosts.task(played, name) for name in ("host", "named"))
    assert (host.status, named.status) == ("failed", "failed")
    assert "make collection" in host.result["msg"]
    assert "install the released collection" in host.result["msg"]
    assert "/nonexistent/archive.pyz is no file on the controller" in named.result["msg"]


def test_every_python_that_the_archive_supports_measures(hosts: GpuHosts) -> None:
    """The host's own Python runs it, whatever the controller's is."""
    for version in archive.PYTHONS:
        if (python := archive.interpreter(version)) is not None:
            hosts.add(f"python-{version}", options=QUICK, ansible_python_interpreter=str(python))
    played = hosts.play("gpu_health")
    for name in hosts.variables:
        task = hosts.task(played, name)
        assert (task.status, task.result.get("verdict")) == ("ok", "pass"), task.result


def test_it_works_with_pipelining_and_as_an_unprivileged_user(hosts: GpuHosts) -> None:
    """The other user can read the archive, and nothing stays in either folder."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() or not shutil.which("su") or system is None:
        pytest.skip("becoming another user needs root, su, and a Python that every user may run")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own is closed to other users
        Path(folder).chmod(0o755)
        hosts = GpuHosts(hosts.ansible, Path(folder))
        hosts.add("pipelined", options=QUICK, ansible_pipelining=True)
        become = {
            "become": True,
            "become_method": "su",
            "become_user": "nobody",
            "become_flags": "-s /bin/sh",
        }
        more = {f"ansible_{key}": value for key, value in become.items()}
        machine = hosts.add("nobody", options=QUICK, ansible_python_interpreter=system, **more)
        driver = hosts.folder("nobody") / "driver"
        shutil.copytree(machine.env()["LD_LIBRARY_PATH"], driver)
        hosts.variables["nobody"]["simulated"]["LD_LIBRARY_PATH"] = str(driver)
        played = hosts.play("gpu_health")
        for name in ("pipelined", "nobody"):
            assert hosts.task(played, name).result.get("verdict") == "pass", played.output
        assert hosts.left() == []
