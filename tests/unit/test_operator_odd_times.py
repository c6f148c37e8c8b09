"""Clocks that jump, pods with odd times and words, invalid writes: no run is stuck."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import support.results as made
from nodegauge_operator.api.clamped_times import without_future_times
from nodegauge_operator.api.report import Outcome, stamp, unstamp
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Refused
from support.api_server import REPORTS
from support.objects import INTERVAL, NOW, make_node, make_report, read
from support.operator import SteppedOperator, one_node

DAY = 86_400.0
CRD = yaml.safe_load((Path(__file__).parents[2] / "crds/nodereports.yaml").read_text())
STATUS = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
RUN = STATUS["properties"]["probes"]["items"]["properties"]["lastRun"]["properties"]


@pytest.fixture
def operator() -> SteppedOperator:
    """Everything there, nothing run."""
    return one_node()


def last_run(operator: SteppedOperator) -> dict[str, Any]:
    """The health run that was judged last."""
    run: dict[str, Any] = operator.status["probes"][0]["lastRun"]
    return run


@pytest.mark.parametrize("ahead", [10 * 60, DAY, 365 * DAY, 9_000 * DAY])
def test_a_clock_that_was_ahead_for_one_run_blinds_nobody(operator: SteppedOperator, ahead: float) -> None:
    """The next run is due an interval after the clock is right again, with or without a restart."""
    operator.cluster.pass_time(ahead)
    operator.run()
    operator.cluster.pass_time(-ahead)
    operator.restart()
    operator.catch_up()
    operator.cluster.pass_time(INTERVAL + 1)
    operator.run()
    assert last_run(operator)["number"] == 2
    assert unstamp(last_run(operator)["finishedAt"]) <= operator.cluster.clock()


@pytest.mark.parametrize(
    "field", ["since", "readAt", "failingSince", "lastRun.startedAt", "lastRun.finishedAt"]
)
def test_no_stored_time_lies_in_the_future(field: str) -> None:
    """Whichever it is: a later clock wrote it, and it becomes now."""
    report = make_report().after(read(made.titan()), node=make_node(), at=NOW + DAY)
    status = without_future_times(report.status, now=NOW)
    probe: Any = status.probes[0]
    for name in field.split("."):
        probe = getattr(probe, re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name))
    assert probe in ("", stamp(NOW))
    assert status.change is not None
    assert status.change.at <= stamp(NOW)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0002-01-01T00:00:00Z", "soon", "2026-13-01"])
def test_a_time_outside_of_the_calendar_is_no_time(text: str) -> None:
    """It neither raises nor becomes a text that the API server refuses."""
    assert stamp(unstamp(text)) in ("", "9999-12-31T23:59:58Z")
    assert re.fullmatch(RUN["startedAt"]["pattern"], stamp(unstamp(text)))


@pytest.mark.parametrize("waited", [INTERVAL - 60, INTERVAL + 60])
def test_a_result_is_as_old_as_its_container_s_end(operator: SteppedOperator, waited: float) -> None:
    """The operator was away: a result older than an interval is not judged, and the run is made again."""
    operator.catch_up()
    operator.cluster.kubelets()
    ended = operator.cluster.clock()
    operator.cluster.pass_time(waited)
    operator.restart()
    operator.catch_up()
    if waited < INTERVAL:
        assert last_run(operator)["outcome"] == "read"
        assert last_run(operator)["finishedAt"] == stamp(ended)
    else:
        assert (last_run(operator)["outcome"], last_run(operator)["reason"]) == ("unknown", "ResultTooOld")
        operator.cluster.pass_time(31)
        operator.run()
        assert last_run(operator)["outcome"] == "read"


ODD: dict[str, dict[str, Any]] = {
    "long reason": {"reason": "X" * 300, "exitCode": 1},
    "no word": {"reason": "\x1b[31mred\nline", "exitCode": 1},
    "started in the year 9999": {"startedAt": "9999-12-31T23:59:59Z", "exitCode": 0},
    "ended in the year 2": {"finishedAt": "0002-01-01T00:00:00Z", "exitCode": 0},
    "escape sequences": {"message": "\x1b]0;title\x07 \x1b[2J gone", "exitCode": 1},
}


@pytest.mark.parametrize("how", ODD)
def test_an_odd_pod_ends_its_run_and_frees_its_slot(operator: SteppedOperator, how: str) -> None:
    """Whatever its status holds, what is written of it fits the report's schema."""
    operator.catch_up()
    [pod] = operator.cluster.pods()
    state = {"terminated": {"message": "?", "finishedAt": stamp(NOW)} | ODD[how]}
    status = {"name": "probe", "state": state}
    operator.cluster.pod_status(pod["metadata"]["name"], {"phase": "Failed", "containerStatuses": [status]})
    operator.catch_up()
    run = last_run(operator)
    assert run["outcome"] == Outcome.UNKNOWN
    assert len(run["reason"]) <= RUN["reason"]["maxLength"]
    assert run["reason"].isalnum()
    assert run["message"].isprintable()
    for field in ("startedAt", "finishedAt"):
        assert re.fullmatch(RUN[field]["pattern"], run.get(field, ""))
    assert not list(operator.cluster.pods())


def test_a_report_that_the_api_server_calls_invalid_ends_the_run(operator: SteppedOperator) -> None:
    """The run is unknown with what the API server said, and its slot is free."""
    refusals = iter([Refused("status.summary: too long", status=422)])
    operator.client.refuse = lambda verb, path: (
        next(refusals, None) if verb == "PATCH" and path.startswith(REPORTS) else None
    )
    operator.run()
    run = last_run(operator)
    assert (run["outcome"], run["reason"]) == ("unknown", "ReportRefused")
    assert "too long" in run["message"]
    assert not list(operator.cluster.pods())


@pytest.mark.parametrize("number", [2**63 - 1, 1_000_000_000])
def test_an_edited_run_number_stops_nothing(number: int) -> None:
    """The next one is a number that names and schema allow."""
    report = make_report().after(read(made.titan()), node=make_node())
    [probe] = report.status.probes
    assert probe.last_run is not None
    edited = without_future_times(report.status, now=NOW)
    edited = replace(edited, probes=[replace(probe, last_run=replace(probe.last_run, number=number))])
    assert 1 <= edited.next_number("health") <= 1_000_000_000


@pytest.mark.parametrize(
    ("date", "ahead"),
    [
        ("Fri, 15 Jan 2027 08:00:00 GMT", 0.0),
        ("Fri, 15 Jan 2027 08:00:04 GMT", 0.0),
        ("Sat, 16 Jan 2027 08:00:00 GMT", DAY),
        ("Thu, 14 Jan 2027 08:00:00 GMT", -DAY),
        ("", 0.0),
        ("yesterday", 0.0),
    ],
)
def test_the_api_server_s_clock_counts(monkeypatch: pytest.MonkeyPatch, date: str, ahead: float) -> None:
    """A wrong clock on the operator's node decides nothing; a second or two of difference are none."""
    monkeypatch.setattr("nodegauge_operator.kube.client.time.monotonic", lambda: 1000.0)
    client = Client.__new__(Client)
    client._epoch = NOW - 1000.0
    client._compare_clocks(date)
    assert client.now() == NOW + ahead


def test_an_answer_that_waited_sets_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stood still for a minute between its question and the answer's header."""
    monkeypatch.setattr("nodegauge_operator.kube.client.time.monotonic", lambda: 1060.0)
    client = Client.__new__(Client)
    client._epoch = NOW - 1060.0
    client._compare_clocks("Fri, 15 Jan 2027 07:59:00 GMT", asked_at=1000.0)
    assert client.now() == NOW
