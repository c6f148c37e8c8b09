"""What is: one machine through scenarios, in a process that has the machine's driver (started by `board`).

Each scenario gets a machine that was healed and rebooted, and a node without a past.  It is read twice while
healthy, then broken, then read again: by the real probe through the real pynvml, judged by the judge, and
advanced by the operator's own code, which decides what the node carries.  Prints a line of JSON per scenario.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from nodegauge_contract import Result, decode, encode_message
from nodegauge_judge import History, Judgement, NodeFacts, Severity, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, PolicySpec
from nodegauge_operator.api.report import Outcome, Report, ReportStatus, Run, stamp
from nodegauge_operator.core import desired_state
from nodegauge_operator.core.context import Snapshot
from nodegauge_operator.core.model import NodeView, ProbeDefaults
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.core.report_update import status_after
from nodegauge_probes import health
from nodegauge_probes.nvml.results import NvmlUnusable
from nodegauge_probes.result_builder import ResultBuilder
from testbed.hardware import Hardware, HardwareError, plug
from testbed.matrix import collection
from testbed.matrix.expected import Row, Scenario

WINDOW, HZ = "0.16", "50"
BETWEEN = 0.05
"""Seconds between a fault and the run that meets it: it must have stood for a while."""
HANGS = ("hung-call",)
"""Faults after which a probe in this process would never return: a process of its own reads them."""
DEADLINE = "2"

SPEC = {
    "nodeSelector": {},
    "budget": {"gatedNodes": 1, "gatedNodesPerHour": "100%"},
    "probes": {"health": {"interval": "1m"}},
    "thresholds": {
        "intervalFloor": 0.01,
        "busyFloor": 0.08,
        "swThermalWarnSeconds": 0.001,
        "swThermalFailSeconds": 0.005,
        "hwThermalWarnSeconds": 0.001,
        "hwThermalFailSeconds": 0.005,
        "powerBrakeWarnSeconds": 0.001,
        "powerBrakeFailSeconds": 0.005,
        "bitFailSamples": 3,
        "bitFailSeconds": 0.05,
    },
}
"""The default policy with floors of milliseconds: the same rules on the same clock, sooner."""


class Order(msgspec.Struct, frozen=True):
    """What one worker is to do: scenarios by number, None for the healthy machine under `load`."""

    profile: str
    directory: str
    items: list[tuple[int, Scenario | None, int]]
    archive: str


class Quiet:
    """A watch that nobody looks at."""

    def enter(self, call: str, subject: str) -> None:
        """A call begins."""

    def leave(self) -> None:
        """It came back."""


class NodeHarness:
    """One node of one machine, and all that was read of it."""

    def __init__(self, hardware: Hardware) -> None:
        profile = hardware.profile
        self.hardware = hardware
        self.policy = Policy(name="matrix", uid="1", generation=1, spec=msgspec.convert(SPEC, PolicySpec))
        self.node = NodeView(
            name="node-1",
            uid="uid-1",
            resource_version="1",
            labels=dict(profile.node.labels),
            boot_id="boot-1",
            gpu_capacity=str(profile.node.gpu_capacity or len(profile.gpus)),
        )
        self.status = ReportStatus()
        self.number = 0
        self.judgement: Judgement | None = None
        self.documents: list[str] = []

    @property
    def facts(self) -> NodeFacts:
        """What the cluster knows about the node."""
        node = self.node
        return NodeFacts.of(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpu_capacity})

    def run(self, *, apart: bool = False) -> None:
        """One run: probe, message, judgement, report."""
        self.number += 1
        self.documents.append(_apart(self.hardware) if apart else encode_message(_measure(self.hardware)))
        result = decode(self.documents[-1])
        policy, node = self.policy, self.node
        before = self.status.probe(names.PROBE_HEALTH)
        self.judgement = judge_health(
            result,
            thresholds=policy.spec.thresholds,
            history=History.decode(before.history),
            node=self.facts,
            interval=policy.interval_of(names.PROBE_HEALTH),
        )
        now = time.time()
        report = Report(name=node.name, uid="1", resource_version="1", node_uid=node.uid, status=self.status)
        context = Snapshot(
            node=node,
            policy=policy,
            report=report,
            now=now,
            gate_slot=True,
            defaults=ProbeDefaults(namespace="", image=""),
        ).context
        assert context is not None
        ended = EndedRun(
            run=Run(number=self.number, pod_uid=f"pod-{self.number}", started_at=stamp(now)),
            end=RunEnd(outcome=Outcome.READ, reason="Read", result=result),
        )
        status = status_after(context, KINDS[names.PROBE_HEALTH], ended)
        self.status = desired_state.next_status(context.after(status))

    def row(self) -> Row:
        """What came of it."""
        assert self.judgement is not None
        desired = self.status.desired
        output = [f for f in self.judgement.findings if f.severity is not Severity.INFO]
        taints = [f"{taint.key.removeprefix(names.PREFIX)}={taint.value}" for taint in desired.taints]
        return Row(
            findings={finding.code: finding.severity.value for finding in reversed(output)},
            verdict=self.judgement.verdict.value,
            taint=", ".join(taints),
            interconnect=desired.labels.get(names.LABEL_INTERCONNECT, ""),
            gbps=desired.labels.get(names.LABEL_NVLINK_GBPS, ""),
            health=desired.labels.get(names.LABEL_HEALTH, ""),
            throttled=desired.labels.get(names.LABEL_THROTTLED, ""),
            psu=desired.labels.get(names.LABEL_PSU, ""),
        )


def observe(harness: NodeHarness, scenario: Scenario | None, *, load: int) -> Row:
    """Baseline twice, then the fault and its runs; the row that came of it."""
    harness.hardware.load(load)
    for _ in range(2):
        time.sleep(BETWEEN)
        harness.run()
    if scenario is not None:
        harness.hardware.fault(scenario.fault_name, **scenario.parameters)
        for _ in range(scenario.runs):
            time.sleep(BETWEEN)
            harness.run(apart=scenario.fault_name in HANGS)
    return harness.row()


def _measure(hardware: Hardware) -> Result:
    """The probe in this process: it loaded the machine's driver when it started."""
    environ = hardware.env()
    settings = health.Settings(
        sysfs=Path(environ["NODEGAUGE_SYSFS"]),
        procfs=Path(environ["NODEGAUGE_PROCFS"]),
        window=float(WINDOW),
        hz=float(HZ),
    )
    builder = ResultBuilder(probe=health.NAME, run="", node="node-1")
    try:
        health.measure(builder, watch=Quiet(), settings=settings)
    except NvmlUnusable as unusable:
        return builder.build(duration_ms=0, problem=unusable.problem)
    return builder.build(duration_ms=0)


def _apart(hardware: Hardware) -> str:
    """The probe as a program, with its own watchdog."""
    command = [sys.executable, "-m", "nodegauge_probes", health.NAME, "--window", WINDOW, "--hz", HZ]
    done = subprocess.run(
        [*command, "--deadline", DEADLINE], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def main() -> int:
    """Read an `Order` from standard input, print a line per item: number, then a row or why not."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    hardware = plug(order.profile, Path(order.directory))
    judged: list[tuple[int, NodeHarness]] = []
    answers: dict[int, Row | str] = {}
    for number, scenario, load in order.items:
        hardware.heal()
        hardware.reboot()  # counters begin anew, and nothing runs
        harness = NodeHarness(hardware)
        try:
            answers[number] = observe(harness, scenario, load=load)
            judged.append((number, harness))
        except HardwareError as error:
            answers[number] = str(error)
    differ = collection.differences([harness for _, harness in judged], archive=order.archive, policy=SPEC)
    answers |= {number: text for (number, _), text in zip(judged, differ, strict=True) if text}
    for number, answer in answers.items():
        sys.stdout.buffer.write(msgspec.json.encode([number, answer]) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
