"""The index of fixtures."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures"
INDEX = FIXTURES / "INDEX.md"


def rows() -> dict[str, list[str]]:
    """The cells of every row of the index by the file's name."""
    lines = [line for line in INDEX.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row for row in cells[2:]}


def test_every_fixture_is_indexed_and_used() -> None:
    """No file without a row, no row without a file, and none that no test or profile names."""
    files = {path.relative_to(FIXTURES).as_posix() for path in FIXTURES.rglob("*") if path.is_file()}
    index = rows()
    assert files - {INDEX.name} == index.keys()
    assert [name for name, row in index.items() if len(row) != 4 or not all(row)] == []
    users = [path for end in ("py", "yaml") for path in TESTS.rglob(f"*.{end}")]
    texts = "\n".join(path.read_text() for path in users if FIXTURES not in path.parents)
    texts += (FIXTURES / "careful-reader.yaml").read_text()
    assert [name for name in index if name.rpartition("/")[2].partition(".")[0] not in texts] == []
