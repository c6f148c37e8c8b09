"""The module operator_release with a helm of the test's own; tests/cluster has the real one."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.playbook import Ansible, Played, stage

Release = dict[str, Any]
Case = tuple[Release | str, Release | str, dict[str, Any], list[str] | None, bool | list[str]]
GIVEN = yaml.safe_load(Path(__file__).with_name("operator-releases.yaml").read_text("utf-8"))
RELEASES: dict[str, Case] = GIVEN["releases"] | {
    name: ({}, error, {}, None, [error, way_out]) for name, (error, way_out) in GIVEN["errors"].items()
}
USUAL = {"version": 7, "info": {"status": "deployed"}, "manifest": "kind: A", "config": {}, "hooks": []}
CHECKED = {"secret"}
"""Hosts in check mode, with the difference."""


def write_helm(folder: Path, **answers: Release | str) -> Path:
    folder.mkdir()
    lines = ["#!/bin/sh", f"echo $@ >> {shlex.quote(str(folder / 'asked'))}", "case $1 in"]
    for verb, answer in answers.items():
        failing = f"echo {shlex.quote(f'Error: {answer}')} >&2; exit 1"
        done = failing if isinstance(answer, str) else f"printf %s {shlex.quote(json.dumps(USUAL | answer))}"
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
