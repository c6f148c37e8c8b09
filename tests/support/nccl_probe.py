"""The benchmark's probe on simulated hardware, with children that a test writes line by line.

A script is Python after `PRELUDE`; it knows its arm, and whatever an arm does not do by itself is done well.
Every process that it starts carries a mark in its environment, so that none can be overlooked afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodegauge_contract import Arm, NcclResult, Result, decode
from support.probing import told
from testbed.hardware import Hardware

PRELUDE = """
import json, os, signal, subprocess, sys, time

order = json.loads(sys.argv[sys.argv.index("--order") + 1])
arm, ranks = order["arm"], len(order["uuids"])
mouth = int(os.environ["NODEGAUGE_SPEECH_FD"])


def write(data):
    while data:
        data = data[os.write(mouth, data):]


def say(**line):
    write(json.dumps(line).encode() + b"\\n")


def about():
    say(about={"engine": "script", "engine_version": "7", "nccl": "2.32.3", "uuids": order["uuids"]})


def cell(number, **members):
    told = order["cells"][number]
    usual = {"collective": told["collective"], "bytes": told["bytes"], "us": 100.0 + number, "spread": 0.01}
    say(cell={**usual, **members})


def phases(*names):
    for name in names:
        say(phase=name)


def all_well():
    about()
    phases("init", "load", "measure")
    for number in range(len(order["cells"])):
        cell(number)
    if order.get("pairs_bytes"):
        phases("pairs")
        say(pairs=[[-1 if i == j else 50 for j in range(ranks)] for i in range(ranks)])
    phases("teardown")
    say(done=True)
    sys.exit(0)


if not ranks or arm != %(arm)r != 'all':
    all_well()
"""
MARK = "NODEGAUGE_TEST_MARK"
PATIENCE_S = 20.0


@dataclass
class NcclRun:
    """One machine, and the benchmark on it with a child of the test's making."""

    hardware: Hardware
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "termination-log"

    @property
    def mark(self) -> str:
        return str(self.folder)

    def child(self, body: str, *, arm: str = "default") -> NcclRun:
        """Children that do what `body` says in this arm, and well in the others."""
        script, program = self.folder / "child.py", self.folder / "child"
        script.write_text(PRELUDE % {"arm": arm} + body)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n')
        program.chmod(0o755)
        self.environment["NODEGAUGE_NCCL_CHILD"] = str(program)
        return self

    def env(self) -> Mapping[str, str]:
        return told(self.hardware, self.log, {MARK: self.mark, **self.environment})

    def start(self, *options: str, probe: str = "nccl") -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "nodegauge_probes", probe, *options],
            env=dict(self.env()),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(self, run: subprocess.Popen[bytes]) -> Result:
        """The document of a run that ended well, the same in both places, with nobody left behind."""
        stdout, stderr = run.communicate(timeout=PATIENCE_S * 3)
        assert (run.returncode, stderr) == (0, b"")
        result = decode(stdout.decode())
        assert decode(self.log.read_text()) == result
        assert wait_for(lambda: not self.left_behind()), self.left_behind()
        return result

    def result(self, *options: str, probe: str = "nccl") -> Result:
        return self.finish(self.start(*options, probe=probe))

    def nccl(self, *options: str) -> NcclResult:
        """What was measured by a run without a problem."""
        result = self.result(*options)
        assert result.problem is None
        assert result.nccl is not None
        return result.nccl

    def arms(self, *options: str) -> dict[str, Arm]:
        """The arms by name."""
        return {arm.name: arm for arm in self.nccl(*options).arms}

    def left_behind(self) -> list[int]:
        """Living processes that carry this test's mark."""
        mark = f"{MARK}={self.mark}".encode()
        return [pid for pid in pids() if mark in environment_of(pid)]


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def environment_of(pid: int) -> list[bytes]:
    """Empty for a process that is gone, a zombie's too."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def wait_for(met: Callable[[], object], *, seconds: float = PATIENCE_S) -> bool:
    """Whether it came true in time."""
    over = time.monotonic() + seconds
    while not met():
        if time.monotonic() > over:
            return False
        time.sleep(0.01)
    return True
