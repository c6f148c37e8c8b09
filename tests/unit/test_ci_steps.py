"""`.ci/run`: its exit code, and that nothing outlives it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from testbed.wait import wait_for

STEPS = Path(__file__).resolve().parents[2] / ".ci" / "steps.py"


@pytest.fixture
def steps() -> ModuleType:
    """A module of its own for each test."""
    spec = importlib.util.spec_from_file_location("ci_steps", STEPS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_steps"] = module
    spec.loader.exec_module(module)
    return module


def lanes(*commands: Mapping[str, str]) -> list[dict[str, Sequence[str]]]:
    """Steps that are shell commands."""
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


def test_only_named_steps_run(
    steps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a name that no step has is refused with those that there are."""
    monkeypatch.setattr(steps, "LANES", lanes({"bad": "exit 3", "good": "exit 0"}))
    assert steps.Run(["good"], tmp_path).everything() == 0
    assert steps.main(["better"]) == 2
    assert "there are bad, good" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_step(tmp_path: Path, number: signal.Signals) -> None:
    """With exit code 130; a step is interrupted as by Ctrl-C, so that it can clean up."""
    script = (
        f"import importlib.util, sys; s = importlib.util.spec_from_file_location('s', {str(STEPS)!r});"
        "m = importlib.util.module_from_spec(s); sys.modules['s'] = m; s.loader.exec_module(m);"
        "step = ['sh', '-c', 'trap \"touch cleaned; exit\" INT; touch begun; sleep 600 & wait'];"
        "m.LANES = [{'one': step}]; sys.exit(m.main([]))"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        wait_for((tmp_path / "begun").exists, what="the step to begin")
        os.kill(process.pid, number)
        assert process.wait() == 130
    assert (tmp_path / "cleaned").exists()
