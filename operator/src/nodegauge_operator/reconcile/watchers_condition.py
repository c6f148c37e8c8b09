"""The condition `WatchersReady` of a policy in mode Watch: whether containers run and report on its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodegauge_operator.core.events import bounded
from nodegauge_operator.core.watchers import Look, Watcher
from nodegauge_operator.names import WatchersReason
from nodegauge_operator.reconcile.budget_condition import State, n_nodes

MAX_NODES = 5
"""A message names at most so many nodes."""
MAX_REFUSAL = 300
"""Characters of why health pods are refused in a message."""
REASONS = {
    Watcher.MISSING: (WatchersReason.CONTAINERS_MISSING, "no container runs"),
    Watcher.RESTARTING: (WatchersReason.CONTAINERS_RESTARTING, "the container restarts again and again"),
    Watcher.LATE: (WatchersReason.REPORTS_LATE, "the container reports nothing"),
    Watcher.UNJUDGED: (WatchersReason.REPORTS_NOT_JUDGED, "what the container writes is not judged"),
    Watcher.HELD_OFF: (WatchersReason.NODES_HELD_OFF, "no container may run"),
}


class Trouble(Struct, frozen=True, kw_only=True):
    """What is wrong with a DaemonSet itself, in words."""

    reason: WatchersReason
    text: str


def watchers_ready(
    counts: Mapping[Watcher, int],
    bad: Mapping[str, Look],
    trouble: Trouble | None,
    *,
    refused: Mapping[str, str],
    described: str,
) -> State:
    """Its state.  `counts`: nodes by the state of their container; `bad`: those without one that works, by
    name; `trouble`: with the DaemonSet; `refused`: of `bad`, those whose health pods are refused, and why;
    `described`: the command that shows more."""
    if bad or trouble:
        reason = trouble.reason if trouble else REASONS[_worst(bad)][0]
        nodes = f"{_nodes(bad, of=sum(counts.values()))}; {_taken_over(bad, refused)}. " if bad else ""
        text = f"{trouble.text}. " if trouble else ""
        return "False", reason, bounded(f"{text}{nodes}See `{described}`")
    ready, starting = counts.get(Watcher.READY, 0), counts.get(Watcher.STARTING, 0)
    others = [f"{starting} start"] if starting else []
    if idle := counts.get(Watcher.NOT_EXPECTED, 0):
        others.append(f"{idle} can run none now")
    rest = f" ({', '.join(others)})" if others else ""
    if ready:
        return "True", WatchersReason.CONTAINERS_RUNNING, f"containers report on {n_nodes(ready)}{rest}"
    return "Unknown", WatchersReason.CONTAINERS_STARTING, f"no container reports yet{rest}"


def _taken_over(bad: Mapping[str, Look], refused: Mapping[str, str]) -> str:
    """Whether health pods read the nodes."""
    held_off = {node for node, look in bad.items() if look.state is Watcher.HELD_OFF}
    unread = held_off | refused.keys()
    if not unread:
        return "health pods read them"
    some = "them" if held_off == bad.keys() else f"{len(unread)} of them"
    why = refused[min(refused)][:MAX_REFUSAL].rstrip(".") if refused else ""
    return f"nobody reads {some}" + (f", as health pods are refused too ({why})" if why else "")


def _worst(bad: Mapping[str, Look]) -> Watcher:
    states = Counter(look.state for look in bad.values())
    return max(REASONS, key=lambda state: states[state])


def _nodes(bad: Mapping[str, Look], *, of: int) -> str:
    """The commonest state in words, some of the nodes, and why."""
    state = _worst(bad)
    names = sorted(name for name, look in bad.items() if look.state is state)
    whys = Counter(bad[name].why for name in names).most_common(3)
    reasons = "; ".join(f"{why} ({count})" if len(whys) > 1 else why for why, count in whys if why)
    others = f", and {n_nodes(len(bad) - len(names))} with another fault" if len(bad) > len(names) else ""
    why = f": {reasons}" if reasons else ""
    return f"{REASONS[state][1]} on {len(names)} of {n_nodes(of)} ({some_of(names)}){why}{others}"


def some_of(nodes: Iterable[str]) -> str:
    """Names of nodes for a message."""
    names = sorted(nodes)
    more = [f"{len(names) - MAX_NODES} more"] if len(names) > MAX_NODES else []
    return ", ".join(names[:MAX_NODES] + more)
