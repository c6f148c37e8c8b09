"""When a run is due: what every probe kind's `due_at` is made of.

Whether a pool has a slot for the run is not asked here.
"""

from __future__ import annotations

from nodegauge_operator.api.report import ProbeStatus, unstamp
from nodegauge_operator.core.context import Context

AT_ONCE = 0.0


def wanted_now(context: Context, probe: ProbeStatus) -> bool:
    """The probe never ran, somebody asked for a run since, or the node rebooted since."""
    last = probe.last_run
    if last is None or requested(context, probe):
        return True
    return bool(last.boot_id and context.node.boot_id) and last.boot_id != context.node.boot_id


def requested(context: Context, probe: ProbeStatus) -> bool:
    """Somebody asked for a run by `spec.requestedAt`, and it has not been made yet."""
    return bool(context.report.requested_at) and context.report.requested_at != probe.request


def finished_at(probe: ProbeStatus) -> float:
    """When the last run ended, epoch seconds; 0.0 before the first."""
    return unstamp(probe.last_run.finished_at) if probe.last_run else 0.0


def backed_off(probe: ProbeStatus, *, first: float, most: float) -> float:
    """Seconds to wait after runs that read nothing: `first`, then twice that each time, up to `most`."""
    return min(most, first * doubled(probe.unread))


def doubled(times: int) -> float:
    """1, 1, 2, 4, ... up to 1024 for 0, 1, 2, 3, ... times."""
    return float(1 << min(max(0, times - 1), 10))
