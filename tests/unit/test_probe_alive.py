"""What the kubelet asks of a watch container: the age of a file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodegauge_probes import alive
from testbed.wait import DEADLINE_SECONDS

HOUR = 3600.0


def asked(folder: Path, seconds: float, *file: str) -> int:
    """The exit code of the question, asked as a kubelet asks it."""
    command = [sys.executable, "-m", "nodegauge_probes.alive", str(folder), f"{seconds:g}", *file]
    return subprocess.run(command, timeout=DEADLINE_SECONDS, check=False).returncode


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("name", [alive.ALIVE, alive.READY])
def test_a_file_is_young_for_so_many_seconds(tmp_path: Path, name: str) -> None:
    """Touching it makes it, and makes it young again; a clock that somebody set back makes it old, too."""
    path = tmp_path / name
    assert not alive.is_young(path, HOUR)
    for _ in range(2):
        alive.touch(str(tmp_path), name)
        assert alive.is_young(path, HOUR)
        age(path, 2 * HOUR)
        assert not alive.is_young(path, HOUR)
    age(path, -2 * HOUR)
    assert not alive.is_young(path, HOUR)


def test_a_file_that_cannot_be_touched_ends_nothing(tmp_path: Path) -> None:
    alive.touch(str(tmp_path / "missing"), alive.ALIVE)
    assert not alive.is_young(tmp_path / "missing" / alive.ALIVE, HOUR)


def test_the_kubelets_question_is_answered_by_the_exit_code(tmp_path: Path) -> None:
    assert asked(tmp_path, HOUR) == 1
    alive.touch(str(tmp_path), alive.ALIVE)
    assert (asked(tmp_path, HOUR), asked(tmp_path, HOUR, alive.READY)) == (0, 1)
    alive.touch(str(tmp_path), alive.READY)
    assert asked(tmp_path, HOUR, alive.READY) == 0


def test_the_question_loads_nothing_of_the_probe() -> None:
    """It runs twice a minute on each node."""
    code = (
        "import sys, nodegauge_probes.alive; print([n for n in sys.modules if 'msgspec' in n or 'nvml' in n])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
