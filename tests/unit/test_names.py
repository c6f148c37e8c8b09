"""The check of retired names, and the glossary that it stands for."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("names_check", ROOT / ".ci" / "names.py")
assert _SPEC is not None
assert _SPEC.loader is not None
check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check)


def faults(text: str, path: str = "package/module.py") -> list[str]:
    """What the check says about a file with this text."""
    return list(check.faults(Path(path), text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("found = 1", "found"),
        ("def settled(): ...", "settled"),
        ("def is_settled_now(): ...", "is_settled_now"),
        ("class BenchDraft: ...", "BenchDraft"),
        ("def check(told): ...", "told"),
        ("class Report:\n    held: int", "held"),
        ("import nccl as bench", "bench"),
        ("for place in range(3): ...", "place"),
    ],
)
def test_a_retired_name_is_refused_with_its_replacement(text: str, name: str) -> None:
    """Variables, arguments, fields, functions, classes and aliases."""
    (fault,) = faults(text)
    assert repr(name) in fault
    assert fault.partition("is retired: ")[2]


def test_a_retired_module_name_is_refused() -> None:
    """Also where the word is fine as a variable."""
    assert faults("", "package/notes.py")
    assert faults("notes = 1", "package/module.py") == []


@pytest.mark.parametrize(
    "text", ["foundation = 1", "replace = 1", "x = found()", "'a place'", "row = rows = 1"]
)
def test_other_names_and_uses_are_left_alone(text: str) -> None:
    """Only whole words in names that the code defines count."""
    assert faults(text) == []


def test_the_glossary_has_at_most_fifteen_words() -> None:
    """More would be a dialect again; none of them is retired."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Glossary")[2].partition("\n## ")[0]
    entries = re.findall(r"^\| ([a-z ]+) \|", table, flags=re.MULTILINE)
    assert entries[0] == "word"
    assert 0 < len(entries) - 1 <= 15
    assert not {*entries} & {*check.RETIRED_NAMES, *check.RETIRED_PARTS}
