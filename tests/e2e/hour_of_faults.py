"""An hour of faults under one watch container, while others flap: a step on request (README.md)."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

from e2e import watch
from e2e.cluster import Cluster
from e2e.scenario import LEAVE_RUNS

HOUR, FLAP_APART = 3600.0, 1.25
FLAPPING = (("hot", 0), ("hot-memory", 2))
"""Faults and GPUs.  None of them makes the driver drop events, as a lost GPU does."""


def hour_of_faults(cluster: Cluster) -> None:
    watch.set_mode(cluster, "Watch")
    watch.fresh_pod(cluster)
    cluster.hardware.load(100)
    whose, end = watch.life(cluster), time.monotonic() + HOUR
    times: dict[str, list[float]] = {fault: [] for fault in watch.FAULTS}
    with _flapping(cluster) as flap:
        while time.monotonic() < end:
            for fault, taint in watch.FAULTS.items():
                times[fault].append(watch.fault_and_repair(cluster, fault, taint))
                for _ in range(2 * len(FLAPPING)):  # each comes and goes
                    flap()
                    time.sleep(FLAP_APART)
                watch.lift(cluster, at_most=2 * LEAVE_RUNS)
    for fault, seconds in times.items():
        figures = ", ".join(f"{figure(seconds):.1f}" for figure in (min, statistics.median, max))
        cluster.say(f"{fault} tainted {len(seconds)} times: {figures} s (min, median, max)")
    cluster.must_be(watch.life(cluster), whose, what="the watch container after an hour of faults")
    cluster.must_be(whose["restarts"], 0, what="how often it was started again")
    cluster.say("an hour of faults, and no restart")
    cluster.hardware.load(0)
    watch.set_mode(cluster, "Periodic")


@contextlib.contextmanager
def _flapping(cluster: Cluster) -> Iterator[Callable[[], None]]:
    turn = 0

    def flap() -> None:
        nonlocal turn
        (fault, gpu), is_on = FLAPPING[turn % len(FLAPPING)], turn // len(FLAPPING) % 2
        if is_on:
            cluster.hardware.heal(fault)
        else:
            cluster.hardware.fault(fault, gpu=gpu)
        turn += 1

    try:
        yield flap
    finally:
        for fault, _ in FLAPPING:
            cluster.hardware.heal(fault)
