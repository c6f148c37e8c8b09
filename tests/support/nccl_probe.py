"""A scripted child of the NCCL probe: a test writes line by line what it does."""

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nodegauge_contract import Arm, ArmName, Int, NcclResult, Result, decode
from nodegauge_probes.nccl import plan, supervisor
from nodegauge_probes.nccl.process_tree import PR_SET_CHILD_SUBREAPER, ProcessTree
from nodegauge_probes.nccl.protocol import EngineInfo, Failed, encode_order
from nodegauge_probes.nccl.supervisor import Limits
from nodegauge_probes.result_builder import ArmBuilder
from support.probing import PROGRAM, Machine, last_message, problem_of
from testbed import forkserver
from testbed.processes import with_variable
from testbed.profiles import Profile
from testbed.wait import DEADLINE_SECONDS, wait_for

PRELUDE = """
import json, os, signal, subprocess, sys, time

order = json.loads(sys.argv[sys.argv.index("--order") + 1])
arm, ranks = order["arm"], len(order["uuids"])
pipe = int(os.environ["NODEGAUGE_PROTOCOL_FD"])


def write(data):
    while data:
        data = data[os.write(pipe, data):]


def emit(**line):
    write(json.dumps(line).encode() + b"\\n")


def engine():
    emit(engine={"name": "script", "version": "7", "nccl": "2.32.3", "uuids": order["uuids"]})


def cell(number, **members):
    ordered = order["cells"][number]
    usual = {"collective": ordered["collective"], "bytes": ordered["bytes"], "us": 100.0 + number}
    emit(cell={"spread": 0.01, **usual, **members})


def phases(*names):
    for name in names:
        emit(phase=name)


def all_well():
    engine()
    phases("init", "load", "measure")
    for number in range(len(order["cells"])):
        cell(number)
    if order.get("pairs_bytes"):
        phases("pairs")
        emit(pairs=[[-1 if i == j else 50 for j in range(ranks)] for i in range(ranks)])
    phases("teardown")
    emit(done=True)
    sys.exit(0)


if not ranks or arm != %(arm)r != 'all':
    all_well()
"""
MARK = "NODEGAUGE_TEST_MARK"
WAIT_S = DEADLINE_SECONDS


class NcclRun(Machine):
    """One machine, and the benchmark on it with a child of the test's making."""

    def child(self, body: str, *, arm: str = "default") -> "NcclRun":
        script, program = self.folder / "child.py", self.folder / "child"
        script.write_text(PRELUDE % {"arm": arm} + body)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n')
        program.chmod(0o755)
        self.environment["NODEGAUGE_NCCL_CHILD"] = str(program)
        return self

    def env(self) -> Mapping[str, str]:
        return {**super().env(), MARK: str(self.folder)}

    def start(self, *options: str, probe: str = "nccl") -> subprocess.Popen[bytes]:
        self.termination_log.unlink(missing_ok=True)
        return forkserver.popen(
            [*PROGRAM, probe, *options], env=dict(self.env()), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def finish(self, run: subprocess.Popen[bytes]) -> Result:
        stdout, stderr = run.communicate(timeout=WAIT_S)
        assert (run.returncode, stderr) == (0, b"")
        result = decode(stdout.decode())
        assert last_message(self.termination_log) == problem_of(result)
        self.wait_until_alone()
        return result

    def result(self, *options: str, probe: str = "nccl") -> Result:
        return self.finish(self.start(*options, probe=probe))

    def nccl(self, *options: str) -> NcclResult:
        result = self.result(*options)
        assert result.problem is None
        return result.nccl

    def arms(self, *options: str) -> dict[str, Arm]:
        return {arm.name: arm for arm in self.nccl(*options).arms}

    def left_behind(self) -> list[int]:
        return marked(str(self.folder))

    def wait_until_alone(self) -> None:
        wait_for(lambda: not self.left_behind(), what="the end of all that the probe started")


NcclOn = Callable[[str | Profile], NcclRun]
"""`nccl_on("h100-sxm-8")`: the benchmark on that machine."""


class ScriptedArm:
    """One arm by `supervisor.run`, in this process: `arm`; after a call `failed` is what it returned."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.failed: Failed | None = None

    def __call__(
        self,
        body: str = "",
        *,
        limits: Limits | None = None,
        oom_kills: Callable[[], Int] = lambda: 0,
        shut_down: bool = False,
        program: str = sys.executable,
        seconds: float = WAIT_S,
    ) -> ArmBuilder:
        """The arm of a child with this script; `shut_down`: as soon as it names its engine."""
        script = self._folder / "child.py"
        script.write_text(PRELUDE % {"arm": "default"} + body)
        machine = plan.Machine(ranks=2, linked=True)
        order, _ = plan.order_for(ArmName.DEFAULT, machine, uuids=("GPU-a", "GPU-b"), seconds=19.0)
        self.arm, processes = ArmBuilder(ArmName.DEFAULT), ProcessTree()

        def on_engine(_: EngineInfo) -> None:
            if shut_down:
                processes.shutdown()

        child = supervisor.Child(
            program=(program, "-I", "-S", str(script), "--order", encode_order(order)),
            environment={MARK: str(self._folder), "PATH": plan.DEFAULT_PATH},
            ranks=2,
            limits=limits or Limits(),
            startup=WAIT_S,
            until=time.monotonic() + seconds,
            oom_kills=oom_kills,
            on_engine=on_engine,
            on_cut=lambda _: None,
        )
        self.failed = supervisor.run(child, self.arm, processes)
        return self.arm

    def left_behind(self) -> list[int]:
        return marked(str(self._folder))


def subreaper_off() -> None:
    """`ProcessTree` makes this process a child subreaper; other tests must not inherit that."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def marked(mark: str) -> list[int]:
    return [*with_variable(f"{MARK}={mark}")]
