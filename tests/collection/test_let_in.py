"""Let in after repair: a host with a fault stays out, is repaired, measured again, and joins closed."""

from pathlib import Path
from typing import Any

from nodegauge_operator import names
from support.gpu_hosts import GpuHosts
from support.playbook import Played
from testbed.hardware import Hardware

JOIN = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n"
MARK = "has joined"


def play(hosts: GpuHosts) -> Played:
    """Both roles, and in place of `kubeadm join` a file that says that it ran."""
    roles = [{"role": f"nodegauge.gpu.{name}"} for name in ("validate", "join_gate")]
    joined = {"ansible.builtin.copy": {"content": "", "dest": "{{ joined }}"}}
    whole = {"hosts": "all", "gather_facts": False, "environment": "{{ simulated }}", "roles": roles}
    return hosts.ansible.play([whole | {"tasks": [joined]}], hosts.variables)


def add(hosts: GpuHosts, name: str, *faults: str) -> tuple[Hardware, Path]:
    hardware = hosts.add(name, "h100-sxm-8", *faults)
    config = hosts.folder(name) / "join.yaml"
    config.write_text(JOIN)
    own: dict[str, Any] = {"joined": str(hosts.folder(name) / MARK), "validate_expected_gpus": 8}
    hosts.variables[name] |= own | {"join_gate_kubeadm_config": str(config)}
    return hardware, config


def test_a_host_that_was_repaired_is_let_in(hosts: GpuHosts) -> None:
    """While it fails, join_gate writes nothing and nothing joins; the sound host beside it does at once."""
    sick = {fault: add(hosts, fault, fault) for fault in ("gpu-lost", "gpus-hidden")}
    add(hosts, "sound")
    refused = play(hosts)
    verdicts = {task.host: task.status for task in refused.tasks if task.name.endswith("Give the verdict")}
    assert verdicts == dict.fromkeys(sick, "failed") | {"sound": "ok"}, refused.output
    assert (refused.code, [config.read_text() for _, config in sick.values()]) == (2, [JOIN] * 2)
    assert [(hosts.folder(name) / MARK).exists() for name in (*sick, "sound")] == [False, False, True]
    for hardware, _ in sick.values():
        hardware.heal()
    accepted = play(hosts)
    assert accepted.code == 0, accepted.output
    assert all(names.TAINT_UNVALIDATED in config.read_text() for _, config in sick.values())
    assert all((hosts.folder(name) / MARK).exists() for name in (*sick, "sound"))
    assert {task.host for task in accepted.changed} == sick.keys()
