"""When the watch probe takes a reading: first, on a change, to confirm it, and when it is due.  Pure.

A reading of something new is confirmed a few times at growing distances, because the operator's gates need
several runs before a taint comes or goes; then it is left until it changes.  This holds for a fault, for its
end, and for the first reading.  An Xid is an event, not a state: it is told once.

A quantity that changes again and again is braked, and so are many that change in turn: they bring a reading a
minute, and each of them costs the operator a judgement.  What is new beside them is read at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nodegauge_probes.watch.state import Pair, State

BRAKE_WITHIN_S, BRAKE_CHANGES, BRAKE_TOGETHER = 3600.0, 4, 6
"""Within so many seconds: more changes than this brake a quantity; more of all quantities together brake each
that changes for the second time.  Chosen by this project."""
SHORTEST_S, BRAKED_S = 1.0, 60.0
"""Seconds from one reading to the next on a change, and on one that is braked.  Chosen by this project: a
node on which everything flaps costs as much as 120 calm ones."""
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
    names = list(names)
    was = {name for name in names if is_braked(state, name, now=now)}
    state.changes = {n: times for n, old in state.changes.items() if (times := _lately(old, now=now))}
    for name in names:
        state.changes[name] = [*state.changes.get(name, []), now][-BRAKE_CHANGES - 1 :]
    return [name for name in names if name not in was and is_braked(state, name, now=now)]


def is_braked(state: State, name: str, *, now: float) -> bool:
    own = len(_lately(state.changes.get(name, []), now=now))
    together = {at for times in state.changes.values() for at in _lately(times, now=now)}
    return own > BRAKE_CHANGES or (own > 1 and len(together) > BRAKE_TOGETHER)


def _lately(times: Iterable[float], *, now: float) -> list[float]:
    return [at for at in times if now - at <= BRAKE_WITHIN_S]


def reported(state: State, decision: Decision, *, values: Mapping[str, Pair], now: float) -> None:
    """Remember that a reading was taken of these values."""
    state.reports = 1 if decision.fresh else state.reports + 1
    state.confirmed, state.reported = decision.confirmed, now
    state.values = dict(values)


def different(values: Mapping[str, Pair], state: State) -> list[str]:
    """Names whose level is not the reported one; one that was not reported yet is none."""
    return [n for n, (level, _) in values.items() if n in state.values and state.values[n][0] != level]


def decide(
    values: Mapping[str, Pair], state: State, *, now: float, confirm: Sequence[float], interval: float
) -> Decision | None:
    """Whether to take a reading now; `now` in seconds since boot."""
    since = now - state.reported
    if state.reports == 0:
        return Decision(why="first", confirmed=0, fresh=True)
    changed = different(values, state)
    xids = {xid_name(xid.gpu, xid.code): xid for xid in state.xids}
    names = [*changed, *xids]
    free = [name for name in names if not is_braked(state, name, now=now)]
    if (free and since >= SHORTEST_S) or (names and since >= BRAKED_S):
        reasons = [
            f"{n} {state.values[n][1]} -> {values[n][1]}" if n in values else f"{n}, {xids[n].count} times"
            for n in (free or names)
        ]
        more = f" and {len(reasons) - MOST_NAMED} more" if len(reasons) > MOST_NAMED else ""
        confirmed = state.confirmed
        if changed:
            # A braked change is confirmed no faster than the brake allows.
            quick = [distance for distance in confirm if distance < BRAKED_S]
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
