"""The index of fixtures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


FIXTURES, INDEX = Path("tests/fixtures"), Path("tests/fixtures/INDEX.md")
PROFILES = Path("tests/testbed/profiles")


def rows(root: Path) -> dict[str, list[str]]:
    """The cells of every row of the index by the file's name."""
    lines = (root / INDEX).read_text().splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")
    ]
    return {row[0]: row for row in cells[2:]}


def users(reported: str) -> Iterator[Path]:
    """The files that a cell `used by` names, below the repository's root."""
    for part in reported.split(";"):
        profile = re.match(r"\s*profiles?\s+(.+)", part)
        for name in (profile[1] if profile else part).split(","):
            yield PROFILES / f"{name.strip()}.yaml" if profile else Path(name.strip())


def texts(path: Path) -> Iterator[str]:
    """What a profile names as sources, or the texts of a test module without its docstrings."""
    if path.suffix == ".yaml":
        profile = yaml.safe_load(path.read_text())
        yield from (source["where"] for source in profile.get("sources", []))
        yield str([profile.get(key) for key in ("recording", "tables", "readings")])
        return
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def complaints(root: Path) -> list[str]:
    result = []
    index = rows(root)
    here = {
        path.relative_to(root / FIXTURES).as_posix()
        for path in (root / FIXTURES).rglob("*")
        if path.is_file() and path != root / INDEX
    }
    result += [f"{name} has no row" for name in sorted(here - index.keys())]
    result += [f"{name} has a row and is not there" for name in sorted(index.keys() - here)]
    for name, row in index.items():
        if len(row) != 4 or not all(row):
            result.append(f"{name}: a row has four cells that say something")
            continue
        for user in users(row[3]):
            if not (root / user).is_file():
                result.append(f"{name}: used by {user}, which is not there")
            elif not any(mentions(text, name) for text in texts(root / user)):
                result.append(f"{name}: not used by {user}")
    return result


def mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def test_every_fixture_is_indexed_and_used() -> None:
    """No file without a row, no row without a file, and nothing that whom it names does not use."""
    assert complaints(ROOT) == []
    assert len(rows(ROOT)) > 5
