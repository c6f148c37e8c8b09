"""When the watch probe reports: first, on a change, to confirm it, and when it is due.  Pure.

A report of something new is confirmed a few times at growing distances, because the operator's gates need
several runs before a taint comes or goes; then it is left until it changes.  This holds for a fault, for its
end, and for the first report.  An Xid is an event, not a state: it is reported once.

A quantity that changes again and again is braked: it alone causes a report only every five minutes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nodegauge_probes.watch.state import Pair, State

BRAKE_CHANGES, BRAKE_WITHIN_S, BRAKE_S = 4, 600.0, 300.0
"""More changes than this within so many seconds brake a quantity to one report per `BRAKE_S`.  Chosen by this
project: as slow as the kubelet's own back-off."""
MOST_NAMED = 5


SPREAD = 0.05
"""Part of the interval by which nodes are due later: a fleet that starts at once would report at once."""


def due_after(interval: float, *, node: str) -> float:
    """Seconds after which this node is due: up to a twentieth later, by CRC-32 of its name (RFC 1952)."""
    return interval * (1 + SPREAD * zlib.crc32(node.encode()) / 2**32)


class Decision(Struct, frozen=True, kw_only=True):
    """To report, and why.  `confirmed`: the state's new value.  `fresh`: something new is reported."""

    why: str
    confirmed: int
    fresh: bool


def note(state: State, names: Iterable[str], *, now: float) -> list[str]:
    """Remember that these changed; returns those that are braked from now on."""
    braked = []
    for name in names:
        times = [at for at in state.changes.get(name, []) if now - at <= BRAKE_WITHIN_S]
        was = len(times) > BRAKE_CHANGES
        state.changes[name] = [*times, now][-BRAKE_CHANGES - 1 :]
        if not was and is_braked(state, name, now=now):
            braked.append(name)
    return braked


def is_braked(state: State, name: str, *, now: float) -> bool:
    times = [at for at in state.changes.get(name, []) if now - at <= BRAKE_WITHIN_S]
    return len(times) > BRAKE_CHANGES


def different(values: Mapping[str, Pair], state: State) -> list[str]:
    """Names whose level is not the reported one; one that was not reported yet is none."""
    return [n for n, (level, _) in values.items() if n in state.values and state.values[n][0] != level]


def decide(
    values: Mapping[str, Pair], state: State, *, now: float, confirm: Sequence[float], interval: float
) -> Decision | None:
    """Whether to report now; `now` in seconds since boot."""
    since = now - state.reported
    if state.reports == 0:
        return Decision(why="first", confirmed=0, fresh=True)
    changed = different(values, state)
    xids = {xid_name(one.gpu, one.code): one for one in state.xids}
    names = [*changed, *xids]
    free = [name for name in names if not is_braked(state, name, now=now)]
    if free or (names and since >= BRAKE_S):
        reasons = [
            f"{n} {state.values[n][1]} -> {values[n][1]}" if n in values else f"{n}, {xids[n].count} times"
            for n in (free or names)
        ]
        more = f" and {len(reasons) - MOST_NAMED} more" if len(reasons) > MOST_NAMED else ""
        confirmed = state.confirmed
        if changed:
            # A braked change is confirmed no faster than the brake allows.
            quick = [distance for distance in confirm if distance < BRAKE_S]
            confirmed = 0 if set(free) & set(changed) else len(quick)
        why = f"changed: {'; '.join(reasons[:MOST_NAMED])}{more}"
        return Decision(why=why, confirmed=confirmed, fresh=bool(changed))
    if state.confirmed < len(confirm) and since >= confirm[state.confirmed]:
        number = state.confirmed + 1
        return Decision(why=f"confirmed: {number} of {len(confirm)}", confirmed=number, fresh=False)
    if since >= interval:
        return Decision(why="due", confirmed=state.confirmed, fresh=False)
    return None


def xid_name(gpu: int, code: int) -> str:
    """As a reason names an Xid."""
    return f"Xid {code} GPU-{gpu}"
