"""An event loop whose clock jumps: nobody sleeps, and an hour of timers runs in milliseconds."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stuck(Exception):
    """Nothing is left that could ever happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run, and jumps to the next timer when nothing can."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


PACKET_SECONDS = 0.005
"""Real time that a kernel may take to hand over a loopback packet."""


class _Jumping(selectors.SelectSelector):
    """A selector that waits for nothing but a packet on its way."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; else the loop's time jumps by `timeout`."""
        alone = len(self.get_map()) == 1  # the loop's own pipe, which only wakes it
        if alone and timeout is not None and timeout <= 0:
            return []
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if not alone:  # a packet may be on its way
            ready = super().select(PACKET_SECONDS)
            if ready:
                return ready
        if timeout is None:
            raise Stuck("every task waits for something that nothing will bring")
        self._loop.jump(timeout)
        return []


def run(main: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Not for waits for threads and processes: only servers of the same loop answer in no time."""

    @functools.wraps(test)
    def wrapped(*arguments: P.args, **fixtures: P.kwargs) -> None:
        run(test(*arguments, **fixtures))

    return wrapped


def drive(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError("it waited")


class Turn:
    """One step of a coroutine that is resumed by hand: `await Turn()` gives the turn away."""

    def __await__(self) -> Generator[None, None, None]:
        yield
