"""Documents that decode and lie: whatever the values are, the report stays within its CRD and comes to rest,
and nodes get labels that the API takes and that say no more than was measured.

A report that the API server refuses, or that never comes to rest, would be patched for ever and its pod never
deleted.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, ContractError, Result, columns, decode
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ReportStatus
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import KINDS, label_keys
from nodegauge_operator.kube.reports import without_nulls
from support import schema
from support.api_server import copied
from support.messages import spoilt
from support.nccl_nodes import FAST, IMAGE, NODE, NcclNode, nccl_node
from support.objects import (
    MINUTE,
    NOW,
    AReport,
    make_context,
    make_node,
    make_pod,
    make_policy,
    make_report,
    paths_of,
)
from support.properties import tried

pytestmark = pytest.mark.slow

LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
"""apimachinery, validation: label values."""
NUMBERS = [key for key in label_keys() if "busbw" in key or "gbps" in key]
LONG = "\U0001f600"
ODD: list[Any] = [
    *(0, 1, -1, 2, 3, 64, 255, 2**31, -(2**63), 2**63 - 1, 1.5, -0.5, 1e-300, 1e308, -1e308, True, None),
    *("", " ", "\n", "\x1b[31m", LONG * 120, "0000:0f:00.0", "A" * 128, "gpu-lost", "hung", "mig", "busy"),
    *([], {}, {"unavailable": "NotSupported"}, {"unavailable": LONG * 500}),
    *({"kind": "gpu-lost", "call": "x", "message": LONG * 500}, {"kind": "y" * 128, "message": "z" * 512}),
]
"""What is put in the place of a value, wherever the contract lets it pass."""
TABLES: list[Any] = [
    *({"rows": 0}, {"rows": 2}, {"rows": -1}, {"rows": 300}, {"rows": 2, "index": [1, 0]}, {"rows": True}),
    *({"each": []}, {"each": [1, "a"]}, {"of": [[], [0]], "at": [0, 1]}, {"of": [], "at": [0, 0]}, [0, 0]),
]
"""What only a table may have in the place of a value."""
POD = make_pod(NODE, probe=names.PROBE_NCCL)
HEALTH: list[Any] = [
    to_builtins(each) for each in (made.titan(), made.phb(), made.h100(2), made.a100_bridged_pairs())
]
BY_COLUMN: list[Any] = [columns.fold(document) for document in HEALTH]
"""The same as probes write them: their tables may be odd too."""
HUNG = nccl.swapped(FAST, ArmName.DEFAULT, outcome="hung", phase="init", cells=[])
NCCL_RUNS: list[Any] = [to_builtins(each) for each in (nccl.titan(), FAST, nccl.phb(), HUNG)]
NCCL_PATHS = [
    [("run",), ("node",), ("omitted",), ("problem",), ("system", "driver"), *paths_of(d["bench"], ("bench",))]
    for d in NCCL_RUNS
]


def check(report: AReport) -> None:
    """The status passes the CRD's schema and reads back; labels and the event are such as the API takes."""
    status = without_nulls(to_builtins(report.status))
    assert schema.errors(status, schema.schema("nodereports")["properties"]["status"]) == []
    text = msgspec.json.encode(status)
    assert msgspec.json.decode(text, type=ReportStatus) == report.status
    assert len(text) < 200_000
    for key, value in report.status.desired.labels.items():
        assert len(value) <= 63, key
        assert LABEL_VALUE.match(value), (key, value)
        assert key not in NUMBERS or 0 <= int(value) <= 10**6
    change = report.status.change
    assert change is None or len(change.message.encode()) <= 1024


def after(result: Result) -> AReport:
    """The report once this document was brought home."""
    return make_report().after(RunEnd(outcome=Outcome.READ, reason="Read", result=result), node=make_node())


