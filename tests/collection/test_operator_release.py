"""The module operator_release with a helm of the test's own; tests/cluster has the real one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Task

Release = dict[str, Any]
SECRET = """kind: Secret
metadata: {name: s}
stringData:
  token: "hunter2"

  more: |
    hunter3
type: Opaque
"""
HOOK = {"kind": "Job", "name": "j", "manifest": "m", "path": "p"}


def release(*, status: str = "deployed", manifest: str = "kind: A", values: Release | None = None) -> Release:
    """A release as `helm status` prints it."""
    return {
        "version": 7,
        "info": {"status": status},
        "manifest": manifest,
        "config": values or {},
        "hooks": [],
    }


def run(
    ansible: Ansible, *options: str, status: Release | str, rendered: Release | str = "", **wanted: Any
) -> Task:
    """The module's task, and in helm.log what it asked of helm; text instead of a release is helm's error."""
    program = ansible.folder / "helm"
    lines = ["#!/bin/sh", f"echo $@ >> {shlex.quote(str(ansible.folder / 'helm.log'))}", "case $1 in"]
    for verb, answer in (("status", status), ("upgrade", rendered)):
        failing = f"echo {shlex.quote('Error: ' + str(answer))} >&2; exit 1"
        done = failing if isinstance(answer, str) else f"printf %s {shlex.quote(json.dumps(answer))}"
        lines.append(f"{verb}) {done};;")
    program.write_text("\n".join([*lines, "esac", ""]))
    program.chmod(0o755)
    options_of = {"helm": str(program), "chart": "chart"} | wanted
    task = {"name": "release", "nodegauge.gpu.operator_release": options_of}
    return ansible.play([{"hosts": "all", "gather_facts": False, "tasks": [task]}], {"a": {}}, *options).task(
        "release", "a"
    )


def asked(ansible: Ansible) -> list[str]:
    """Helm's verbs, in order; a rendering is `render`."""
    lines = (ansible.folder / "helm.log").read_text().splitlines()
    return ["render" if "--dry-run=server" in line else line.split()[0] for line in lines]


def test_an_equal_release_is_left_alone(ansible: Ansible) -> None:
    """Nothing is upgraded; the order of values plays no part."""
    task = run(ansible, status=release(values={"a": 1, "b": 2}), rendered=release(values={"b": 2, "a": 1}))
    assert (task.status, task.result["changed"]) == ("ok", False)
    assert asked(ansible) == ["status", "render"]


@pytest.mark.parametrize(
    "rendered",
    [release(manifest="kind: B"), release(values={"a": 1}), release() | {"hooks": [HOOK]}],
    ids=["objects", "values", "hooks"],
)
def test_each_difference_upgrades(ansible: Ansible, rendered: Release) -> None:
    """Objects, values and hooks are compared."""
    assert run(ansible, status=release(), rendered=rendered).result["changed"]
    assert asked(ansible) == ["status", "render", "upgrade", "render", "status"]


def test_a_failed_release_is_upgraded_though_nothing_differs(ansible: Ansible) -> None:
    """The last upgrade did not end well: it is made again."""
    assert run(ansible, status=release(status="failed"), rendered=release()).result["changed"]


def test_check_mode_only_renders(ansible: Ansible) -> None:
    """It says `changed` and upgrades nothing."""
    task = run(ansible, "--check", status=release(), rendered=release(manifest="kind: B"))
    assert task.result["changed"]
    assert asked(ansible) == ["status", "render"]


def test_the_difference_hides_secrets(ansible: Ansible) -> None:
    """What a Secret holds is in no diff; what differs elsewhere is."""
    new = SECRET.replace("hunter", "leaked")
    rendered = release(manifest=f"{new}\n---\nkind: B", values={"workers": 9})
    task = run(ansible, "--check", "--diff", status=release(manifest=SECRET), rendered=rendered)
    text = json.dumps(task.result["diff"])
    assert "hunter" not in text
    assert "leaked" not in text
    assert "kind: B" in task.result["diff"]["after"]
    assert "Opaque" in task.result["diff"]["after"]
    assert '"workers": 9' in task.result["diff"]["after"]


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_release_that_helm_works_on_is_left_to_it(ansible: Ansible, state: str) -> None:
    """The message says how to end an operation whose Helm was killed."""
    task = run(ansible, status=release(status="pending-upgrade"), state=state)
    assert task.status == "failed"
    assert "helm rollback nodegauge --namespace nodegauge" in task.result["msg"]
    assert asked(ansible) == ["status"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("kubernetes cluster unreachable: dial tcp: connection refused", "Check the kubeconfig"),
        ('nodes is forbidden: User "x" cannot list resource', "cluster-admin"),
        ('conflict with "kubectl-edit" using v1: .spec.mode', "--force-conflicts"),
        ("values don't meet the specifications of the schema(s)", "Correct the values"),
        ("post-upgrade hooks failed: job nodegauge-policy failed", "kubectl logs --namespace nodegauge job/"),
    ],
)
def test_helms_error_comes_with_what_to_do(ansible: Ansible, error: str, advice: str) -> None:
    """Helm's words, and the way out."""
    message = run(ansible, status=release(), rendered=error).result["msg"]
    assert error in message
    assert advice in message


def test_what_pods_wait_for_is_said(ansible: Ansible) -> None:
    """Of all reasons, that which a person would look up first."""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}}
    pod = {
        "metadata": {"name": "ng-1"},
        "status": {"containerStatuses": [{"name": "operator", "state": waiting}]},
    }
    status = release()
    status["info"]["resources"] = {"v1/Pod(related)": [{"items": [pod]}]}
    message = run(ansible, status=status, rendered="context deadline exceeded").result["msg"]
    assert "pod ng-1, container operator: ImagePullBackOff: Back-off pulling image x" in message


def test_a_missing_helm_is_named(ansible: Ansible) -> None:
    """The task says which program it looked for and where to name another."""
    message = run(ansible, status=release(), helm="helm-that-nobody-has").result["msg"]
    assert message.startswith("The program helm-that-nobody-has was not found")


def test_absence_is_reached_once(ansible: Ansible, tmp_path: Path) -> None:
    """Without a release nothing is removed."""
    task = run(ansible, status="release: not found", state="absent")
    assert (task.status, task.result["changed"], task.result["release"]) == ("ok", False, {})
    assert asked(ansible) == ["status"]
