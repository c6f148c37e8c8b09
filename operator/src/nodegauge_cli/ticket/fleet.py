"""The other nodes: how many have the same finding, and their numbers beside this node's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from nodegauge_cli.ticket.facts import Fleet, Peer, Problem
from nodegauge_cli.ticket.raw import Object, items, mapping, name_of, of_status, word
from nodegauge_judge import Severity
from nodegauge_operator.api.report import ReportStatus

MOST_NODES = 10
"""Nodes that a ticket names; further ones are a number.  Chosen by this project."""
_PEERS = (
    ("bandwidth", "allReduce", "all_reduce bus bandwidth at 1 GiB", "GB/s"),
    ("load", "tflops", "computing speed of the median GPU", "TFLOPS"),
    ("clock", "smMhz", "SM clock at work", "MHz"),
)
"""Parts of a report with a fingerprint, and the number in each that can be compared."""


def fleet_of(
    others: Sequence[Object] | None, path: tuple[str, str], klass: str, fault: Problem | None
) -> Fleet | None:
    """The other nodes that have this class at this path of their status, and those with the same finding."""
    if others is None:
        return None
    alike = [each for each in others if klass and of_status(each, *path) == klass]
    same = [each for each in alike if fault is not None and _has(each, fault.code)]
    known = sorted(name_of(each) for each in same)
    drivers = Counter(word(of_status(each, "versions", "driver")) or "unknown" for each in alike)
    return Fleet(
        klass=klass,
        nodes=len(alike),
        same=known[:MOST_NODES],
        same_count=len(known),
        drivers=dict(drivers.most_common()),
    )


def _has(report: Object, code: str) -> bool:
    """Whether the finding stands in another node's report: its gate is bad or entered, or a probe has it."""
    gates = [mapping(gate) for gate in items(of_status(report, "gates"))]
    if any(
        gate.get("code") == code and (gate.get("bad") or gate.get("state") in ("gated", "held-back"))
        for gate in gates
    ):
        return True
    findings = (
        mapping(each)
        for probe in items(of_status(report, "probes"))
        for each in items(mapping(probe).get("findings"))
    )
    return any(each.get("code") == code and each.get("severity") != Severity.INFO for each in findings)


def peers_of(status: ReportStatus, others: Sequence[Object]) -> Iterator[Peer]:
    """Each number of this node that others with the same fingerprint have."""
    mine = {
        "bandwidth": (status.bandwidth.fingerprint, status.bandwidth.all_reduce),
        "load": (status.load.fingerprint, status.load.tflops),
        "clock": (status.clock.fingerprint, status.clock.sm_mhz or None),
    }
    for part, field, what, unit in _PEERS:
        fingerprint, own = mine[part]
        if not fingerprint or own is None:
            continue
        alike = (
            of_status(each, part, field)
            for each in others
            if of_status(each, part, "fingerprint") == fingerprint
        )
        values = [value for value in alike if isinstance(value, int | float) and value > 0]
        if values:
            yield Peer(
                what=what,
                unit=unit,
                own=own,
                median=median(values),
                lowest=min(values),
                highest=max(values),
                nodes=len(values),
            )
