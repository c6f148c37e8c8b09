"""A process that is ordered while Ctrl-C is pressed ends with the order; its log needs no folder later on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from testbed import processes

SLEEP = ["/bin/sleep", "60"]


def test_a_process_ordered_during_ctrl_c_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes after the fork and before anybody knows the process."""
    interrupted = threading.Event()
    forked: list[subprocess.Popen[bytes]] = []

    def press(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        forked.append(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait(10)
        return forked[0]

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", press)
    with pytest.raises(KeyboardInterrupt):
        processes.Process("sleep", SLEEP, log=tmp_path / "log")
    interrupted.set()
    assert forked[0].wait(10) == -signal.SIGKILL


def test_a_process_starts_when_its_folder_is_removed_meanwhile(tmp_path: Path) -> None:
    """Its log is open before it starts."""
    folder = tmp_path / "logs"
    folder.mkdir()
    process = processes.Process("sleep", SLEEP, log=folder / "log")
    (folder / "log").unlink()
    folder.rmdir()
    assert process.running
    process.stop(grace=0)
    assert process.exit_code == -signal.SIGKILL
