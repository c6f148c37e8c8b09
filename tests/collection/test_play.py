"""Ansible runs here, on simulated hosts."""

from __future__ import annotations

from support.playbook import Ansible


def test_a_play_of_the_test_environment_returns_each_tasks_result(ansible: Ansible) -> None:
    """The frame of the other tests: a host's own result is seen."""
    ask = {"name": "ask", "ansible.builtin.command": "echo {{ inventory_hostname }}"}
    played = ansible.play([{"hosts": "all", "gather_facts": False, "tasks": [ask]}], {"a": {}, "b": {}})
    assert played.code == 0, played.output
    assert {task.host: task.result["stdout"] for task in played.tasks} == {"a": "a", "b": "b"}
