"""Clocks that jump, pods with odd times and words, invalid writes: no run is stuck."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.clamped_times import without_future_times
from nodegauge_operator.api.report import stamp, unstamp
from nodegauge_operator.kube.errors import Refused
from support.api_server import NODES, PODS, REPORTS
from support.cleaning import failing
from support.objects import INTERVAL, NOW, make_node, make_report, read
from support.operator import SteppedOperator, one_node
from support.properties import tried
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time

DAY = 86_400.0


@pytest.fixture
def operator() -> SteppedOperator:
    """Everything there, nothing run."""
    return one_node()


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
    assert operator.probe["lastRun"]["number"] == 2
    assert unstamp(operator.probe["lastRun"]["finishedAt"]) <= operator.cluster.clock()


@pytest.mark.parametrize(
    "field", ["since", "read_at", "failing_since", "last_run.started_at", "last_run.finished_at"]
)
def test_no_stored_time_lies_in_the_future(field: str) -> None:
    """Whichever it is: a later clock wrote it, and it becomes now."""
    report = make_report().after(read(made.titan()), node=make_node(), at=NOW + DAY)
    status = without_future_times(report.status, now=NOW)
    assert attrgetter(field)(status.probes[0]) in ("", stamp(NOW))
    assert status.change is not None
    assert status.change.at <= stamp(NOW)


@pytest.mark.parametrize("waited", [INTERVAL - 60, INTERVAL + 60])
def test_a_result_is_as_old_as_its_container_s_end(operator: SteppedOperator, waited: float) -> None:
    """The operator was away: a result older than an interval is not judged, and the run is made again."""
    operator.catch_up()
    operator.cluster.kubelets()
    ended = operator.cluster.clock()
    operator.cluster.pass_time(waited)
    operator.restart()
    operator.catch_up()
    run = operator.probe["lastRun"]
    if waited < INTERVAL:
        assert (run["outcome"], run["finishedAt"]) == ("read", stamp(ended))
    else:
        assert (run["outcome"], run["reason"]) == ("unknown", "ResultTooOld")
        operator.cluster.pass_time(31)
        operator.run()
        assert operator.probe["lastRun"]["outcome"] == "read"


def test_a_report_that_the_api_server_calls_invalid_ends_the_run(operator: SteppedOperator) -> None:
    """The run is unknown with what the API server said, and its slot is free."""
    operator.client.refuse = failing(1, f"PATCH {REPORTS}", lambda: Refused("too long", status=422))
    operator.run()
    run = operator.probe["lastRun"]
    assert (run["outcome"], run["reason"]) == ("unknown", "ReportRefused")
    assert "too long" in run["message"]
    assert not list(operator.cluster.pods())


ODD = ["", "X" * 70_000, "\x1b[2J\r\n\x00\x9b", "\u2028\u202e\ufffe\U0010ffff", "é" * 600, "%s %n {0}"]
TEXT = st.one_of(st.text(max_size=40), st.sampled_from(ODD))
YEARS = ("0001-01-01", "0002-01-01", "1969-12-31", "2027-01-15", "9999-12-31")
CLOCKS = ("T00:00:00Z", "T08:00:00.999999999Z", "T23:59:59Z", "T23:59:59-23:59")
TIME = st.sampled_from(["soon", "", *(year + clock for year in YEARS for clock in CLOCKS)])
ENDED = st.fixed_dictionaries(
    {"exitCode": st.sampled_from([0, 1, 137, 255, -1, 2**31 - 1, -(2**31)])},
    optional={"signal": st.integers(0, 64)}
    | dict.fromkeys(("reason", "message"), TEXT)
    | dict.fromkeys(("startedAt", "finishedAt"), TIME),
)
STATE = st.one_of(
    st.fixed_dictionaries({"terminated": ENDED}),
    st.fixed_dictionaries({"running": st.fixed_dictionaries({"startedAt": TIME})}),
    st.fixed_dictionaries({"waiting": st.fixed_dictionaries({"reason": TEXT, "message": TEXT})}),
)
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["PodScheduled", "DisruptionTarget", "Ready"]),
        "status": st.sampled_from(["True", "False"]),
    },
    optional={"reason": TEXT, "message": TEXT, "lastTransitionTime": TIME},
)
POD_STATUS = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "Odd"]),
        "containerStatuses": STATE.map(lambda state: [{"name": names.PROBE_CONTAINER, "state": state}]),
        "conditions": st.lists(CONDITION, max_size=2),
    },
    optional={"reason": TEXT, "message": TEXT},
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([names.POD_REQUEST, names.POD_BOOT, names.POD_IMAGE]), TEXT, max_size=3
)


@tried(150)
@given(status=POD_STATUS, annotations=ANNOTATIONS, on_node=st.booleans())
def test_an_odd_pod_ends_its_run_and_frees_its_slot(
    status: dict[str, Any], annotations: dict[str, str], on_node: bool
) -> None:
    """What is written of it is valid, so that nothing is tried for ever."""
    operator = one_node()
    operator.catch_up()
    [pod] = operator.cluster.pods()
    operator.cluster.objects[PODS][pod["metadata"]["name"]]["metadata"]["annotations"] |= annotations
    operator.cluster.pod_status(pod["metadata"]["name"], status, node="node-1" if on_node else "")
    operator.catch_up(granted=False)
    operator.cluster.pass_time(3600)
    operator.catch_up(granted=False)
    run = operator.probe["lastRun"]
    assert run["number"] == 1
    assert run["reason"] != "ReportRefused"
    assert all(char.isprintable() for char in run["reason"] + run["message"])
    assert not [p for p in operator.cluster.pods() if not p["metadata"].get("deletionTimestamp")]


@on_virtual_time
async def test_only_the_time_from_a_result_to_its_node_is_measured(operator: VirtualTimeOperator) -> None:
    """From the arrival of the event that ended the run; a label put back by hand is no result."""
    await operator.begin(2, after=RUN_SECONDS + 10, budget={"concurrentProbes": 2})
    parts = ("nodegauge_result_to_node_seconds_count", "nodegauge_result_to_node_seconds_sum")
    count, total = measured = [operator.sample(part) for part in parts]
    assert count == 2
    assert 0 < total < 2 * 0.2, "not from the first wake, a whole run ago"
    operator.cluster.change(NODES, "node-0", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    await operator.after(30)
    assert len(operator.read()) == 2
    assert [operator.sample(part) for part in parts] == measured
