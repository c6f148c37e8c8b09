"""`gpu_nccl` and `gpu_load` put load on GPUs: on idle hosts they measure, elsewhere they say why not."""

from typing import Any

from support.gpu_hosts import GpuHosts
from support.playbook import ROOT, Played

SIMULATED_NCCL = {"NODEGAUGE_NCCL_CHILD": str(ROOT / "tests/testbed/simulated_nccl/nccl")}
CHECKED: dict[str, Any] = {"check_mode": "{{ inventory_hostname == 'checked' }}"}


def is_left_alone_by_check_mode(hosts: GpuHosts, played: Played) -> bool:
    task = hosts.task(played, "checked")
    return task.status == task.result["verdict"] == "skipped" and "check mode" in task.result["skip_reason"]


def test_nccl_measures_idle_hosts_and_leaves_busy_ones_alone(hosts: GpuHosts) -> None:
    """Those in use or with one GPU give the reason."""
    for name, machine in {"idle": (), "slow": ("slow-link",), "busy": ("gpu-in-use",)}.items():
        hosts.add(name, "titan-rtx-nv2", *machine, environment=SIMULATED_NCCL)
    hosts.add("single", "t4-1", environment=SIMULATED_NCCL)
    hosts.add("engineless")
    hosts.add("unbuilt", options={"engine": "nccl-tests", "nccl_tests": "/nonexistent"})
    hosts.add("foreign", options={"nccl_variables": {"LD_PRELOAD": "x"}})
    hosts.add("checked", environment=SIMULATED_NCCL)
    played = hosts.play("gpu_nccl", **CHECKED)
    assert is_left_alone_by_check_mode(hosts, played)
    idle, slow = (hosts.task(played, name).result for name in ("idle", "slow"))
    assert (idle["verdict"], idle["busbw"]["all_reduce"] > 30) == ("pass", True)
    assert (idle["facts"]["gpu_count"], idle["facts"]["models"]) == (2, ["TITAN RTX"])
    assert slow["verdict"] in ("warn", "fail")
    assert slow["findings"][0]["steps"]
    for name, reason in (("busy", "in use"), ("single", "at least two")):
        task = hosts.task(played, name)
        assert (task.status, task.result["verdict"]) == ("ok", "skipped")
        assert reason in task.result["summary"]
    for name, way_out in {
        "engineless": "nccl-tests",
        "unbuilt": "/nonexistent",
        "foreign": "LD_PRELOAD",
    }.items():
        task = hosts.task(played, name)
        assert (task.status, way_out in task.result["msg"]) == ("failed", True), task.result
    assert (played.changed, hosts.left()) == ([], [])


def test_load_runs_on_idle_hosts_only(hosts: GpuHosts) -> None:
    hosts.add("idle", options={"seconds": 2})
    hosts.add("busy", "titan-rtx-nv2", "gpu-in-use", options={"seconds": 2})
    hosts.add("slow", options={"seconds": 2, "hz": 1})
    hosts.add("checked")
    played = hosts.play("gpu_load", **CHECKED)
    assert is_left_alone_by_check_mode(hosts, played)
    idle, busy, slow = (hosts.task(played, name) for name in ("idle", "busy", "slow"))
    assert (idle.status, idle.result["document"]["load"]["skipped"]) == ("ok", ""), idle.result
    assert (idle.result["verdict"] in ("pass", "warn", "no-load"), idle.result["tflops"] > 0) == (True, True)
    assert (busy.result["verdict"], "in use" in busy.result["summary"]) == ("skipped", True)
    assert (slow.status, "--hz" in slow.result["msg"]) == ("failed", True)
    assert (played.changed, hosts.left()) == ([], [])
