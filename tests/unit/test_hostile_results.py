"""Documents that decode and lie: whatever the numbers are, the report stays within its CRD and nodes get
labels that the API takes.

A report that the API server refuses would be patched for ever and its pod never deleted.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

import support.results as made
from nodegauge_contract import ContractError, Result, decode, encode
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ReportStatus
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.kube.reports import without_nulls
from support import schema
from support.messages import spoilt
from support.objects import AReport, make_node, make_report, paths_of
from support.properties import tried

pytestmark = pytest.mark.slow

NODE = make_node()
MACHINES = [made.titan(), made.phb(), made.h100(2), made.a100_bridged_pairs()]
DOCUMENTS: list[Any] = [json.loads(encode(m)) for m in MACHINES]
LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
"""apimachinery, validation: label values."""

LONG = "\U0001f600"
ODD: list[Any] = [
    *(0, 1, -1, 3, 255, 2**31, -(2**63), 2**63 - 1, 1.5, -0.5, 1e308, True, None),
    *("", " ", "\n", LONG * 120, "0000:0f:00.0", "A" * 128, "gpu-lost", "-"),
    *([], {}, {"unavailable": "NotSupported"}, {"unavailable": LONG * 500}),
    *({"kind": "gpu-lost", "call": "x", "message": LONG * 500}, {"kind": "y" * 128, "message": "z" * 512}),
]
"""What is put in the place of a value, wherever the contract lets it pass."""


PATHS = [paths_of(document) for document in DOCUMENTS]


def changed(document: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Result | None:
    """The document with these values instead; None where it does not decode."""
    try:
        return decode(msgspec.json.encode(spoilt(document, changes)).decode())
    except ContractError:
        return None


@st.composite
def results(draw: st.DrawFn) -> Result:
    """A document with some of its values changed that still decodes; or with GPUs missing or repeated."""
    which = draw(st.integers(0, len(DOCUMENTS) - 1))
    document = DOCUMENTS[which]
    gpus = document["gpus"]
    gpus = draw(st.sampled_from([gpus, gpus, gpus[:-1], [*gpus, gpus[0]], (gpus * 64)[:64]]))
    change = st.tuples(st.sampled_from(PATHS[which]), st.sampled_from(ODD))
    return changed(document | {"gpus": gpus}, draw(st.lists(change, max_size=4))) or MACHINES[which]


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
    gbps = report.status.desired.labels.get(names.LABEL_NVLINK_GBPS)
    assert gbps is None or 0 <= int(gbps) < 100_000
    change = report.status.change
    assert change is None or len(change.message.encode()) <= 1024


def after(report: AReport, result: Result) -> AReport:
    """The report once this document was brought home."""
    return report.after(RunEnd(outcome=Outcome.READ, reason="Read", result=result), node=NODE)


def test_each_value_may_be_anything_the_contract_lets_pass() -> None:
    """One value of a good document at a time, with every odd one in its place."""
    tried_so_far = 0
    twice = ("gpus", 1)  # the second GPU has the same fields as the first
    for path in (p for p in PATHS[0] if p[:2] != twice):
        for value in ODD:
            result = changed(DOCUMENTS[0], [(path, value)])
            if result is not None:
                tried_so_far += 1
                check(after(make_report(), result))
    assert tried_so_far > 500


@given(result=results())
@tried(80)
def test_an_unreadable_verdict_never_carries_a_class(result: Result) -> None:
    """Promise 1: what was not judged sets nothing, however much of it looks like NVLink."""
    report = after(make_report(), result)
    last = report.status.probes[0].last_run
    if last.outcome is not Outcome.READ:
        assert report.status.desired.labels == {}
        assert report.status.interconnect.klass == ""
        assert report.status.desired.condition == "Unknown"
