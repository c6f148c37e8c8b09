"""Every fixture has a row in tests/fixtures/INDEX.md, and what the row names really uses it.

A row is `| file | what | source, licence | used by |`.  The last cell names users, separated by semicolons:
`profile NAME`, `profiles NAME, NAME`, paths of test modules.  A profile uses a file when it names it as a
source or as the recording that it models; a test module when the file's name stands in one of its texts that
is not a docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
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
        yield str(profile.get("recording", ""))
        return
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def complaints(root: Path) -> list[str]:
    """What is wrong with the index of a checkout, in words."""
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
    """Whether the name stands in the text as a whole file name."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def test_every_fixture_is_indexed_and_used() -> None:
    """No file without a row, no row without a file, and nothing that whom it names does not use."""
    assert complaints(ROOT) == []
    assert len(rows(ROOT)) > 5


TEST, PROFILE = Path("tests/unit/test_x.py"), PROFILES / "x-1.yaml"
GOOD_TEST = '"""Reads a.xml."""\nFILE = "a.xml"\n'
GOOD_PROFILE = "name: x-1\nsources:\n- {facts: all, where: 'tests/fixtures/a.xml, of a card'}\n"
GOOD_INDEX = (
    "| file | what | source, licence | used by |\n|---|---|---|---|\n"
    "| a.xml | a card | somebody, MIT | profile x-1; tests/unit/test_x.py |\n"
)


def checkout(root: Path) -> Path:
    """A checkout with one fixture, which a profile and a test use."""
    for path, text in ((TEST, GOOD_TEST), (PROFILE, GOOD_PROFILE), (INDEX, GOOD_INDEX)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / FIXTURES / "a.xml").write_text("<a/>")
    return root


def test_a_used_fixture_draws_no_complaint(tmp_path: Path) -> None:
    """The builder's checkout is right, so that each change below is what is complained of."""
    assert complaints(checkout(tmp_path)) == []


@pytest.mark.parametrize(
    ("path", "old", "new", "reported"),
    [
        (TEST, 'FILE = "a.xml"', "", "a.xml: not used by tests/unit/test_x.py"),
        (TEST, '"a.xml"', '"aa.xml"', "a.xml: not used by tests/unit/test_x.py"),
        (TEST, '"a.xml"', '"a.xml-old"', "a.xml: not used by tests/unit/test_x.py"),
        (PROFILE, "a.xml", "b.xml", "a.xml: not used by tests/testbed/profiles/x-1.yaml"),
        (PROFILE, "where: 'tests", "where: '', facts: 'tests", "a.xml: not used by"),
        (INDEX, "a.xml", "b.xml", "a.xml has no row"),
        (INDEX, "a.xml", "b.xml", "b.xml has a row and is not there"),
        (INDEX, "x-1", "y-1", "used by tests/testbed/profiles/y-1.yaml, which is not there"),
        (INDEX, "test_x", "test_y", "used by tests/unit/test_y.py, which is not there"),
        (INDEX, " | profile x-1; tests/unit/test_x.py", "", "four cells"),
        (INDEX, "somebody, MIT", "", "four cells"),
    ],
)
def test_what_is_missing_is_told(tmp_path: Path, path: Path, old: str, new: str, reported: str) -> None:
    """Each way in which a fixture can be left over is named."""
    root = checkout(tmp_path)
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))

    assert [complaint for complaint in complaints(root) if reported in complaint]


def test_a_file_in_a_folder_needs_a_row_too(tmp_path: Path) -> None:
    """Fixtures below a folder are not overlooked."""
    root = checkout(tmp_path)
    (root / FIXTURES / "more").mkdir()
    (root / FIXTURES / "more/b.txt").write_text("b")

    assert complaints(root) == ["more/b.txt has no row"]
