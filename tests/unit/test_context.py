"""What is known of one node: derived once, and again for another status."""

from __future__ import annotations

from typing import Any

import pytest

import support.results as made
from nodegauge_judge import Probe, Verdict
from nodegauge_operator.core import gates
from support.objects import LOST, NOW, STALE, make_context, make_node, make_report, make_snapshot, read

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
