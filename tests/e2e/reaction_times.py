"""How fast mode Watch tells on a real kubelet, whether it tells all, and an hour of faults.

The figures are printed and not judged.  Not among the default steps (some twenty minutes, and an hour):

    make e2e ARGS="gpus_on_the_node helm_install labels_appear reaction_times hour_of_faults"
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from e2e import watch
from e2e.cluster import READINGS, Cluster
from e2e.scenario import LEAVE_RUNS, values
from nodegauge_contract import Result, decode
from nodegauge_judge.history import xids
from nodegauge_judge.history.model import History
from nodegauge_operator.api.policy import Hysteresis
from testbed import watching
from testbed.errors import TestbedError
from testbed.hardware.fault import Parameter
from testbed.watching import Event

TIMES = 10
XIDS, APART = 200, 0.5
CODES, GPUS = (13, 31, 43, 45, 94), range(8)
"""Every Xid is of the next GPU, then of the next code: forty kinds, each of which comes five times."""
TOLD_WITHIN = 150.0
"""Seconds after the last Xid: one that comes again and again is told once a minute."""
CHANGES, CHANGE_APART = 20, 1.25
RULE = {"codes": list(CODES), "severity": "Warn", "count": 1000, "window": "1h"}
"""Makes the operator count them, and taint for none."""


@dataclass(frozen=True)
class Trouble:
    """A fault that a look sees at once; `name`: of what changes, as a reading's reason has it."""

    name: str
    fault: str
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def on(self, cluster: Cluster) -> None:
        cluster.hardware.fault(self.fault, **self.parameters)

    def off(self, cluster: Cluster) -> None:
        cluster.hardware.heal(self.fault)


FLAPPING = (
    Trouble("temperature GPU-0", "hot", {"gpu": 0}),
    Trouble("memory temperature GPU-2", "hot-memory", {"gpu": 2}),
)
"""None of them makes the driver drop events, as a lost GPU does."""
HOUR = 3600.0
NEW = (
    *(Trouble(f"uncorrectable ECC GPU-{gpu}", "ecc-uncorrectable", {"gpu": gpu}) for gpu in GPUS),
    *(Trouble(f"temperature GPU-{gpu}", "hot", {"gpu": gpu}) for gpu in (6, 7)),
)
"""Each comes once within the hour in which a container remembers what changed."""


def reaction_times(cluster: Cluster) -> None:
    """Seconds from faults to taints, how many of 200 Xids are told, how late a new fault is beside others."""
    watch.set_mode(cluster, "Watch")
    hysteresis = {"enterRuns": Hysteresis().enter_runs, **values()["policy"]["spec"]["hysteresis"]}
    cluster.say(f"hysteresis {hysteresis}; thresholds {watch.QUICK}; all GPUs under load")
    cluster.hardware.load(100)
    for fault, taint in watch.FAULTS.items():
        times = [watch.from_fault_to_taint(cluster, fault, taint) for _ in range(TIMES)]
        _show(cluster, fault, f"to {taint}", times)
    before = watch.life(cluster)["pod"]
    cluster.policy(xids=[RULE])
    watch.judged(cluster, after={before})
    _tell_xids(cluster, kinds=[(gpu, code) for code in CODES for gpu in GPUS])
    watch.fresh_pod(cluster)
    late = [_new_fault_after_changes(cluster, new) for new in NEW]
    _show(cluster, f"a new fault after {CHANGES} changes", "to the NodeReading", late)
    cluster.say(f"FIGURE restarts of that container: {watch.life(cluster)['restarts']}")
    _tell_xids(cluster, kinds=[(4, CODES[0])])
    cluster.hardware.load(0)
    cluster.policy(xids=None)
    watch.set_mode(cluster, "Periodic")
    cluster.hardware.reset()  # counted errors
    watch.lift(cluster, at_most=2 * LEAVE_RUNS)


def hour_of_faults(cluster: Cluster) -> None:
    """One container sees the faults of an hour, tells each, and never starts again."""
    watch.set_mode(cluster, "Watch")
    watch.fresh_pod(cluster)
    cluster.hardware.load(100)
    whose, began, end = watch.life(cluster), cluster.reading()["sequence"], time.monotonic() + HOUR
    times: dict[str, list[float]] = {fault: [] for fault in watch.FAULTS}
    with _flapping(cluster) as flap:
        while time.monotonic() < end:
            for fault, taint in watch.FAULTS.items():
                times[fault].append(watch.fault_and_repair(cluster, fault, taint))
                for _ in range(2 * len(FLAPPING)):  # each comes and goes
                    flap()
                    time.sleep(CHANGE_APART)
                watch.lift(cluster, at_most=2 * LEAVE_RUNS)
    for fault, taint in watch.FAULTS.items():
        _show(cluster, fault, f"to {taint} by one container", times[fault])
    cluster.must_be(watch.life(cluster), whose, what="the watch container after an hour of faults")
    cluster.must_be(whose["restarts"], 0, what="how often it was started again")
    cluster.say(f"FIGURE an hour of faults: readings {began} to {cluster.reading()['sequence']}, no restart")
    cluster.hardware.load(0)
    watch.set_mode(cluster, "Periodic")


