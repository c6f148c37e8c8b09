"""The parts of `make collection`: what each of its checks finds, and what it says of what it cannot run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from galaxy import checks, environments
from galaxy.__main__ import Run, exit_code, table
from galaxy.commands import CheckFailed, Core, NotRun
from support.playbook import COLLECTION, TOOLS

pytestmark = pytest.mark.slow
MODULE = """\
DOCUMENTATION = r'''
module: whole
short_description: A module
description: [It does nothing.]
author: [somebody]
options:
  depth:
    type: int
    description: How deep.
'''
EXAMPLES = r'''
- nodegauge.gpu.whole:
'''
RETURN = ''
"""
WHOLE = "plugins/modules/whole.py"
LACKING = {
    "no examples": (
        WHOLE,
        MODULE.replace("- nodegauge.gpu.whole:", ""),
        "module nodegauge.gpu.whole: no exa",
    ),
    "an option": (
        WHOLE,
        MODULE.replace("description: How", "default: 1 #"),
        "option depth has no description",
    ),
    "no page": ("plugins/modules/bare.py", "X = 1\n", r"nodegauge\.gpu\.bare"),
    "an empty role": ("roles/mine/tasks/main.yml", "", r"(?s)role nodegauge.gpu.mine: .+no example uses"),
    "an unknown type": ("plugins/terminal/x.py", "", "plugins/terminal"),
}
"""A file of the collection, and what the check says of it."""


@pytest.fixture
def core(tmp_path: Path) -> Core:
    """An ansible-core that sees a collection of one documented module."""
    core = Core(tmp_path, TOOLS, version="x")
    (core.collection / "meta").mkdir(parents=True)
    (core.collection / "galaxy.yml").write_text((COLLECTION / "galaxy.yml").read_text("utf-8"))
    add_file(core, WHOLE, MODULE)
    return core


def add_file(core: Core, name: str, text: str) -> None:
    file = core.collection / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_a_documented_module_passes(core: Core) -> None:
    assert checks.check_docs(core, core.collection) == "1 of type module"


@pytest.mark.parametrize("case", LACKING)
def test_what_lacks_a_page_or_a_part_of_it_fails_the_check(core: Core, case: str) -> None:
    """Whatever a reader would miss is named; nobody has to list a new module or role anywhere."""
    name, text, message = LACKING[case]
    add_file(core, name, text)
    with pytest.raises(CheckFailed, match=message):
        checks.check_docs(core, core.collection)


def test_the_supported_versions_are_those_that_are_tested() -> None:
    """meta/runtime.yml begins at the oldest that `make collection` runs."""
    oldest = ".".join(environments.OLDEST.version.split(".")[:2])
    assert f'requires_ansible: ">={oldest}.0"' in (COLLECTION / "meta" / "runtime.yml").read_text("utf-8")
    newest = ".".join(environments.NEWEST.version.split(".")[:2])
    readme = (COLLECTION / "README.md").read_text("utf-8")
    assert f"ansible-core {oldest} to {newest}" in readme


def test_a_failure_stops_no_other_check_and_sets_the_exit_code(tmp_path: Path) -> None:
    current = Run(tmp_path, tmp_path)

    def fail() -> str:
        raise CheckFailed("it is broken\nhere")

    def skip() -> str:
        raise NotRun("no python3.12")

    seen = [current.check("a", fail), current.check("b", skip), current.check("c", lambda: "")]
    assert seen == [False, False, True]
    shown = ("FAILED", "it is broken", "not run", "no python3.12", "ok")
    assert [word for word in shown if word not in table(current.outcomes)] == []
    assert exit_code(current.outcomes, required=False) == 1
    assert exit_code(current.outcomes[1:], required=False) == 0
    assert exit_code(current.outcomes[1:], required=True) == 1
    assert exit_code([], required=False) == 1


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
    readme = (COLLECTION / "README.md").read_text("utf-8")
    section = readme.partition("## What is in it")[2].partition("\n\n`")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    rows = [line.split("|")[2] for line in lines[1:]]
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == parts_of_the_collection()
