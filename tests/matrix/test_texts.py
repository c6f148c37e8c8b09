"""What people read of each fault, on eight GPUs after load and NCCL runs: event, condition, explain, ticket,
alert.  NODEGAUGE_WRITE_GOLDEN=1 writes the golden files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from nodegauge_cli.explain import lines
from nodegauge_cli.explanation import explained
from nodegauge_cli.ticket.objects import from_objects
from nodegauge_cli.ticket.text import text
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.report import Report, parse_report
from nodegauge_operator.core.alerts import alerts
from nodegauge_operator.core.faults import faults
from support.objects import make_node, make_policy
from testbed.hardware import FAULTS
from testbed.matrix.expected import scenarios
from testbed.matrix.of_runs import BMC, LEAK, RUNS
from testbed.matrix.texts import Case

SOME = 40
"""Characters of what was measured that every text has."""
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "texts"
PROFILE = "h100-sxm-8"
POLICY = make_policy()


@cache
def cases() -> dict[str, Case]:
    command = [sys.executable, "-m", "testbed.matrix.texts", PROFILE]
    done = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    every = [msgspec.json.decode(line, type=Case) for line in done.stdout.splitlines()]
    return {case.name: case for case in every}


def sections(case: Case, report: Report, fault: Fault) -> Iterator[tuple[str, str]]:
    """What each place says of the node."""
    status = report.status
    assert status.change is not None
    yield "event", f"{status.change.reason}: {status.change.message}"
    yield "condition", f"{status.desired.condition} {status.desired.reason}: {status.desired.message}"
    yield "explain", "\n".join(lines(explained(report, POLICY, now=case.now), now=case.now))
    yield "ticket", text(from_objects(case.objects, report.name, chosen=fault.code))
    for alert in alerts(status, make_node(report.name), POLICY):
        yield (
            "alert",
            "\n".join(f"{field}: {value}" for field, value in msgspec.structs.asdict(alert).items()),
        )


NOTHING = "nothing was measured: the line of the probe says why, and nothing is said of the node"
SILENT = {
    "application-clocks": "a setting: information only",
    "clock-step": "the wall clock is not the machine's health",
    "counters-restarted": "a restart of counters is no fault",
    "device-unhealthy": "the device plugin has said it: the capacity is the node's own business",
    "driver-mismatch": "no reading, so no fault: the node is unread (test_cli_explain, test_alerts_of_nodes)",
    "gpu-in-use": "a job is no fault",
    "gpus-hidden": "as driver-mismatch",
    "hung-call": "a real call hangs, which needs real time: tests/probes, and the runbook's UNREAD",
    "nccl-cold-init": "a slow start is no fault",
    "nccl-crash": NOTHING,
    "nccl-error": NOTHING,
    "nccl-garbage": NOTHING,
    "nccl-in-real-time": "no fault",
    "nccl-no-engine": "the image's fault, and no run of the node",
    "nccl-nvls-broken": NOTHING,
    "nccl-out-of-memory": NOTHING,
    "nccl-partial": NOTHING,
    "nccl-unsteady": "the worse half of its runs is nccl-slow",
    "shared-uplink": "how the machine is built: information only",
    "supply-removed": "an empty bay of six: the others have one to spare",
    "sw-power-cap": "every busy GPU has it",
}
"""Faults of the testbed of which nothing is to be said, or not here."""
NOT_HERE = {
    "memory-unrepairable": "a Blackwell's",
    "page-pending": "a Volta's",
    "psu-alarm": "no supply of this machine has a sensor of hwmon",
    "rail-out-of-range": "no rail of this machine has a sensor of hwmon",
    "recovery-action": "a newer driver's",
    "repair-pending": "a Blackwell's",
    "fan-stopped": "modules have no fans",
}
"""Faults that this machine cannot have."""


def faults_of(case: Case) -> list[Fault]:
    """What is to be said of the case: no finding of a healthy machine."""
    report = parse_report(case.objects[0])
    return faults(report.status, policy=POLICY, node=report.name)


@pytest.mark.timeout(900)
def test_every_fault_of_the_testbed_has_its_texts() -> None:
    names = {scenario.name: scenario.fault_name for scenario in scenarios()}
    seen = {names.get(name, name) for name, case in cases().items() if faults_of(case)}
    assert set(FAULTS) - seen == SILENT.keys() | NOT_HERE.keys()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*(each.name for each in scenarios()), *RUNS, *BMC, LEAK])
def test_every_outlet_names_gpu_serial_cause_number_since_and_next_step(name: str) -> None:
    case = cases().get(name)
    every = faults_of(case) if case is not None else []
    if case is None or not every:
        pytest.skip("this machine cannot have the fault, or it is none")
    report, (fault, *_), shown = parse_report(case.objects[0]), every, dict[str, str]()
    for section, output in sections(case, report, fault):
        shown[section] = output
        assert not (lacks := lacking(section, " ".join(output.split()), fault)), (
            f"{section} {lacks}:\n{output}"
        )
    document = "".join(f"== {section}\n{output.rstrip()}\n\n" for section, output in shown.items())
    document = document.replace(os.uname().release, "KERNEL")
    path = GOLDEN / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.txt"
    if os.environ.get("NODEGAUGE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(document, encoding="utf-8")
    assert document == path.read_text(encoding="utf-8")


def lacking(section: str, flat: str, fault: Fault) -> list[str]:
    """What a text does not hold of place, cause, number, time and next step.  A condition changes with what
    is wrong alone, so it has no time and no number."""
    step = fault.steps[0] if section in ("explain", "ticket") else fault.next_step
    wanted = [gpu.serial for gpu in fault.gpus[:2]] + [gpu.pci for gpu in fault.gpus[:1]]
    cause = fault.code if section in ("alert", "condition") else fault.cause or fault.title
    wanted += [step.rstrip("."), cause]
    if section != "condition":
        wanted += [fault.since, fault.worst if not fault.gpus else ""]
        if _numberless(fault.measured)[:SOME] not in _numberless(flat):
            wanted.append(fault.measured)
    return [word for word in wanted if word not in flat]


def _numberless(text: str) -> str:
    """An event tells of the run that changed something: its numbers may be older than those of the fault."""
    return re.sub(r"\d+(?:\.\d+)?", "9", text)
