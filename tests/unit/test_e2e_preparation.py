"""What `make e2e` does before and around its run, as far as it needs no root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e import cached_answers, registry
from testbed.errors import TestbedError


@pytest.fixture
def asked() -> list[str]:
    """The questions that were really put."""
    return []


def test_an_answer_is_kept_as_long_as_its_mark(tmp_path: Path, asked: list[str]) -> None:
    """apt is asked once, and again when its lists are others."""

    def ask() -> list[str]:
        asked.append("asked")
        return ["1.0"]

    file = tmp_path / "a folder" / "versions.json"
    for mark in ("monday", "monday", "tuesday"):
        assert cached_answers.recall(file, mark, ask) == ["1.0"]
    assert len(asked) == 2


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"mark": "monday"}'])
def test_a_broken_file_is_none(tmp_path: Path, broken: str) -> None:
    """Whoever was killed while writing it costs one look-up."""
    file = tmp_path / "versions.json"
    file.write_text(broken)
    assert cached_answers.recall(file, "monday", lambda: ["1.0"]) == ["1.0"]


def test_the_marks_change_with_lists_and_sources(tmp_path: Path) -> None:
    """A list that apt has fetched anew, a source that was edited or added, and lists of our own."""
    folder = tmp_path / "lists"
    folder.mkdir()
    seen = {cached_answers.apt_state([folder]), cached_answers.contents([folder])}
    (folder / "Packages").write_text("one")
    seen |= {cached_answers.apt_state([folder]), cached_answers.contents([folder])}
    (folder / "Packages").write_text("other")
    seen |= {cached_answers.apt_state([folder]), cached_answers.contents([folder])}
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("bytecode is no source")
    assert cached_answers.contents([folder]) in seen
    assert len(seen) == 5  # both say the same of nothing
    assert cached_answers.apt_state([], config=str(tmp_path / "apt.conf")) != cached_answers.apt_state([])


def step(name: str) -> Any:
    """A step of that name that does nothing."""

    def nothing(cluster: Any) -> None:
        pass

    nothing.__name__ = name
    return nothing


def names(stages: Any) -> list[list[list[str]]]:
    """Stages as the names of their steps."""
    return [[[one.__name__ for one in lane] for lane in stage] for stage in stages]


STAGES = (((step("a"),),), ((step("b"), step("c")), (step("d"),)))


def test_steps_can_be_chosen_by_name_and_keep_their_order() -> None:
    """Of lanes and stages without a chosen step nothing is left; without a choice all of them are."""
    assert names(registry.chosen(STAGES, ["c", "a"])) == [[["a"]], [["c"]]]
    assert names(registry.chosen(STAGES, [])) == names(STAGES)


def test_a_step_that_is_not_there_is_refused_with_those_that_are() -> None:
    """Else a run of nothing would end well."""
    with pytest.raises(TestbedError, match="no such step: e; there are a, b, c, d"):
        registry.chosen(STAGES, ["e"])
