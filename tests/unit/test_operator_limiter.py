"""The limiter on virtual time: bursts, then a steady rate, in order."""

from __future__ import annotations

import asyncio

import pytest

from nodegauge_operator.kube import client as limiter_module
from nodegauge_operator.kube.client import Limiter
from support.virtual_time import run


def times(
    monkeypatch: pytest.MonkeyPatch, *, calls: int, rate: float, burst: int, idle: float = 0.0
) -> list[float]:
    """When each of so many calls was let through, after an idle time, all asking at once."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(limiter_module.time, "monotonic", loop.time)
        limiter = Limiter(rate=rate, burst=burst)
        await asyncio.sleep(idle)
        calls_at: list[tuple[int, float]] = []

        async def call(number: int) -> None:
            await limiter.wait()
            calls_at.append((number, loop.time() - idle))

        await asyncio.gather(*(call(n) for n in range(calls)))
        assert [n for n, _ in calls_at] == list(range(calls)), "callers overtook each other"
        return [round(at, 6) for _, at in calls_at]

    return run(main())


def test_a_burst_goes_at_once_and_then_the_rate_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once, then one every tenth of a second."""
    assert times(monkeypatch, calls=6, rate=10, burst=3) == [0, 0, 0, 0.1, 0.2, 0.3]


def test_idle_time_saves_up_one_burst_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of silence is no licence for a thousand calls."""
    assert times(monkeypatch, calls=4, rate=10, burst=2, idle=3600) == [0, 0, 0.1, 0.2]


def test_the_rate_holds_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand calls at 100 a second take ten seconds, less the burst."""
    moments = times(monkeypatch, calls=1000, rate=100, burst=200)
    assert moments[-1] == pytest.approx(8.0, abs=0.02)


def test_a_caller_that_gives_up_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while it waits: the others go on."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(limiter_module.time, "monotonic", loop.time)
        limiter = Limiter(rate=1, burst=1)
        await limiter.wait()
        waiting = [asyncio.create_task(limiter.wait()) for _ in range(3)]
        await asyncio.sleep(0.5)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return loop.time()

    assert run(main()) <= 3
