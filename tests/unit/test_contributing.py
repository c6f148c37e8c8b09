"""CONTRIBUTING.md tells the truth: the files it names for each kind of change exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Thirteen kinds of change")[2].partition("\nMore:")[0]
CHANGES = dict(re.findall(r"^\| (an? [^|]+?) \| (.+?) \| \d", SECTION, flags=re.MULTILINE))


def paths(text: str) -> list[str]:
    """Paths in backquotes; a word in capitals stands for any name."""
    matches = re.findall(r"`([\w./-]+/[\w./-]+)`", text)
    return [re.sub(r"[A-Z]{4,}", "*", path) for path in matches]


def test_there_are_thirteen_kinds_of_change() -> None:
    """Each with the files that it touches."""
    assert len(CHANGES) == 13
    assert all(paths(files) for files in CHANGES.values())


@pytest.mark.parametrize("change", CHANGES)
def test_the_files_of_a_change_exist(change: str) -> None:
    """A file that moved moves here too."""
    assert [path for path in paths(CHANGES[change]) if not list(ROOT.glob(path))] == []


def test_a_count_is_the_number_of_files() -> None:
    """What a reader is promised is what the list says; a user or a test of its own comes on top."""
    for files, count in re.findall(r"^\| an? [^|]+? \| (.+?) \| (\d)", SECTION, flags=re.MULTILINE):
        assert abs(len(paths(files)) - int(count)) <= ("its" in files), files


def test_folders_named_exist() -> None:
    """The map of the repository."""
    table = TEXT.partition("## Where things are")[2].partition("\n\n")[0]
    assert [path for path in paths(table) if not (ROOT / path).exists()] == []
