"""Health runs at size: readings stay fresh while some nodes hold their slots for minutes.

If runs cannot keep up, the policy and a metric say so.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import unstamp
from support import virtual_operator
from support.api_server import NODES, PODS, POLICIES, REPORTS
from support.objects import INTERVAL
from support.operator import SETTINGS
from support.virtual_operator import VirtualTimeOperator, on_virtual_time, play

NODES_A_TENTH = 500
"""A tenth of 5,000 nodes, with a tenth of the slots: the same arithmetic in a tenth of the time."""
SLOTS = SETTINGS.max_concurrent_probes // 10
STUCK = 6
RUN_SECONDS = 15.0


def stick(operator: VirtualTimeOperator, *nodes: int) -> None:
    """From now on no pod ever starts on these nodes."""
    stuck, end = {f"node-{n}" for n in nodes}, VirtualTimeOperator._end

    def unless_stuck(name: str) -> None:
        pod = operator.cluster.objects[PODS].get(name)
        if pod and pod["metadata"]["annotations"][names.POD_NODE] not in stuck:
            end(operator, name)

    operator._end = unless_stuck  # type: ignore[method-assign]


def oldest(operator: VirtualTimeOperator, *, but: int) -> float:
    """Age in seconds of the oldest reading, except of the first so many nodes."""
    reports = operator.cluster.objects[REPORTS]
    read = [
        unstamp(body["status"]["probes"][0]["readAt"])
        for name, body in reports.items()
        if int(name.removeprefix("node-")) >= but
    ]
    return operator.cluster.clock() - min(read)


def condition(operator: VirtualTimeOperator) -> dict[str, Any]:
    """The policy's condition RunsKeepUp; empty while there is none."""
    conditions = operator.cluster.get(POLICIES, "default")["status"]["conditions"]
    return next((c for c in conditions if c["type"] == "RunsKeepUp"), {})


def shown_age(operator: VirtualTimeOperator, last_run: str) -> float | None:
    """What the metric says."""
    labels = {"policy": "default", "last_run": last_run}
    return operator.metrics.registry.get_sample_value("nodegauge_oldest_reading_age_seconds", labels)


@pytest.fixture(autouse=True)
def runs_take_15_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on real nodes: scheduling, start, a window of 3 s, deletion."""
    monkeypatch.setattr(virtual_operator, "RUN_SECONDS", RUN_SECONDS)


@pytest.mark.slow
def test_sixty_stuck_nodes_of_five_thousand_leave_the_others_fresh() -> None:
    """At a tenth: with the defaults no reading of a sound node gets older than an interval and a few runs."""

    async def story(operator: VirtualTimeOperator) -> None:
        await operator.begin(NODES_A_TENTH, after=INTERVAL)
        stick(operator, *range(STUCK))
        for _ in range(16):
            await operator.after(150)
            assert oldest(operator, but=STUCK) <= INTERVAL + 8 * RUN_SECONDS
        assert condition(operator)["status"] == "True"
        read, unread = shown_age(operator, "read"), shown_age(operator, "unread")
        assert read is not None
        assert read <= INTERVAL + 8 * RUN_SECONDS
        assert unread is not None
        assert unread > 2 * INTERVAL

    play(story, settings=replace(SETTINGS, max_concurrent_probes=SLOTS))


def test_runs_that_cannot_keep_up_say_what_to_raise() -> None:
    """Fifty at a time for five thousand nodes, at a fiftieth: the policy has the arithmetic."""

    async def story(operator: VirtualTimeOperator) -> None:
        await operator.begin(100, after=600)
        seen = condition(operator)
        assert (seen["status"], seen["reason"]) == ("False", "TooFewSlots")
        arithmetic = (
            r"100 nodes, 1 at once, 15 s each: a round takes 2[56] min, longer than the interval of 15m\."
        )
        assert re.match(arithmetic, seen["message"])
        assert "At least 2 at once are needed: raise the chart's operator.maxCon" in seen["message"]
        operator.cluster.change(POLICIES, "default", {"spec": {"probes": {"health": {"interval": "30m"}}}})
        await operator.after(60)
        assert condition(operator)["reason"] == "KeepingUp"

    play(story, settings=replace(SETTINGS, max_concurrent_probes=1))


@on_virtual_time
async def test_a_policy_that_is_too_narrow_names_its_own_field(operator: VirtualTimeOperator) -> None:
    """The installation would allow more."""
    await operator.begin(100, after=120, budget={"concurrentProbes": 1})
    assert "raise spec.budget.concurrentProbes (1)" in condition(operator)["message"]


@on_virtual_time
async def test_a_paused_policy_says_nothing_of_its_pace(operator: VirtualTimeOperator) -> None:
    """No run is made, so none is late."""
    await operator.begin(4, after=60)
    assert condition(operator)["reason"] == "KeepingUp"
    operator.cluster.change(POLICIES, "default", {"spec": {"budget": {"concurrentProbes": 0}}})
    await operator.after(60)
    assert condition(operator) == {}


@on_virtual_time
async def test_a_node_that_is_away_does_not_age_the_fleet(operator: VirtualTimeOperator) -> None:
    """Kubernetes reports a NotReady node itself; the metric is about runs that could be made."""
    await operator.begin(4, after=60)
    down = [{"type": "Ready", "status": "Unknown"}]
    operator.cluster.change(NODES, "node-0", {"status": {"conditions": down}})
    await operator.after(2 * INTERVAL)
    age = shown_age(operator, "read")
    assert age is not None
    assert age <= INTERVAL + 2 * RUN_SECONDS
    assert shown_age(operator, "unread") is None
