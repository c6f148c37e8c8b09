"""The module operator_release with a helm of the test's own; tests/cluster has the real one."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage

Release = dict[str, Any]
SECRET = 'kind: Secret\nstringData:\n  token: "hunter2"\n\n  more: |\n    hunter3\ntype: Opaque\n'
HOOK = {"kind": "Job", "name": "j", "manifest": "m", "path": "p"}
WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}}
POD = {
    "metadata": {"name": "ng-1"},
    "status": {"containerStatuses": [{"name": "operator", "state": WAITING}]},
}


def release(*, status: str = "deployed", manifest: str = "kind: A", **more: Any) -> Release:
    """A release as `helm status` prints it."""
    return {"version": 7, "info": {"status": status}, "manifest": manifest, "config": {}, "hooks": []} | more


OTHER = release(manifest="kind: B")
PENDING = release(status="pending-upgrade")
PULLING = release(info={"status": "deployed", "resources": {"v1/Pod(related)": [{"items": [POD]}]}})
ERRORS = {
    "unreachable": ("kubernetes cluster unreachable: dial tcp: connection refused", "Check the kubeconfig"),
    "forbidden": ('nodes is forbidden: User "x" cannot list resource', "cluster-admin"),
    "conflict": ('conflict with "kubectl-edit" using v1: .spec.mode', "--force-conflicts"),
    "schema": ("values don't meet the specifications of the schema(s)", "Correct the values"),
    "job": (
        "post-upgrade hooks failed: job nodegauge-policy failed",
        "kubectl logs --namespace nodegauge job/",
    ),
}
"""Helm's error, and the way out of it."""
RELEASES: dict[str, tuple[Release | str, Release | str, dict[str, Any]]] = {
    "equal": (release(config={"a": 1, "b": 2}), release(config={"b": 2, "a": 1}), {}),
    "objects": (release(), OTHER, {}),
    "values": (release(), release(config={"a": 1}), {}),
    "hooks": (release(), release(hooks=[HOOK]), {}),
    "failed": (release(status="failed"), release(), {}),
    "secret": (
        release(manifest=SECRET),
        release(manifest=SECRET.replace("hunter", "leaked") + "\n---\nkind: B", config={"workers": 9}),
        {},
    ),
    "pending": (PENDING, "", {}),
    "pending, absent": (PENDING, "", {"state": "absent"}),
    "none, absent": ("release: not found", "", {"state": "absent"}),
    "pulling": (PULLING, "context deadline exceeded", {}),
    "no helm": (release(), "", {"helm": "helm-that-nobody-has"}),
    **{name: (release(), error, {}) for name, (error, _) in ERRORS.items()},
}
"""By host: what `helm status` and `helm upgrade` answer (text is helm's error), and options of the task."""
CHECKED = {"secret"}
"""Hosts in check mode, with the difference."""


def write_helm(folder: Path, **answers: Release | str) -> Path:
    """A helm that gives these answers to its verbs, and writes down what it was asked."""
    folder.mkdir()
    lines = ["#!/bin/sh", f"echo $@ >> {shlex.quote(str(folder / 'asked'))}", "case $1 in"]
    for verb, answer in answers.items():
        failing = f"echo {shlex.quote(f'Error: {answer}')} >&2; exit 1"
        done = failing if isinstance(answer, str) else f"printf %s {shlex.quote(json.dumps(answer))}"
        lines.append(f"{verb}) {done};;")
    program = folder / "helm"
    program.write_text("\n".join([*lines, "esac", ""]))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def played(folder: Path) -> Played:
    stage(folder)
    hosts = {}
    for name, (status, rendered, options) in RELEASES.items():
        helm = write_helm(folder / name, status=status, upgrade=rendered)
        hosts[name] = {"options": {"helm": str(helm), "chart": "chart"} | options, "checked": name in CHECKED}
    task = {"name": "release", "nodegauge.gpu.operator_release": "{{ options }}"}
    modes = {"check_mode": "{{ checked }}", "diff": "{{ checked }}"}
    return Ansible(folder).play([{"hosts": "all", "gather_facts": False, "tasks": [task | modes]}], hosts)


def asked(folder: Path, name: str) -> list[str]:
    """Helm's verbs, in order; a rendering is `render`."""
    lines = (folder / name / "asked").read_text().splitlines()
    return ["render" if "--dry-run=server" in line else line.split()[0] for line in lines]


def message(played: Played, name: str) -> str:
    task = played.task("release", name)
    assert task.status == "failed", task
    return str(task.result["msg"])


def test_an_equal_release_is_left_alone(played: Played, folder: Path) -> None:
    """Nothing is upgraded; the order of values plays no part."""
    task = played.task("release", "equal")
    assert (task.status, task.result["changed"]) == ("ok", False)
    assert asked(folder, "equal") == ["status", "render"]


@pytest.mark.parametrize("name", ["objects", "values", "hooks", "failed"])
def test_each_difference_upgrades(played: Played, folder: Path, name: str) -> None:
    """Objects, values and hooks are compared; a release whose last upgrade failed is upgraded again."""
    assert played.task("release", name).result["changed"]
    assert asked(folder, name) == ["status", "render", "upgrade", "render", "status"]


def test_check_mode_shows_the_difference_and_hides_secrets(played: Played, folder: Path) -> None:
    """It upgrades nothing; what a Secret holds is in no diff, what differs elsewhere is."""
    result = played.task("release", "secret").result
    assert (result["changed"], asked(folder, "secret")) == (True, ["status", "render"])
    assert not re.search("hunter|leaked", json.dumps(result["diff"]))
    assert [
        text for text in ("kind: B", "Opaque", '"workers": 9') if text not in result["diff"]["after"]
    ] == []


@pytest.mark.parametrize("name", ["pending", "pending, absent"])
def test_a_release_that_helm_works_on_is_left_to_it(played: Played, folder: Path, name: str) -> None:
    """The message says how to end an operation whose Helm was killed."""
    assert "helm rollback nodegauge --namespace nodegauge" in message(played, name)
    assert asked(folder, name) == ["status"]


@pytest.mark.parametrize("name", ERRORS)
def test_helms_error_comes_with_what_to_do(played: Played, name: str) -> None:
    """Helm's words, and the way out."""
    assert [part for part in ERRORS[name] if part not in message(played, name)] == []


def test_what_pods_wait_for_is_said(played: Played) -> None:
    """Of all reasons, that which a person would look up first."""
    waits = "pod ng-1, container operator: ImagePullBackOff: Back-off pulling image x"
    assert waits in message(played, "pulling")


def test_a_missing_helm_is_named(played: Played) -> None:
    """The task says which program it looked for and where to name another."""
    assert message(played, "no helm").startswith("The program helm-that-nobody-has was not found")


def test_absence_is_reached_once(played: Played, folder: Path) -> None:
    """Without a release nothing is removed."""
    task = played.task("release", "none, absent")
    assert (task.status, task.result["changed"], task.result["release"]) == ("ok", False, {})
    assert asked(folder, "none, absent") == ["status"]