def _show(cluster: Cluster, what: str, until: str, seconds: Iterable[float]) -> None:
    times = sorted(seconds)
    cluster.say(
        f"FIGURE {what} {until}, {len(times)} times: {times[0]:.1f} / {statistics.median(times):.1f}"
        f" / {times[-1]:.1f} s (min/median/max)"
    )


def _tell_xids(cluster: Cluster, *, kinds: list[tuple[int, int]]) -> None:
    """200 Xids of these kinds (GPU and code) one after the other, while other faults come and go."""
    watch.fresh_pod(cluster)
    whose, before = watch.life(cluster), _counted(cluster)
    with watching.watch(cluster.api, READINGS) as seen, _flapping(cluster) as flap:
        began = time.monotonic()
        for number in range(XIDS):
            time.sleep(max(0.0, began + number * APART - time.monotonic()))
            gpu, code = kinds[number % len(kinds)]
            cluster.hardware.fault("xid", gpu=gpu, number=code, per_second=0)
            cluster.hardware.heal("xid")
            if number % 4 == 0:
                flap()
        last = time.monotonic()
        with contextlib.suppress(TestbedError):
            cluster.until(lambda: _xids_in(seen) >= XIDS, what="every Xid", seconds=TOLD_WITHIN, every=1)
    cluster.say(
        f"FIGURE {XIDS} Xids of {len(kinds)} kinds, {APART} s apart (sent in {last - began:.0f} s):"
        f" told {_xids_in(seen)}, the last {time.monotonic() - last:.0f} s after it came;"
        f" the newest object alone tells {_all_in(_documents(seen)[-1])};"
        f" the report counts {_counted(cluster) - before}; {len(_documents(seen))} readings;"
        f" same container: {watch.life(cluster) == whose}, restarts {watch.life(cluster)['restarts']}"
    )


def _new_fault_after_changes(cluster: Cluster, new: Trouble) -> float:
    """Seconds until the NodeReading holds a new fault, after so many changes of others within a minute."""
    with watching.watch(cluster.api, READINGS) as seen, _flapping(cluster) as flap:
        for _ in range(CHANGES):
            flap()
            time.sleep(CHANGE_APART)
        began = time.monotonic()
        new.on(cluster)
        event = cluster.until(
            lambda: next((e for e in seen if e.at > began and new.name in e.body["health"]["reason"]), None),
            what=f"a reading because of {new.name}",
        )
        assert event is not None
        new.off(cluster)
    cluster.say(
        f"{new.fault} {new.parameters} after {event.at - began:.1f} s: {event.body['health']['reason']}"
    )
    return event.at - began


@contextlib.contextmanager
def _flapping(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """A function that switches the next fault on or off; all are off in the end."""
    turn = 0

    def flap() -> None:
        nonlocal turn
        trouble, is_on = FLAPPING[turn % len(FLAPPING)], turn // len(FLAPPING) % 2
        (trouble.off if is_on else trouble.on)(cluster)
        turn += 1

    try:
        yield flap
    finally:
        for trouble in FLAPPING:
            trouble.off(cluster)


def _documents(seen: list[Event]) -> list[Result]:
    """What the health part held, each reading once."""
    parts = {
        (part["podUID"], part["sequence"]): part["reading"] for e in seen if (part := e.body.get("health"))
    }
    return [decode(text) for text in parts.values()]


def _xids_in(seen: list[Event]) -> int:
    """Xids that a reader of all these objects knows of, counted as the operator does."""
    known, total = History(), 0
    for document in _documents(seen):
        total += _in(xids.up_to_date(document, known))
        known = replace(known, reported=xids.reported(document, known))
    return total


def _all_in(document: Result) -> int:
    """Xids that one document tells of, new ones and repeated ones."""
    return _in(xids.up_to_date(document, History()))


def _in(document: Result) -> int:
    pairs = (pair for gpu in document.gpus for pair in zip(gpu.xids.seen, gpu.xids.counts, strict=True))
    return sum(one.count for code, one in pairs if code in CODES)


def _counted(cluster: Cluster) -> int:
    """Xids in the node's report."""
    history = History.decode(cluster.probe().get("history", ""))
    return sum(one.total for one in history.xids.values()) if history is not None else 0
