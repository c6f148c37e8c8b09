"""What people read of a machine with a fault: `python -m testbed.matrix.texts PROFILE` plays every fault of
the table on it, after a load run and an NCCL run, and prints the objects of each as a line of JSON."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_contract import decode, text
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.kube.reports import without_nulls
from support import load_results, nccl_results
from support.objects import read
from testbed.hardware import HardwareError
from testbed.matrix.expected import scenarios
from testbed.matrix.worker import Machine, NodeHarness

POD = {"pod": "pod", "podUID": "pod", "nodeUID": "node-1-uid"}


class Case(msgspec.Struct, frozen=True):
    """One fault: NodeReport, NodeReading and Node as the API has them."""

    name: str
    now: float
    objects: list[dict[str, Any]]


def measured(node: NodeHarness) -> list[tuple[str, str]]:
    """After a load run and an NCCL run in which all was well: their documents by probe."""
    last = decode(node.document)
    count = len(last.gpus)
    load = load_results.loaded(*(load_results.gpu(index) for index in range(count))).load
    arms = [
        nccl_results.default_arm(462.0, gather=355.0, ranks=count, algorithm="NVLS"),
        nccl_results.p2p_off_arm(28.0, ranks=count),
    ]
    runs = {
        names.PROBE_LOAD: replace(last, probe=names.PROBE_LOAD, load=load),
        names.PROBE_NCCL: nccl_results.with_pairs(nccl_results.node(last, *arms), 380.0),
    }
    for probe, result in runs.items():
        known: dict[str, Any] = {"node": node.node, "policy": node.policy, "at": node.clock.seconds()}
        node.report = node.report.after(read(result), probe=probe, **known)
    return [(probe, text(result)) for probe, result in runs.items()]


def play(profile: str) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(profile, Path(folder), seed="texts")
        with machine.clock.patched():
            for scenario in scenarios():
                node = machine.healthy(scenario.load)
                documents = measured(node)
                try:
                    machine.hardware.fault(scenario.fault_name, **scenario.parameters)
                except HardwareError:
                    continue
                for _ in range(scenario.runs):
                    node.run()
                yield Case(scenario.name, node.clock.seconds(), _objects(node, documents))


def _objects(node: NodeHarness, documents: list[tuple[str, str]]) -> list[dict[str, Any]]:
    name, now = node.node.name, node.clock.seconds()
    parts = dict([*documents, (names.PROBE_HEALTH, node.document)])
    reading = {
        probe: {"sequence": 1, "at": stamp(now), "reason": "run", "reading": document, **POD}
        for probe, document in parts.items()
    }
    return [
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


if __name__ == "__main__":
    for case in play(sys.argv[1]):
        sys.stdout.buffer.write(msgspec.json.encode(case) + b"\n")
