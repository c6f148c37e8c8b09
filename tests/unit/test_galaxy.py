"""What the collection says of itself: its versions, and every part of it in its README."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from galaxy import environments, sanity
from galaxy.commands import Core
from support.playbook import COLLECTION


def test_the_supported_versions_are_those_that_are_tested() -> None:
    """meta/runtime.yml begins at the oldest that `make collection` runs."""
    oldest = ".".join(environments.OLDEST.version.split(".")[:2])
    assert f'requires_ansible: ">={oldest}.0"' in (COLLECTION / "meta" / "runtime.yml").read_text("utf-8")
    newest = ".".join(environments.NEWEST.version.split(".")[:2])
    readme = (COLLECTION / "README.md").read_text("utf-8")
    assert f"ansible-core {oldest} to {newest}" in readme


def parts_of_the_collection() -> set[str]:
    """The names of all plugins, roles and playbooks that a user may name; a filter is a file of its own."""
    others = {"action", "doc_fragments", "filter", "module_utils", "plugin_utils"}
    plugins = [path for path in COLLECTION.glob("plugins/*/*.py") if path.parent.name not in others]
    roles = [path for path in COLLECTION.glob("roles/*") if path.is_dir()]
    named = [*COLLECTION.glob("plugins/filter/*.yml"), *COLLECTION.glob("playbooks/*.yml")]
    return {path.stem for path in (*plugins, *roles, *named)} - {"__init__"}


def test_the_readme_names_every_part_and_no_other() -> None:
    readme = (COLLECTION / "README.md").read_text("utf-8")
    section = readme.partition("## What is in it")[2].partition("\n\n`")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    rows = [line.split("|")[2] for line in lines[1:]]
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == parts_of_the_collection()


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("plugins/a.py", True),
        ("README.md", True),
        ("roles/new.yml", True),
        ("files/nodegauge-host.pyz", False),
        ("MANIFEST.json", False),
    ],
)
def test_ansible_test_is_repeated_where_a_file_changed(tmp_path: Path, changed: str, again: bool) -> None:
    """And for another ansible-core, or another Python."""
    core, pythons = Core(tmp_path, tmp_path, version="2.16"), tmp_path / "pythons"
    for path in (pythons / "python3.9", core.collection / "plugins/a.py", core.collection / "README.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = sanity.digest(core, pythons)
    assert before == sanity.digest(core, pythons) != sanity.digest(replace(core, version="2.17"), pythons)
    (core.collection / changed).parent.mkdir(exist_ok=True)
    (core.collection / changed).write_text("changed")
    assert (sanity.digest(core, pythons) != before) is again
    (pythons / "python3.10").touch()
    assert sanity.digest(core, pythons) != before