def changed(document: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Result | None:
    """The document with these values instead; None where it does not decode."""
    try:
        return decode(msgspec.json.encode(spoilt(document, changes)).decode())
    except ContractError:
        return None


def changes_of(paths: list[Any]) -> list[tuple[Any, Any]]:
    """Each path with a third of the odd values: neighbours, which are alike, have the others."""
    return [(path, value) for n, path in enumerate(paths) for value in ODD[n % 3 :: 3]]


def test_each_value_may_be_anything_the_contract_lets_pass() -> None:
    """One value of a good document at a time, with odd ones in its place."""
    once = [path for path in paths_of(HEALTH[0]) if path[:2] != ("gpus", 1)]  # it is like the first GPU
    by_column = [(path, value) for path in paths_of(BY_COLUMN[0]) for value in TABLES]
    results = [changed(HEALTH[0], [turn]) for turn in changes_of(once)]
    assert len(results) - results.count(None) > 200
    folded = [changed(BY_COLUMN[0], [turn]) for turn in by_column]
    assert len(folded) - folded.count(None) > 20
    for result in filter(None, results + folded):
        check(after(result))


@st.composite
def results(draw: st.DrawFn) -> Result:
    """A document with some of its values changed that still decodes; or with GPUs missing or repeated."""
    document = draw(st.sampled_from(HEALTH))
    gpus = document["gpus"]
    gpus = draw(st.sampled_from([gpus, gpus, gpus[:-1], [*gpus, gpus[0]], (gpus * 64)[:64]]))
    document = document | {"gpus": gpus}
    if draw(st.booleans()) or len(gpus) > 16:  # those would be too long without columns
        document = columns.fold(document)
    change = st.tuples(st.sampled_from(paths_of(document)), st.sampled_from(ODD + TABLES))
    result = changed(document, draw(st.lists(change, max_size=4)))
    return result or decode(msgspec.json.encode(document).decode())


@given(result=results())
@tried(80)
def test_an_unreadable_verdict_never_carries_a_class(result: Result) -> None:
    """Promise 1: what was not judged sets nothing, however much of it looks like NVLink."""
    report = after(result)
    check(report)
    if report.status.probes[0].last_run.outcome is not Outcome.READ:
        assert report.status.desired.labels == {}
        assert report.status.interconnect.klass == ""
        assert report.status.desired.condition == "Unknown"


@given(first=results(), second=results())
@tried(40)
def test_one_odd_result_after_another_fits_the_crd(first: Result, second: Result) -> None:
    """What the first one left in the history and the report is read by the second."""
    report = after(first)
    check(report)
    check(report.after(RunEnd(outcome=Outcome.READ, reason="Read", result=second), node=make_node()))


# -- NCCL runs


def ended(document: Any) -> RunEnd:
    """How the operator understands a pod that left this."""
    pod = POD.running().leaving(msgspec.json.encode(document).decode())
    end = KINDS[names.PROBE_NCCL].ending(pod, make_context(node=NODE, pods=(pod,), now=NOW + 60))
    assert end is not None
    return end


def addressed(document: Any) -> Any:
    """The document as this pod would have left it."""
    return document | {"run": names.run_of_pod(POD.name), "node": NODE.name, "probe": names.PROBE_NCCL}


def rests(report: NcclNode, policy: Any = None) -> None:
    """The API server takes it, and asking again changes nothing."""
    check(report)
    assert len(msgspec.json.encode(report.status)) <= 16_384
    known = {"node": NODE, "policy": policy or make_policy(), "at": NOW + 2 * MINUTE, "nccl_image": IMAGE}
    assert report.seen(**known).status == report.status


def test_each_value_of_an_nccl_run_may_be_anything() -> None:
    """One value at a time, with odd ones in its place: read, skipped or unknown, and never raised."""
    outcomes, before = dict.fromkeys(Outcome, 0), nccl_node()
    paths = [p for p in NCCL_PATHS[0] if all(part in (0, 1) for part in p if isinstance(part, int))]
    once = [path for path in paths if path[:3] != ("bench", "arms", 1) and path[3:5] != ("cells", 1)]
    for turn in changes_of(once):
        report = before.measured(ended(spoilt(addressed(NCCL_RUNS[0]), [turn])))
        outcomes[report.status.probe(names.PROBE_NCCL).last_run.outcome] += 1
        rests(report)
    assert min(outcomes.values()) > 1, outcomes


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """An NCCL run's document with some of its values changed, arms repeated or missing."""
    which = draw(st.integers(0, len(NCCL_RUNS) - 1))
    document = addressed(copied(NCCL_RUNS[which]))
    arms = document["bench"]["arms"]
    more = [arms, arms, arms[1:], [*arms, arms[0]], (arms * 64)[:64], [], arms[::-1]]
    document["bench"]["arms"] = draw(st.sampled_from(more))
    change = st.tuples(st.sampled_from(NCCL_PATHS[which]), st.sampled_from(ODD))
    return spoilt(document, draw(st.lists(change, max_size=3)))


@given(first=messages(), second=messages())
@tried(40)
def test_whatever_nccl_runs_say_the_report_comes_to_rest(first: Any, second: Any) -> None:
    """Several lies at once, one run after another, and graded by other rules: nothing raises."""
    report = nccl_node().measured(ended(first))
    rests(report)
    report = report.measured(ended(second))
    rests(report)
    strict = make_policy().of({"thresholds": {"busbwExpectedShare": 0.99}})
    rests(report.seen(node=NODE, policy=strict, at=NOW + MINUTE, nccl_image=IMAGE), policy=strict)
