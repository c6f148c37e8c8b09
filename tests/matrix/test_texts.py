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
from nodegauge_operator.api.report import Report, parse_report
from nodegauge_operator.core.alerts import alerts
from nodegauge_operator.core.faults import Fault, faults
from support.objects import make_node, make_policy
from testbed.matrix.expected import scenarios
from testbed.matrix.texts import Case

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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [scenario.name for scenario in scenarios()])
def test_every_outlet_names_gpu_serial_cause_since_and_next_step(name: str) -> None:
    case = cases().get(name)
    if case is None:
        pytest.skip("this machine cannot have the fault")
    report = parse_report(case.objects[0])
    every = [
        fault for fault in faults(report.status, policy=POLICY, node=report.name) if fault.probe == "health"
    ]
    if not every:
        return
    (fault, *_), shown = every, {}
    for section, output in sections(case, report, fault):
        shown[section] = output
        flat = " ".join(output.split())
        lacking = [gpu.serial for gpu in fault.gpus[:2] if gpu.serial not in flat]
        lacking += [gpu.pci for gpu in fault.gpus[:1] if gpu.pci not in flat]
        step = fault.steps[0] if section in ("explain", "ticket") else fault.next_step
        since = [fault.since] if section != "condition" else []  # it changes with what is wrong alone
        lacking += [word for word in (*since, step.rstrip(".")) if word not in flat]
        assert not lacking, f"{section} lacks {lacking}:\n{output}"
    document = "".join(f"== {section}\n{output.rstrip()}\n\n" for section, output in shown.items())
    document = document.replace(os.uname().release, "KERNEL")
    path = GOLDEN / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.txt"
    if os.environ.get("NODEGAUGE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(document, encoding="utf-8")
    assert document == path.read_text(encoding="utf-8")
