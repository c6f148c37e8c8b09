"""NCCL runs that decode and lie: a report that the API server takes, labels that say no more than was
measured, and rest after each of them.

What never comes to rest would be patched for ever, and its pod never deleted.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

import support.nccl_results as nccl
from nodegauge_contract import ArmName, encode
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.core import pod_outcome
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.kube.reports import without_nulls
from support import schema
from support.api_server import copied
from support.messages import spoilt
from support.nccl_nodes import FAST, IMAGE, NODE, NcclNode, nccl_node
from support.objects import MINUTE, NOW, APolicy, make_pod, make_policy, paths_of
from support.properties import tried

pytestmark = pytest.mark.slow

POD = make_pod(NODE, probe=names.PROBE_NCCL)
BUSBW = (names.LABEL_BUSBW_ALLREDUCE, names.LABEL_BUSBW_ALLGATHER, names.LABEL_BUSBW_REDUCESCATTER)
MACHINES = [
    FAST,
    nccl.phb(),
    nccl.titan(),
    nccl.swapped(FAST, ArmName.DEFAULT, outcome="hung", phase="init", cells=[]),
]
TITAN = 2
DOCUMENTS: list[Any] = [json.loads(encode(machine)) for machine in MACHINES]
LONG = "\U0001f600"
ODD: list[Any] = [
    *(0, 1, -1, 2, 7, 64, 10**18, -(2**63), 2**63 - 1, 1e-300, 1e308, -1e308, True, None),
    *("", " ", "\n", "\x1b[31m", LONG * 120, "A" * 128, "default", "hung", "mig", "busy", "NaN"),
    *([], {}, {"unavailable": "NotSupported"}, {"unavailable": LONG * 500}, [[1e308] * 64] * 64),
    *({"kind": "gpu-lost", "call": "x", "message": LONG * 500},),
]
"""What is put in the place of a value, wherever the contract lets it pass."""


PATHS = [
    [("run",), ("node",), ("omitted",), ("problem",), ("system", "driver"), *paths_of(d["bench"], ("bench",))]
    for d in DOCUMENTS
]


def text_of(document: Any) -> str:
    """As a pod would leave it."""
    return msgspec.json.encode(document).decode()


def addressed(document: Any) -> Any:
    """The document as this pod would have left it."""
    return document | {"run": names.run_of_pod(POD.name), "node": NODE.name, "probe": names.PROBE_NCCL}


@st.composite
def messages(draw: st.DrawFn) -> str:
    """An NCCL run's document with some of its values changed, arms repeated or missing."""
    which = draw(st.integers(0, len(DOCUMENTS) - 1))
    document = addressed(copied(DOCUMENTS[which]))
    arms = document["bench"]["arms"]
    more = [arms, arms, arms[1:], [*arms, arms[0]], (arms * 64)[:64], [], arms[::-1]]
    document["bench"]["arms"] = draw(st.sampled_from(more))
    change = st.tuples(st.sampled_from(PATHS[which]), st.sampled_from(ODD))
    return text_of(spoilt(document, draw(st.lists(change, max_size=3))))


def ended(message: str) -> RunEnd:
    """How the operator understands a pod that left this."""
    policy = make_policy()
    kind = KINDS[names.PROBE_NCCL]
    limits, deadline = kind.limits(policy), kind.deadline(policy)
    end = pod_outcome.ending(
        POD.running().finished_with(message), node=NODE.name, limits=limits, deadline=deadline, now=NOW + 60
    )
    assert end is not None
    return end


def check(report: NcclNode, policy: APolicy | None = None) -> None:
    """The API server takes it, and asking again changes nothing."""
    status = without_nulls(to_builtins(report.status))
    assert schema.errors(status, schema.schema("nodereports")["properties"]["status"]) == []
    assert len(msgspec.json.encode(report.status)) <= 8192
    for key in BUSBW:
        value = report.status.desired.labels.get(key)
        assert value is None or 0 <= int(value) <= 10**6
    policy = policy or make_policy()
    again = report.seen(node=NODE, policy=policy, at=NOW + 2 * MINUTE, nccl_image=IMAGE)
    assert again.status == report.status


def test_each_value_of_an_nccl_run_may_be_anything() -> None:
    """One value at a time, with every odd one in its place: read, skipped or unknown, and never raised."""
    outcomes = dict.fromkeys(Outcome, 0)
    before = nccl_node()
    document = addressed(DOCUMENTS[TITAN])
    firsts = [path for path in PATHS[TITAN] if all(part in (0, 1) for part in path if isinstance(part, int))]
    one = [path for path in firsts if path[:3] != ("bench", "arms", 1) and path[3:5] != ("cells", 1)]
    for path in one:
        for value in ODD:
            end = ended(text_of(spoilt(document, [(path, value)])))
            after = before.measured(end)
            last = after.status.probe(names.PROBE_NCCL).last_run
            outcomes[last.outcome] += 1
            check(after)
    assert min(outcomes.values()) > 5, outcomes


@given(first=messages(), second=messages())
@tried(40)
def test_whatever_nccl_runs_say_the_report_comes_to_rest(first: str, second: str) -> None:
    """Several lies at once, one run after another, and graded by other rules: nothing raises."""
    report = nccl_node().measured(ended(first))
    check(report)
    report = report.measured(ended(second))
    check(report)
    strict = make_policy().of({"thresholds": {"busbwExpectedShare": 0.99}})
    graded = report.seen(node=NODE, policy=strict, at=NOW + MINUTE, nccl_image=IMAGE)
    check(graded, policy=strict)
