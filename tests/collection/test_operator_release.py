"""The module operator_release with a helm of the test's own; tests/cluster has the real one."""

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
    return {"version": 7, "info": {"status": status}, "manifest": manifest, "config": {}, "hooks": []} | more


OTHER = release(manifest="kind: B")
PENDING = release(status="pending-upgrade")
PULLING = release(info={"status": "deployed", "resources": {"v1/Pod(related)": [{"items": [POD]}]}})
UPGRADED, RENDERED = ["status", "render", "upgrade", "render", "status"], ["status", "render"]
ABSENT, WORKS_ON = {"state": "absent"}, ["helm rollback nodegauge --namespace nodegauge"]
WAITS = "pod ng-1, container operator: ImagePullBackOff: Back-off pulling image x"
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
Case = tuple[Release | str, Release | str, dict[str, Any], list[str] | None, bool | list[str]]
RELEASES: dict[str, Case] = {
    "equal": (release(config={"a": 1, "b": 2}), release(config={"b": 2, "a": 1}), {}, RENDERED, False),
    "objects": (release(), OTHER, {}, UPGRADED, True),
    "values": (release(), release(config={"a": 1}), {}, UPGRADED, True),
    "hooks": (release(), release(hooks=[HOOK]), {}, UPGRADED, True),
    "failed": (release(status="failed"), release(), {}, UPGRADED, True),
    "secret": (
        release(manifest=SECRET),
        release(manifest=SECRET.replace("hunter", "leaked") + "\n---\nkind: B", config={"workers": 9}),
        {},
        RENDERED,
        True,
    ),
    "pending": (PENDING, "", {}, ["status"], WORKS_ON),
    "pending, absent": (PENDING, "", ABSENT, ["status"], WORKS_ON),
    "none, absent": ("release: not found", "", ABSENT, ["status"], False),
    "pulling": (PULLING, "context deadline exceeded", {}, None, [WAITS]),
    "no helm": (
        release(),
        "",
        {"helm": "helm-that-nobody-has"},
        None,
        ["helm-that-nobody-has was not found"],
    ),
    **{name: (release(), case[0], {}, None, list(case)) for name, case in ERRORS.items()},
}
"""By host: what `helm status` and `helm upgrade` answer (text is helm's error), options of the task; what
helm was asked (a rendering is `render`); and whether the task changed something, or what its failure says."""
CHECKED = {"secret"}
"""Hosts in check mode, with the difference."""


def write_helm(folder: Path, **answers: Release | str) -> Path:
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
    for name, (status, rendered, options, *_) in RELEASES.items():
        helm = write_helm(folder / name, status=status, upgrade=rendered)
        hosts[name] = {"options": {"helm": str(helm), "chart": "chart"} | options, "checked": name in CHECKED}
    task = {"name": "release", "nodegauge.gpu.operator_release": "{{ options }}"}
    modes = {"check_mode": "{{ checked }}", "diff": "{{ checked }}"}
    return Ansible(folder).play([{"hosts": "all", "gather_facts": False, "tasks": [task | modes]}], hosts)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_upgraded_or_left_alone_or_explained(played: Played, folder: Path, name: str) -> None:
    *_, asked, outcome = RELEASES[name]
    task = played.task("release", name)
    assert task.status == ("failed" if isinstance(outcome, list) else "ok"), task
    if isinstance(outcome, list):
        assert [part for part in outcome if part not in task.result["msg"]] == []
    else:
        assert task.result["changed"] is outcome
    if asked is not None:
        lines = (folder / name / "asked").read_text().splitlines()
        assert ["render" if "--dry-run=server" in line else line.split()[0] for line in lines] == asked


def test_check_mode_shows_the_difference_and_hides_secrets(played: Played) -> None:
    difference = played.task("release", "secret").result["diff"]
    assert not re.search("hunter|leaked", json.dumps(difference))
    assert [text for text in ("kind: B", "Opaque", '"workers": 9') if text not in difference["after"]] == []
