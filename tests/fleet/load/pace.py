"""Ends of watch containers at a rate, as an open loop: they come whether or not the operator keeps up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

from fleet.load.kubelets import Kubelets


async def at_rate(kubelets: Kubelets, messages: Mapping[str, str], *, rate: float) -> float:
    """End each node's container with its message, `rate` a second; the rate that was reached.

    Returns when each of them runs again.
    """
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, (node, message) in enumerate(messages.items()):
            await asyncio.sleep(started + number / rate - time.monotonic())
            group.create_task(kubelets.end(node, message))
        seconds = time.monotonic() - started
    return len(messages) / seconds


async def at_once(kubelets: Kubelets, messages: Mapping[str, str]) -> None:
    """End all of them now."""
    async with asyncio.TaskGroup() as group:
        for node, message in messages.items():
            group.create_task(kubelets.end(node, message))


def arrivals(*, rate: float, seconds: float, seed: int = 1) -> list[float]:
    """When results of many independent nodes come: seconds from the start, by a Poisson process."""
    chance, times = random.Random(seed), [0.0]
    while times[-1] < seconds:
        times.append(times[-1] + chance.expovariate(rate))
    return times[1:-1]
