"""Documents that decode and lie: whatever the values are, the report stays within its CRD and comes to rest,
and nodes get labels that the API takes and that say no more than was measured.

A report that the API server refuses, or that never comes to rest, would be patched for ever and its pod never
deleted.  One run after another, here; what a single run leaves is changed far more in `tests/fuzz`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

import support.nccl_results as nccl
import support.results as made
from fuzz import checks
from fuzz.mutation import ODD
from nodegauge_contract import ArmName, ContractError, Result, columns, decode
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ReportStatus
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import KINDS, label_keys
from nodegauge_operator.kube.reports import without_nulls
from support.api_server import copied
from support.messages import spoilt
from support.nccl_nodes import FAST, IMAGE, NODE, STRICT, nccl_node
from support.objects import (
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

NUMBERS = [key for key in label_keys() if "busbw" in key or "gbps" in key]
POD = make_pod(NODE, probe=names.PROBE_NCCL)
HEALTH: list[Any] = [
    to_builtins(each) for each in (made.titan(), made.phb(), made.h100(2), made.a100_bridged_pairs())
]
HUNG = nccl.swapped(FAST, ArmName.DEFAULT, outcome="hung", phase="init", cells=[])
NCCL_RUNS: list[Any] = [to_builtins(each) for each in (nccl.titan(), FAST, nccl.phb(), HUNG)]


def check(report: AReport) -> None:
    """The status passes the CRD's schema and reads back; labels and the event are such as the API takes."""
    status = without_nulls(to_builtins(report.status))
    assert checks.refusals(status) == []
    text = msgspec.json.encode(status)
    assert msgspec.json.decode(text, type=ReportStatus) == report.status
    assert len(text) < 200_000
    for key, value in report.status.desired.labels.items():
        assert len(value) <= 63, key
        assert checks.LABEL_VALUE.fullmatch(value), (key, value)
        assert key not in NUMBERS or 0 <= int(value) <= 10**6
    change = report.status.change
    assert change is None or len(change.message.encode()) <= 1024


@st.composite
def results(draw: st.DrawFn) -> Result:
    """A document with some of its values changed that still decodes; or with GPUs missing or repeated."""
    document = draw(st.sampled_from(HEALTH))
    gpus = document["gpus"]
    gpus = draw(st.sampled_from([gpus, gpus, gpus[:-1], [*gpus, gpus[0]], (gpus * 64)[:64]]))
    document = document | {"gpus": gpus}
    if draw(st.booleans()) or len(gpus) > 16:  # those would be too long without columns
        document = columns.fold(document)
    change = st.tuples(st.sampled_from(paths_of(document)), st.sampled_from(ODD))
    for one in (spoilt(document, draw(st.lists(change, max_size=4))), document):
        try:
            return decode(msgspec.json.encode(one).decode())
        except ContractError:
            continue
    raise AssertionError("a document without changes is refused")


@given(first=results(), second=results())
@tried(80)
def test_one_odd_result_after_another_fits_the_crd(first: Result, second: Result) -> None:
    """The second reads what the first one left.  Promise 1: what was not judged sets nothing, however much of
    it looks like NVLink."""
    report, unread = make_report(), True
    for result in (first, second):
        end = RunEnd(outcome=Outcome.READ, reason="Read", result=result)
        report = report.after(end, node=make_node())
        check(report)
        unread = unread and report.status.probes[0].last_run.outcome is not Outcome.READ
        if unread:
            assert report.status.desired.labels == {}
            assert report.status.interconnect.klass == ""
            assert report.status.desired.condition == "Unknown"


@st.composite
def messages(draw: st.DrawFn) -> RunEnd:
    """How the operator understands a pod that left an NCCL run with some values changed, arms repeated or
    missing."""
    document = copied(draw(st.sampled_from(NCCL_RUNS)))
    document |= {"run": names.run_of_pod(POD.name), "node": NODE.name, "probe": names.PROBE_NCCL}
    arms = document["bench"]["arms"]
    more = [arms, arms, arms[1:], [*arms, arms[0]], (arms * 64)[:64], [], arms[::-1]]
    document["bench"]["arms"] = draw(st.sampled_from(more))
    change = st.tuples(st.sampled_from(paths_of(document)), st.sampled_from(ODD))
    text = msgspec.json.encode(spoilt(document, draw(st.lists(change, max_size=3)))).decode()
    pod = POD.running().leaving(text)
    end = KINDS[names.PROBE_NCCL].ending(pod, make_context(node=NODE, pods=(pod,), now=NOW + 60))
    assert end is not None
    return end


@given(ends=st.lists(messages(), min_size=1, max_size=2))
@tried(80)
def test_whatever_nccl_runs_say_the_report_comes_to_rest(ends: list[RunEnd]) -> None:
    report, strict = nccl_node(), make_policy().of(STRICT)
    known: dict[str, Any] = {"node": NODE, "at": NOW + 120, "nccl_image": IMAGE}
    for end in ends:
        report = report.measured(end)
        for policy in (make_policy(), strict):
            graded = report.seen(**known, policy=policy)
            check(graded)
            assert len(msgspec.json.encode(graded.status)) <= 16_384
            assert graded.seen(**known, policy=policy).status == graded.status
