"""Processes of the testbed: an interrupted start leaves none, a forked probe ends as a started one, and a
wait that fails says what it saw."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import Result, decode
from testbed import forkserver
from testbed.hardware import Hardware, plug
from testbed.wait import DEADLINE_SECONDS, wait_for

PROBE = [sys.executable, "-m", "nodegauge_probes"]
LONG = ("health", "--window", "600", "--deadline", "900")


def start(popen: Any, machine: Hardware, *options: str, **more: Any) -> subprocess.Popen[str]:
    environment = os.environ | machine.env() | {"NODEGAUGE_RUN": "r1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    folder = machine.directory
    process: subprocess.Popen[str] = popen([*PROBE, *options], env=environment, cwd=folder, **pipes, **more)
    return process


def wait_until_it_reads(process: subprocess.Popen[str]) -> None:
    """It has opened the driver."""
    maps = Path(f"/proc/{process.pid}/maps")
    wait_for(
        lambda: process.poll() is not None or "libnvidia-ml" in maps.read_text(), what="the driver is open"
    )


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (("health", "--window", "0"), None),
        (("health", "--window", "x"), None),
        (("nothing",), None),
        (LONG, signal.SIGTERM),
        (LONG, signal.SIGINT),
        (LONG, signal.SIGKILL),
    ],
)
def test_a_forked_probe_ends_like_a_started_one(
    tmp_path: Path, options: tuple[str, ...], number: signal.Signals | None
) -> None:
    """The same code, errors and kind of document: by itself, by wrong arguments, by each signal."""

    def ended(popen: Any) -> tuple[int, str, str, str]:
        with start(popen, machine, *options) as process:
            if number is not None:
                wait_until_it_reads(process)
                process.send_signal(number)
            output, errors = process.communicate(timeout=DEADLINE_SECONDS)
        result = decode(output) if output else Result(probe="", run="", node="")
        return process.returncode, errors, result.run, result.problem.kind if result.problem else ""

    machine = plug("titan-rtx-nv2", tmp_path)
    assert ended(forkserver.popen) == ended(subprocess.Popen)
