"""Our source for older Pythons: what is rewritten, what is refused, and that the stand-ins do the same."""

import ast
import enum
import itertools
import json
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from support import archive
from testbed.hostarchive import BUILDER

OURS = {"3.9": ("nodegauge_contract", "nodegauge_probes", "nodegauge_older.py"), "3.10": ()}
"""Packages that must run there; all where none is named."""
HEAD = "from __future__ import annotations\n"
LOOK_UP = """
import importlib, importlib.util, json, sys
for module, name in json.load(sys.stdin):
    if not name or hasattr(importlib.import_module(module), name):
        continue
    if not hasattr(sys.modules[module], "__path__") or importlib.util.find_spec(f"{module}.{name}") is None:
        print(module, name)
"""


@pytest.fixture
def old_python(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BUILDER))
    return archive.module_of("old_python", BUILDER / "old_python.py")


@pytest.fixture(scope="module")
def older() -> ModuleType:
    return archive.module_of("nodegauge_older", BUILDER / "host" / "older.py")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x: int | None = None", "x: older_union[int, None] = None"),
        ("X = dict[str, A | _B] | None", "X = older_union[dict[str, older_union[A, _B]], None]"),
        ("isinstance(x, int | Foo)", "isinstance(x, (int, Foo))"),
        ("zip(a, b, strict=True)", "older_zip(a, b, strict=True)"),
        ("from enum import Enum, StrEnum", "from enum import Enum; from nodegauge_older import StrEnum"),
        ("import datetime\ndatetime.UTC", "import datetime\nolder_UTC"),
        ("a | b | A_FLAG | re.M", "a | b | A_FLAG | re.M"),
        ("x: Annotated[int, Meta(le=2 * 3)]", "x: Annotated[int, Meta(le=2 * 3)]"),
        ('s = f"{x | y}" "€"; y: A | B', 's = f"{x | y}" "€"; y: older_union[A, B]'),
    ],
)
def test_what_an_old_python_lacks_is_rewritten(old_python: ModuleType, source: str, expected: str) -> None:
    text = old_python.translated(HEAD + source, name="x.py", oldest=(3, 9))
    assert text.split("\n", 1)[1] == expected


@pytest.mark.parametrize(
    "source",
    [
        "match x:\n    case 1: pass",
        "try:\n    pass\nexcept* ValueError:\n    pass",
        "import asyncio\nasyncio.timeout(1)",
        "from typing import assert_never",
        "import tomllib",
        "(3).bit_count()",
        "@dataclass(kw_only=True)\nclass X: pass",
        "x = Foo | bar",
    ],
)
def test_what_cannot_be_translated_ends_the_build(old_python: ModuleType, source: str) -> None:
    with pytest.raises(old_python.BuildError, match=r"^x\.py:\d+: Python 3\.9 "):
        old_python.translated(HEAD + source, name="x.py", oldest=(3, 9))


def test_the_stand_ins_do_what_the_standard_library_does(older: ModuleType) -> None:
    x, y = [1.0, 2.0, 4.0, 7.5], [2.5, 3.0, 9.0, 11.0]
    assert older.linear_regression(x, y) == pytest.approx(statistics.linear_regression(x, y))
    assert list(older.pairwise(x)) == list(itertools.pairwise(x))
    assert list(older.older_zip(x, y, strict=True)) == list(zip(x, y, strict=True))
    with pytest.raises(ValueError, match="lengths"):
        list(older.older_zip(x, y[1:], strict=True))
    new, old = (kind("Letter", {"ONE": "one"}).ONE for kind in (enum.StrEnum, older.StrEnum))
    assert (str(old), f"{old:>5}", old == "one", {old: 1}["one"]) == (str(new), f"{new:>5}", True, 1)


@pytest.mark.parametrize("version", OURS)
def test_every_name_of_the_standard_library_exists_there(
    host_archive: Path, python: Path, version: str
) -> None:
    used = sorted({name for source in translated(host_archive, OURS[version]) for name in names(source)})
    done = subprocess.run(
        [str(python), "-c", LOOK_UP], input=json.dumps(used), capture_output=True, text=True, check=False
    )
    assert len(used) > 100
    assert (done.stdout, done.stderr) == ("", "")


def translated(path: Path, packages: tuple[str, ...]) -> Iterator[ast.Module]:
    with zipfile.ZipFile(path) as packed:
        for name in packed.namelist():
            top, _, inside = name.partition("/")
            if top == "old" and name.endswith(".py") and (not packages or inside.split("/")[0] in packages):
                yield ast.parse(packed.read(name))


def names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and _standard(node.module or ""):
            yield from ((node.module or "", one.name) for one in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if _standard(module):
                yield module, node.attr


def _standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names
