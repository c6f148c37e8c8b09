"""The real probe program on simulated hardware, as a pod's container would run it, but forked."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodegauge_contract import Result, decode
from testbed import forkserver
from testbed.hardware import Hardware
from testbed.profiles import Profile
from testbed.wait import DEADLINE_SECONDS

QUICK = ("--window", "0.2", "--hz", "10")
USUAL = f"{shlex.quote(sys.executable)} -m nodegauge_probes"
PROGRAM = shlex.split(os.environ.get("NODEGAUGE_TEST_PROBE", USUAL))
"""The probes' program: NODEGAUGE_TEST_PROBE="python3.9 nodegauge-host.pyz probe" has tests run another."""


def probe_environment(hardware: Hardware, termination_log: Path, more: Mapping[str, str]) -> dict[str, str]:
    run = {"NODEGAUGE_RUN": "run-1", "NODEGAUGE_NODE": "node-1"}
    log = {"NODEGAUGE_TERMINATION_LOG": str(termination_log)}
    return {**os.environ, **hardware.env(), **run, **log, **more}


def last_message(termination_log: Path) -> str:
    return termination_log.read_text() if termination_log.exists() else ""


def problem_of(result: Result) -> str:
    problem = result.problem
    return "" if problem is None else f"{problem.kind}: {problem.call} {problem.message}".strip()


@dataclass
class Machine:
    hardware: Hardware
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination-log"

    def env(self) -> Mapping[str, str]:
        return probe_environment(self.hardware, self.termination_log, self.environment)


class Probe(Machine):
    def command(self, *options: str) -> list[str]:
        return [*PROGRAM, "health", *QUICK, *options]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        self.termination_log.unlink(missing_ok=True)
        command = self.command(*options)
        return forkserver.run(
            command, env=self.env(), capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )

    def result(self, *options: str) -> Result:
        """The document of one run that ended well, with its problem in the termination log."""
        run = self.run(*options)
        assert (run.returncode, run.stderr) == (0, "")
        result = decode(run.stdout)
        assert last_message(self.termination_log) == problem_of(result)
        return result

    def python(self, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *options]
        return subprocess.run(
            command, env=self.env(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )


On = Callable[[str | Profile], Probe]
"""`probe("h100-sxm-8")`: the probe on that machine."""
Healthy = Callable[[str], Result]


def table_cells(text: str) -> list[list[str]]:
    """The rows of a printed matrix as cells; a header of two words is one cell."""
    table = text.strip("\n").split("\n\n")[0]
    for header in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"):
        table = table.replace(header, header.replace(" ", "_"))
    return [line.split() for line in table.splitlines()]
