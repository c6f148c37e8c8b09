"""`.ci/run`: its exit code, and that nothing outlives it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

STEPS = Path(__file__).resolve().parents[2] / ".ci" / "steps.py"


@pytest.fixture
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_steps", STEPS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_steps"] = module
    spec.loader.exec_module(module)
    return module


def lanes(*commands: Mapping[str, str]) -> list[dict[str, Sequence[str]]]:
    return [{name: ["sh", "-c", command] for name, command in lane.items()} for lane in commands]


def test_a_failed_step_stops_no_other_and_is_shown_last(
    steps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code is that of the run; the table has every step with its last line."""
    monkeypatch.setattr(
        steps, "LANES", lanes({"bad": "echo broken; exit 3", "next": "echo fine"}, {"other": "echo whole"})
    )
    assert steps.Run([], tmp_path).everything() == 3
    output = capsys.readouterr().out
    failed, table = output.index("bad failed; it printed:\nbroken"), output.index("steps, their seconds")
    assert max(output.index("next printed:\nfine"), output.index("other printed:\nwhole")) < failed < table
    assert [line.split()[3:] for line in sorted(output[table:].splitlines()[1:])] == [
        ["FAILED", "(3)", "broken"],
        ["ok", "fine"],
        ["ok", "whole"],
    ]
