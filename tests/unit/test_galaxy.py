"""The parts of `make collection`: what each of its checks finds, and what it says of what it cannot run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from galaxy import docs, environments
from galaxy.__main__ import Run, exit_code, table
from galaxy.commands import CheckFailed, Core, NotRun
from support.playbook import COLLECTION, TOOLS, stage

MODULE = """\
DOCUMENTATION = r'''
module: NAME
short_description: A module
description: [It does nothing.]
author: [somebody]
options:
  depth:
    type: int
    DESCRIPTION
'''
EXAMPLES = r'''
USAGE
'''
RETURN = ''
"""
WHOLE = {"DESCRIPTION": "description: How deep.", "USAGE": "- nodegauge.gpu.NAME:"}


@pytest.fixture
def core(tmp_path: Path) -> Core:
    """An ansible-core that sees an almost empty collection."""
    meta = tmp_path / "ansible_collections" / "nodegauge" / "gpu" / "meta"
    meta.mkdir(parents=True)
    (meta.parent / "galaxy.yml").write_text((COLLECTION / "galaxy.yml").read_text("utf-8"), encoding="utf-8")
    return Core(tmp_path, TOOLS, version="x")


def add_module(core: Core, name: str, **parts: str) -> Path:
    """A module with documentation; the collection's folder."""
    folder = core.folder / "ansible_collections" / "nodegauge" / "gpu"
    text = MODULE
    for word, value in {**WHOLE, **parts}.items():
        text = text.replace(word, value)
    file = folder / "plugins" / "modules" / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("NAME", name), encoding="utf-8")
    return folder


def test_a_documented_module_passes(core: Core) -> None:
    """And is counted."""
    assert docs.check(core, add_module(core, "whole")) == "1 of type module"


@pytest.mark.parametrize(
    ("parts", "file", "message"),
    [
        ({"USAGE": ""}, "", "module nodegauge.gpu.one: no examples"),
        ({"DESCRIPTION": "default: 1"}, "", "module nodegauge.gpu.one: option depth has no description"),
        ({}, "plugins/modules/bare.py", r"nodegauge\.gpu\.bare"),
        ({}, "roles/mine/tasks/main.yml", r"(?s)gpu.mine: .+no example uses nodegauge.gpu.mine"),
        ({}, "plugins/terminal/x.py", "plugins/terminal"),
    ],
    ids=["no example", "an option", "no documentation", "a role without a page", "an unknown kind of plugin"],
)
def test_what_its_reader_would_miss_fails_the_check(
    core: Core, parts: dict[str, str], file: str, message: str
) -> None:
    """Whatever it is, it is named; nobody has to list a new module anywhere."""
    folder = add_module(core, "one", **parts)
    if file:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    with pytest.raises(CheckFailed, match=message):
        docs.check(core, folder)


def test_what_comes_from_elsewhere_is_staged(tmp_path: Path) -> None:
    """The licence and the archive are in the repository once, or not at all."""
    archive = tmp_path / "built.pyz"
    archive.write_bytes(b"archive")
    folder = stage(tmp_path, archive=archive)
    assert (folder / "LICENSE").exists()
    assert (folder / "files" / "nodegauge-host.pyz").read_bytes() == b"archive"
    assert not (folder / "archive").exists()


def test_where_no_python_fits_the_check_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not run, which is no success either."""
    monkeypatch.setattr(environments, "interpreter", lambda version: None)
    with pytest.raises(NotRun, match=r"2\.16\.\d+ needs python3.11 or .*NODEGAUGE_PYTHONS"):
        environments.environment(environments.OLDEST, tmp_path)


def test_the_supported_versions_are_those_that_are_tested() -> None:
    """meta/runtime.yml begins at the oldest that `make collection` runs."""
    oldest = ".".join(environments.OLDEST.version.split(".")[:2])
    assert f'requires_ansible: ">={oldest}.0"' in (COLLECTION / "meta" / "runtime.yml").read_text("utf-8")
    newest = ".".join(environments.NEWEST.version.split(".")[:2])
    readme = (COLLECTION / "README.md").read_text("utf-8")
    assert f"ansible-core {oldest} to {newest}" in readme


def test_a_failure_stops_no_other_check_and_sets_the_exit_code(tmp_path: Path) -> None:
    """Each has its line in the table."""
    current = Run(tmp_path, tmp_path)

    def fail() -> str:
        raise CheckFailed("it is broken\nhere")

    def skip() -> str:
        raise NotRun("no python3.12")

    checked = [current.check("a", fail), current.check("b", skip), current.check("c", lambda: "")]
    assert checked == [False, False, True]
    shown = table(current.outcomes)
    assert all(word in shown for word in ("FAILED", "it is broken", "not run", "no python3.12", "ok"))
    some, required = (exit_code(current.outcomes[1:], required=required) for required in (False, True))
    assert (some, required) == (0, 1)
    assert exit_code(current.outcomes, required=False) == exit_code([], required=False) == 1


def documented_plugins() -> set[str]:
    """Paths of plugins with documentation in their Python file; that of a filter is a file of its own."""
    others = {"action", "doc_fragments", "filter", "module_utils", "plugin_utils"}
    files = [path for path in COLLECTION.glob("plugins/*/*.py") if path.parent.name not in others]
    return {path.relative_to(COLLECTION).as_posix() for path in files if path.stem != "__init__"}


def parts_of_the_collection() -> set[str]:
    """The names of all plugins, roles and playbooks that a user may name."""
    filters = list(COLLECTION.glob("plugins/filter/*.yml"))
    plugins = [COLLECTION / path for path in documented_plugins()]
    roles = [path for path in COLLECTION.glob("roles/*") if path.is_dir()]
    playbooks = list(COLLECTION.glob("playbooks/*.yml"))
    return {path.stem for path in (*filters, *plugins, *roles, *playbooks)}


def test_the_readme_names_every_part_and_no_other() -> None:
    """A reader finds there what there is."""
    readme = (COLLECTION / "README.md").read_text("utf-8")
    section = readme.partition("## What is in it")[2].partition("\n\n`")[0]
    rows = [
        line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and "---" not in line
    ][1:]
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == parts_of_the_collection()


def test_every_plugin_declines_the_header_of_another_licence() -> None:
    """In the file of each ansible-core that ansible-test reads."""
    expected = {f"{path} validate-modules:missing-gplv3-license" for path in documented_plugins()}
    files = sorted(COLLECTION.glob("tests/sanity/ignore-*.txt"))
    assert [path.stem for path in files] == [f"ignore-2.{minor}" for minor in range(16, 22)]
    assert [expected - set(path.read_text("utf-8").splitlines()) for path in files] == [set()] * 6
