"""charts/generate.py: its files are up to date, and follow from comments and from the CRD's rules."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from support.chart import ROOT


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """charts/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("charts_generate", ROOT / "charts" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_value_without_a_comment_is_an_error(generator: ModuleType) -> None:
    """A value without a comment is an error that names the value."""
    text = "a:\n  # Said.\n  b: 1\n  c: 2\n"
    with pytest.raises(SystemExit, match=r"a\.c has no comment"):
        list(generator.documented(text))


def test_comments_become_rows_of_the_page(generator: ModuleType) -> None:
    """Comments over several lines, maps and lists become path, default and description."""
    text = (
        "# Top | line,\n# and more.\na:\n  x: 1\n  y: {}\ngroup:\n  # A list.\n  b: []\n  # Empty.\n  c: ''\n"
    )
    assert list(generator.documented(text)) == [
        ("a", '`{"x": 1, "y": {}}`', "Top \\| line, and more."),
        ("group.b", "`[]`", "A list."),
        ("group.c", "", "Empty."),
    ]


def test_cel_rules_about_patterns_become_json_schema(generator: ModuleType) -> None:
    """CEL rules about patterns of strings and keys become JSON schema; other rules are left out."""
    text = {"type": "string"} | {
        "x-kubernetes-validations": [
            {"rule": "self == '' || self.matches('^a$')"},
            {"rule": "!self.matches('^b')"},
            {"rule": "size(self) < 3"},
        ]
    }
    assert generator.json_schema(text) == {
        "type": "string",
        "allOf": [{"pattern": "^$|^a$"}, {"not": {"pattern": "^b"}}],
    }
    listed = [{"rule": "self.all(key, key in ['x', 'y'])"}]
    assert generator.map_of({"x-kubernetes-validations": listed}, text) == {
        "additionalProperties": False,
        "properties": {"x": text, "y": text},
    }
    formed = [{"rule": "self.all(k, !k.startsWith('z.io/'))"}, {"rule": "self.all(k, k.matches('^b$'))"}]
    assert generator.map_of({"x-kubernetes-validations": formed}, text) == {
        "additionalProperties": False,
        "patternProperties": {"^z[.]io/": False, "^b$": text},
    }
    assert generator.map_of({}, text) == {"additionalProperties": text}
