"""Which quick tests reach a source file by their imports, the closest first.

A module that a test only starts (`python -m nodegauge_probes`) counts as imported where its name is written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator/src", "probes/src")
OURS = re.compile(r"\bnodegauge_\w+(?:\.\w+)*")


def module_of(path: Path) -> str:
    """The name by which the file is imported."""
    folder = next(ROOT / part for part in (*SOURCES, "tests") if path.is_relative_to(ROOT / part))
    return ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


@cache
def files() -> dict[str, Path]:
    """Every Python file of sources and tests by the name of its module."""
    paths = (path for part in (*SOURCES, "tests") for path in (ROOT / part).rglob("*.py"))
    return {module_of(path): path for path in paths}


@cache
def importers() -> dict[str, set[str]]:
    """By module: those that import it or name it; a package is imported with what is in it."""
    known: dict[str, set[str]] = {name: set() for name in files()}
    for name, path in files().items():
        for wanted in _named(ast.parse(path.read_text("utf-8"))):
            for part in (wanted, f"{wanted}.__main__", wanted.rpartition(".")[0]):
                known.get(part, set()).add(name)
    return known


def _named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str() as module, names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str() as text):
                yield from OURS.findall(text)


@cache
def nearest(source: Path) -> tuple[str, ...]:
    """Quick test files that reach the source, by the length of the way; words of its name go first."""
    steps = {module_of(source): 0}
    border = set(steps)
    while border:
        border = set().union(*(importers()[name] for name in border)) - steps.keys()
        steps |= dict.fromkeys(border, max(steps.values()) + 1)
    parts = [word.rstrip("s") for word in source.stem.split("_")]
    ways: dict[Path, tuple[int, int, bool, str]] = {}
    for folder in (ROOT / "tests/unit", ROOT / "tests/probes"):
        for path in folder.rglob("test_*.py"):
            helpers = [
                parent / "conftest.py" for parent in path.parents if parent.is_relative_to(folder.parent)
            ]
            way = [steps[name] for file in (path, *helpers) if (name := module_of(file)) in steps]
            if way:
                foreign = sum(word not in path.stem for word in parts)
                ways[path] = (foreign, way[0], folder.name == "probes", path.name)
    return tuple(path.relative_to(ROOT).as_posix() for path in sorted(ways, key=ways.__getitem__))
