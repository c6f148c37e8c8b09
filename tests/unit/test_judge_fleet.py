"""Versions of a node against those of its class: quiet during a roll-out, and without a majority."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import NodeFacts, judge_health
from nodegauge_judge.model import Versions

NOW, WEEK = 1_800_000_000.0, 7 * 86_400.0
OWN = Versions(driver="570", vbios="92", kernel="6.8", since=NOW - WEEK)
NEWER = replace(OWN, driver="580")


def result() -> Result:
    """A node that runs what OWN says."""
    node = made.every_gpu(made.phb(), vbios="92")
    return replace(node, system=replace(node.system, driver="570"), host=replace(node.host, kernel="6.8"))


def subjects(*others: Versions, own: Versions = OWN) -> list[str]:
    judgement = judge_health(result(), node=NodeFacts(versions=own), fleet=lambda _: others, read_at=NOW)
    return [finding.subject for finding in judgement.findings if finding.code == "fleet-drift"]


@pytest.mark.parametrize(
    ("others", "own", "expected"),
    [
        ([NEWER] * 3, OWN, ["driver"]),
        ([NEWER] * 2, OWN, []),
        ([OWN] * 3, OWN, []),
        ([NEWER] * 9 + [OWN], OWN, ["driver"]),
        ([NEWER] * 8 + [OWN] * 2, OWN, []),
        ([replace(NEWER, since=NOW - WEEK + 1)] * 9, OWN, []),
        ([NEWER] * 9, replace(OWN, since=NOW - WEEK + 1), []),
        ([NEWER] * 9, replace(OWN, kernel="6.7"), []),
        ([NEWER] * 9, Versions(), []),
        ([replace(OWN, vbios="96")] * 3, OWN, ["VBIOS"]),
        ([replace(OWN, kernel="6.9")] * 3, OWN, ["kernel"]),
        ([replace(OWN, kernel="")] * 3, OWN, []),
    ],
    ids=[
        *("three agree", "two do not prove it", "all alike", "one in ten is odd", "two in ten are odd"),
        *("the others changed within a week", "this one did", "it has just changed", "no history"),
        *("another VBIOS", "another kernel", "nobody tells the kernel"),
    ],
)
def test_a_node_differs_from_its_class(others: list[Versions], own: Versions, expected: list[str]) -> None:
    assert subjects(*others, own=own) == expected
