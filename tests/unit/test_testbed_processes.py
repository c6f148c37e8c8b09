"""Processes that start while Ctrl-C is pressed are stopped; a wait that fails says what it saw."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed import processes
from testbed.errors import TestbedError
from testbed.wait import wait_for

SLEEP = ["/bin/sleep", "60"]


@pytest.mark.parametrize("stop", [lambda one: one.stop(grace=0), lambda one: one.stop_group(grace=10)])
def test_a_process_whose_start_is_interrupted_has_ended_after_its_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: Callable[[processes.Process], None]
) -> None:
    """Ctrl-C comes after the fork and before the start returns.  What still ran would write into a folder
    that is being removed."""
    forked: list[subprocess.Popen[bytes]] = []

    def press(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        forked.append(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.wait(10)
        return forked[0]

    real, stopping = subprocess.Popen, threading.Event()
    monkeypatch.setattr(subprocess, "Popen", press)
    process = processes.Process("sleep", SLEEP, log=tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        process.start()
    threading.Timer(0.1, stopping.set).start()
    stop(process)
    assert forked[0].returncode in (-signal.SIGKILL, -signal.SIGINT)


def test_a_process_that_did_not_start_needs_no_stop(tmp_path: Path) -> None:
    """Neither one that nobody started, nor one that cannot be started: its error is not raised again."""
    never = processes.Process("sleep", SLEEP, log=tmp_path / "log")
    never.stop(grace=10)
    impossible = processes.Process("sleep", SLEEP, log=tmp_path / "log", cwd=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        impossible.start()
    impossible.stop(grace=10)


def test_a_process_starts_when_its_folder_is_removed_meanwhile(tmp_path: Path) -> None:
    """Its log is open before it starts."""
    folder = tmp_path / "logs"
    folder.mkdir()
    process = processes.Process("sleep", SLEEP, log=folder / "log")
    process.start()
    (folder / "log").unlink()
    folder.rmdir()
    assert process.running
    process.stop(grace=0)
    assert process.exit_code == -signal.SIGKILL


def test_a_wait_that_fails_says_what_its_condition_saw_last() -> None:
    """What each function returned that the condition called, or else the condition's own result."""
    looks: list[str] = []

    def labels(node: str) -> list[str]:
        looks.append(node)
        return [f"look-{len(looks)}"]

    with pytest.raises(
        TestbedError, match=r"not within 0 s: a label; seen last: labels\(\) was \['look-2'\]"
    ):
        wait_for(lambda: any("wanted" in labels(node) for node in ("gpu-1",)), what="a label", seconds=0)
    with pytest.raises(TestbedError, match=r"seen last: \{\}"):
        wait_for(dict, what="something", seconds=0)


def test_a_condition_that_holds_at_the_last_look_is_met() -> None:
    """The deadline may pass while nobody looks."""
    answers = iter([0, 7])
    assert wait_for(lambda: next(answers), what="a number", seconds=0) == 7
