"""What is: machines through scenarios, each machine in a fork.  A node is read twice while healthy, then with
the fault, by the real probe, judged, and advanced by the operator's own code.  The clock stands still between
two runs."""

import copy
import ctypes
import mmap
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from nodegauge_contract import decode, text
from nodegauge_judge import History, Judgement, NodeFacts, Severity, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.policy import PolicySpec
from nodegauge_probes import health
from nodegauge_probes.collectors import sampling
from nodegauge_probes.nvml.results import NvmlUnusable
from nodegauge_probes.result_builder import ResultBuilder
from support.objects import make_node, make_policy, make_report, read
from testbed.driver.build import LIBRARY
from testbed.hardware import Hardware, HardwareError, plug
from testbed.hardware.plugged import CLIENTS, CONDITION
from testbed.matrix.expected import Row, Scenario

WINDOW, HZ = 2.5, 2.0
"""Six samples: a slowdown bit without a counter needs five, over two seconds."""
INTERVAL = 900.0
"""Seconds between two runs, and between a fault and the run that meets it: the default policy's."""
CLOCK_VARIABLE = "NODEGAUGE_SIM_CLOCK"
START_NS = 1_000_000 * 10**9
"""A machine that has been up for eleven days."""

SPEC = {"nodeSelector": {}, "budget": {"gatedNodes": 1, "gatedNodesPerHour": "100%"}}
UNWATCHED: Any = SimpleNamespace(enter=lambda *_: None, leave=lambda: None)
"""A watch over calls that nobody looks at."""


class Order(msgspec.Struct, frozen=True):
    profile: str
    directory: str
    items: list[tuple[int, Scenario | None, int]]

    @property
    def answers(self) -> Path:
        return Path(self.directory) / "answers.json"


Answers = list[tuple[int, Row | str]]


