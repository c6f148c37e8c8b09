"""Times of a report that lie in the future, as a clock that was ahead leaves them behind.

They are clamped where a report is used; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from nodegauge_operator.api.report import ProbeStatus, ReportStatus
from nodegauge_operator.api.times import SKEW_SECONDS, stamp


def without_future_times(status: ReportStatus, *, now: float) -> ReportStatus:
    """The status with every time in the future set to `now`, epoch seconds.

    A clock that was ahead for one moment would otherwise keep runs from being due until that time comes.
    """
    limit, today = stamp(now + SKEW_SECONDS), stamp(now)

    def past(text: str) -> str:
        return today if text > limit else text  # times of one format sort as texts

    return replace(
        status,
        probes=[_probe_without_future(probe, past) for probe in status.probes],
        node_class=replace(status.node_class, since=past(status.node_class.since)),
        throttle_judged_at=past(status.throttle_judged_at),
        passed_at=past(status.passed_at),
        tainted_at=past(status.tainted_at),
        change=status.change and replace(status.change, at=past(status.change.at)),
    )


def _probe_without_future(probe: ProbeStatus, past: Callable[[str], str]) -> ProbeStatus:
    run, failed = probe.last_run, probe.unreadable
    return replace(
        probe,
        last_run=run and replace(run, started_at=past(run.started_at), finished_at=past(run.finished_at)),
        since=past(probe.since),
        read_at=past(probe.read_at),
        failing_since=past(probe.failing_since),
        unreadable=failed and replace(failed, since=past(failed.since)),
    )
