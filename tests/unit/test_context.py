"""What is known of one node: derived once, and again for another status."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_judge import Probe, Verdict
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import MAX_GRACE
from support.objects import (
    INTERVAL,
    LOST,
    MINUTE,
    NOW,
    STALE,
    make_context,
    make_node,
    make_report,
    make_snapshot,
    read,
)

NODE = make_node()


def test_a_node_without_policy_or_gone_has_no_context() -> None:
    """There is nothing to decide from."""
    assert make_snapshot(policy=None).context is None
    assert make_snapshot(node=None).context is None


def test_staleness_gates_and_verdict_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often they are asked for; and anew for another status."""
    calls: list[Any] = []
    current = gates.current
    monkeypatch.setattr(gates, "current", lambda *args, **how: calls.append(args) or current(*args, **how))
    report = make_report().after(read(made.titan()), node=NODE)
    calls.clear()
    context = make_context(node=NODE, report=report)
    assert context.gates is context.gates
    assert context.stale is context.stale
    assert len(calls) == 1
    assert context.after(context.status).gates == context.gates
    assert len(calls) == 2


def test_the_verdict_is_unknown_once_the_reading_is_stale() -> None:
    """And until then that of the last reading, however many runs were lost since."""
    report = make_report().after(read(made.titan()), node=NODE).after(LOST, node=NODE, at=NOW + 60)
    assert make_context(node=NODE, report=report, now=NOW + STALE).raw_verdict is Verdict.PASS
    late = make_context(node=NODE, report=report, now=NOW + STALE + 1)
    assert (late.raw_verdict, late.stale) == (Verdict.UNKNOWN, {Probe.HEALTH})


@pytest.mark.parametrize("minutes", [1, 5, 14])
def test_readings_expire_in_the_end_while_the_operator_ends_every_few_minutes(minutes: int) -> None:
    """Each start gives an interval to renew them; the report's own times say that runs go on to fail."""
    report = make_report().after(read(made.titan()), node=NODE).after(LOST, node=NODE, at=NOW + 60)
    [probe] = report.status.probes
    assert probe.last_run is not None

    def fresh(now: float) -> bool:
        run = replace(probe.last_run, finished_at=stamp(now - 30))
        status = replace(report.status, probes=[replace(probe, last_run=run)])
        tried = replace(report, status=status)
        context = make_context(node=NODE, report=tried, now=now, since=now - minutes * MINUTE)
        return Probe.HEALTH not in context.stale

    assert fresh(NOW + STALE + 1)
    assert fresh(NOW + STALE + MAX_GRACE - INTERVAL)
    assert not fresh(NOW + STALE + MAX_GRACE + 120)
    assert not fresh(NOW + 365 * MAX_GRACE)


def test_an_outage_of_any_length_leaves_an_interval_to_renew_a_reading() -> None:
    """Also one during which runs had begun to fail: none was tried since."""
    report = make_report().after(read(made.titan()), node=NODE).after(LOST, node=NODE, at=NOW + 60)
    back = NOW + 30 * MAX_GRACE
    for seconds, stale in ((INTERVAL, set()), (INTERVAL + 1, {Probe.HEALTH})):
        assert make_context(node=NODE, report=report, now=back + seconds, since=back).stale == stale