class HeldClock:
    """CLOCK_BOOTTIME in nanoseconds, which stands still until it is told to move; shared with the driver."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(START_NS.to_bytes(8, "little"))
        with path.open("r+b") as file:
            self._now = mmap.mmap(file.fileno(), 8)

    def ns(self) -> int:
        return int.from_bytes(self._now[:], "little")

    def seconds(self) -> float:
        return self.ns() / 1e9

    def set(self, nanoseconds: int) -> None:
        self._now[:] = nanoseconds.to_bytes(8, "little")

    def sleep(self, seconds: float) -> None:
        """Let time pass at once: a nanosecond at least, so that who polls gets on."""
        self.set(self.ns() + max(1, round(seconds * 1e9)))

    @contextmanager
    def patched(self) -> Iterator[None]:
        watch = partial(sampling.watch, clock=self.seconds, sleep=self.sleep)
        with (
            patch.object(time, "clock_gettime_ns", lambda _: self.ns()),
            patch.object(time, "monotonic", self.seconds),
            patch.object(time, "sleep", self.sleep),
            patch.object(sampling, "watch", watch),
        ):
            yield


class NodeHarness:
    def __init__(self, hardware: Hardware, clock: HeldClock) -> None:
        profile = hardware.profile
        self.hardware, self.clock = hardware, clock
        self.policy = replace(make_policy(), spec=msgspec.convert(SPEC, PolicySpec))
        capacity = str(profile.node.gpu_capacity or len(profile.gpus))
        self.node = replace(make_node().bearing(profile.node.labels), gpu_capacity=capacity)
        self.report = make_report(self.node)
        self.judgement: Judgement | None = None
        self.document = ""

    @property
    def facts(self) -> NodeFacts:
        node = self.node
        return NodeFacts.from_node(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpu_capacity})

    def run(self) -> None:
        self.clock.sleep(INTERVAL)
        self.document = _measure(self.hardware)
        result = decode(self.document)
        before = self.report.status.probe[names.PROBE_HEALTH]
        self.judgement = judge_health(
            result,
            thresholds=self.policy.spec.thresholds,
            history=History.decode(before.history),
            node=self.facts,
            interval=self.policy.interval_of(names.PROBE_HEALTH),
        )
        now = self.clock.seconds()
        self.report = self.report.after(read(result), node=self.node, policy=self.policy, at=now)

    def row(self) -> Row:
        assert self.judgement is not None
        desired = self.report.status.desired
        output = [f for f in self.judgement.findings if f.severity is not Severity.INFO]
        taints = [f"{taint.key.removeprefix(names.PREFIX)}={taint.value}" for taint in desired.taints]
        return Row(
            findings={finding.code: finding.severity.value for finding in reversed(output)},
            verdict=self.judgement.verdict.value,
            taint=", ".join(taints),
            interconnect=desired.labels.get(names.LABEL_INTERCONNECT, ""),
            gbps=desired.labels.get("nodegauge.dev/nvlink-gbps", ""),
            health=desired.labels.get(names.LABEL_HEALTH, ""),
            throttled=desired.labels.get("nodegauge.dev/throttled", ""),
            psu=desired.labels.get("nodegauge.dev/psu", ""),
        )


class Machine:
    def __init__(self, profile: str, directory: Path, *, seed: str | None = None) -> None:
        self.clock = HeldClock(directory / "clock")
        os.environ[CLOCK_VARIABLE] = str(directory / "clock")
        self.hardware = plug(profile, directory, seed=seed, clock=self.clock.ns)
        self._fresh = (self.hardware.directory / CONDITION).read_bytes()
        environ = self.hardware.env()
        os.environ.update(environ)
        # The loader read the variable when this process began.
        ctypes.CDLL(f"{environ['LD_LIBRARY_PATH']}/{LIBRARY}", mode=ctypes.RTLD_GLOBAL)
        self._healthy: dict[int, tuple[int, bytes, NodeHarness]] = {}

    def healthy(self, load: int) -> NodeHarness:
        if load not in self._healthy:
            (self.hardware.directory / CONDITION).write_bytes(self._fresh)
            self.hardware.load(load)  # which writes all that follows from the condition
            node = NodeHarness(self.hardware, self.clock)
            node.run()
            node.run()
            condition = (self.hardware.directory / CONDITION).read_bytes()
            self._healthy[load] = self.clock.ns(), condition, node
        now, condition, node = self._healthy[load]
        self.clock.set(now)
        (self.hardware.directory / CONDITION).write_bytes(condition)
        (self.hardware.directory / CLIENTS).unlink(missing_ok=True)
        return copy.copy(node)

    def observe(self, scenario: Scenario | None, *, load: int) -> NodeHarness:
        node = self.healthy(load)
        if scenario is not None:
            self.hardware.fault(scenario.fault_name, **scenario.parameters)
            for _ in range(scenario.runs):
                node.run()
        return node


def _measure(hardware: Hardware) -> str:
    builder, environ = ResultBuilder(probe=health.NAME, run="", node="node-1"), hardware.env()
    settings = health.Settings(
        sysfs=Path(environ["NODEGAUGE_SYSFS"]), procfs=Path(environ["NODEGAUGE_PROCFS"]), window=WINDOW, hz=HZ
    )
    try:
        health.measure(builder, watch=UNWATCHED, settings=settings)
    except NvmlUnusable as unusable:
        return text(builder.build(duration_ms=0, problem=unusable.problem))
    return text(builder.build(duration_ms=0))


def play(order: Order) -> None:
    machine = Machine(order.profile, Path(order.directory))
    answers: dict[int, Row | str] = {}
    with machine.clock.patched():
        for number, scenario, load in order.items:
            try:
                answers[number] = machine.observe(scenario, load=load).row()
            except HardwareError as error:
                answers[number] = str(error)
    order.answers.write_bytes(msgspec.json.encode([*answers.items()]))


def main() -> int:
    """Orders from standard input; a machine's profile is printed once its answers stand."""
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Order])
    at_a_time, failed = os.cpu_count() or 1, False
    living: dict[int, tuple[str, ForkProcess]] = {}
    while orders or living:
        while orders and len(living) < at_a_time:
            order = orders.pop(0)
            process = get_context("fork").Process(target=play, args=[order])
            process.start()
            living[process.sentinel] = order.profile, process
        ended = connection.wait([*living])
        for sentinel in [one for one in living if one in ended]:
            profile, process = living.pop(sentinel)
            process.join()
            failed |= process.exitcode != 0
            print(profile, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
