"""A process that starts while Ctrl-C is pressed is stopped; its log needs no folder later on."""

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
