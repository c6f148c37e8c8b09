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
import yaml

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


WITHOUT = yaml.safe_load(Path(__file__).with_name("silent.yaml").read_text("utf-8"))


def faults_of(case: Case) -> list[Fault]:
    """What is to be said of the case: no finding of a healthy machine."""
    report = parse_report(case.objects[0])
    return faults(report.status, policy=POLICY, node=report.name)


@pytest.mark.timeout(900)
def test_every_fault_of_the_testbed_has_its_texts() -> None:
    names = {scenario.name: scenario.fault_name for scenario in scenarios()}
    seen = {names.get(name, name) for name, case in cases().items() if faults_of(case)}
    assert set(FAULTS) - seen == WITHOUT["silent"].keys() | WITHOUT["not here"].keys()


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
