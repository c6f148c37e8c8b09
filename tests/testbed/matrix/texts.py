"""What people read of a machine with a fault: `python -m testbed.matrix.texts PROFILE` plays every fault on
it, after a load run and an NCCL run, and prints the objects of each as a line of JSON."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_contract import Result, decode, text
from nodegauge_contract.chassis import ChassisReading
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import decision
from nodegauge_operator.core.model import ChassisView
from nodegauge_operator.core.probes.registry import EVERY
from nodegauge_operator.kube.reports import without_nulls
from support.objects import read
from testbed.hardware import HardwareError, plug
from testbed.matrix import of_runs
from testbed.matrix.expected import scenarios
from testbed.matrix.worker import INTERVAL, Machine, NodeHarness

POD = {"pod": "pod", "podUID": "pod", "nodeUID": "node-1-uid"}
TIMES = 2
"""Runs that meet a fault, as many as any gate of a load run, an NCCL run or a BMC needs."""


class Case(msgspec.Struct, frozen=True):
    """One fault: NodeReport, NodeReading and Node as the API has them; ChassisReading if the BMC was read."""

    name: str
    now: float
    objects: list[dict[str, Any]]


class Followed:
    """A node and all that its probes wrote last."""

    def __init__(self, node: NodeHarness) -> None:
        self.node, self.documents, self.chassis = node, dict[str, str](), dict[str, Any]()
        last = decode(node.document)
        for result in (of_runs.load(last), of_runs.nccl(last)):
            self.run(result)

    def run(self, result: Result) -> None:
        node = self.node
        known: dict[str, Any] = {"node": node.node, "policy": node.policy, "at": node.clock.seconds()}
        node.report = node.report.after(read(result), probe=result.probe, **known)
        self.documents[result.probe] = text(result)

    def bmc(self, reading: ChassisReading) -> None:
        node, kind = self.node, EVERY[names.PROBE_BMC]
        at, number = node.clock.seconds(), self.chassis.get("number", 0) + 1
        seen = ChassisView(
            name="node-1",
            uid="bmc",
            resource_version="1",
            number=number,
            read_at=at,
            reading=msgspec.json.encode(reading),
        )
        context = replace(node.report.context(node=node.node, policy=node.policy, at=at), chassis=seen)
        ended = kind.news(context)
        if ended is not None:
            node.report = replace(node.report, status=decision.decide(context, kind, ended))
        body = msgspec.to_builtins(reading)
        self.chassis = {"source": "redfish", "number": number, "readAt": stamp(at), "reading": body}

    def case(self, name: str) -> Case:
        return Case(name, self.node.clock.seconds(), _objects(self))


def play(profile: str) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "bmc"
        own.mkdir()
        readings = of_runs.of_bmc(plug(profile, own, seed="texts"), Path(folder) / "access")
        machine = Machine(profile, Path(folder), seed="texts")
        with machine.clock.patched():
            yield from _of_health(machine)
            for name, run in of_runs.RUNS.items():
                followed = Followed(machine.healthy(0))
                for _ in range(TIMES):
                    machine.clock.sleep(INTERVAL)
                    followed.run(run(decode(followed.node.document)))
                yield followed.case(name)
            for name, reading in readings.items():
                followed = Followed(machine.healthy(0))
                for shown in (readings[""], *[reading] * TIMES):
                    machine.clock.sleep(INTERVAL)
                    followed.bmc(shown)
                if name:
                    yield followed.case(name)


def _of_health(machine: Machine) -> Iterator[Case]:
    for scenario in scenarios():
        followed = Followed(machine.healthy(scenario.load))
        try:
            machine.hardware.fault(scenario.fault_name, **scenario.parameters)
        except HardwareError:
            continue
        for _ in range(scenario.runs):
            followed.node.run()
        yield followed.case(scenario.name)


def _objects(followed: Followed) -> list[dict[str, Any]]:
    node = followed.node
    name, now = node.node.name, node.clock.seconds()
    reading = {
        probe: {"sequence": 1, "at": stamp(now), "reason": "run", "reading": document, **POD}
        for probe, document in (followed.documents | {names.PROBE_HEALTH: node.document}).items()
    }
    objects: list[dict[str, Any]] = [
        {
            "kind": names.REPORT_KIND,
            "metadata": {
                "name": name,
                "uid": "report",
                "ownerReferences": [{"kind": "Node", "uid": node.node.uid}],
            },
            "status": without_nulls(msgspec.to_builtins(node.report.status)),
        },
        {"kind": names.READING_KIND, "metadata": {"name": name}, **reading},
        {"kind": "Node", "metadata": {"name": name, "labels": dict(node.node.labels)}},
    ]
    if followed.chassis:
        objects.append({"kind": names.CHASSIS_KIND, "metadata": {"name": name}, "status": followed.chassis})
    return objects


if __name__ == "__main__":
    for case in play(sys.argv[1]):
        sys.stdout.buffer.write(msgspec.json.encode(case) + b"\n")
