"""The process that drives the GPUs: a thread for each, in step with each other.

One process for all, because the GPUs have to begin together; a thread that hangs in the driver is given up,
and the other GPUs go on.  It dies with the probe (`pdeathsig_exec`) or by its SIGKILL, which also ends the
work on the GPUs; no clean-up is needed, so none is done.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from nodegauge_probes.load.cuda import CudaError, Driver, NoCuda
from nodegauge_probes.load.protocol import Failed, Line, Order, Phase, decode_order, encode_line
from nodegauge_probes.load.work import Work
from nodegauge_probes.nccl.protocol import FD_VARIABLE

SETUP_S, COPIES_S, MORE_S = 60.0, 10.0, 10.0
"""How long a GPU may take to be set up, to copy, and longer than planned to compute, before it hangs."""
MAX_MESSAGE = 240
BAD_ORDER = 2


class Worker:
    """One GPU's thread: runs one function after the other, and keeps why it failed."""

    def __init__(self, number: int, emit: Callable[[Line], None]) -> None:
        self.number = number
        self.usable = True
        self.work: Work | None = None
        self._emit = emit
        self._orders: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name=f"gpu-{number}").start()

    def begin(self, function: Callable[[], None]) -> threading.Event:
        """Run it in the thread; the event is set when it returned or failed."""
        ended = threading.Event()
        self._orders.put((function, ended))
        return ended

    def fail(self, message: str, *, hung: bool = False) -> None:
        self.usable = False
        self._emit(Line(failed=Failed(gpu=self.number, message=message[:MAX_MESSAGE], hung=hung)))

    def _run(self) -> None:
        while True:
            function, ended = self._orders.get()
            try:
                function()
            except CudaError as error:
                self.fail(str(error))
            except OSError:
                os._exit(1)  # the probe is gone
            except Exception as error:
                self.fail(f"{type(error).__name__}: {error}")
            ended.set()


class Team:
    """All GPUs of one order."""

    def __init__(self, order: Order, driver: Driver, emit: Callable[[Line], None]) -> None:
        self._order, self._driver, self._emit = order, driver, emit
        self._workers = [Worker(number, emit) for number in range(len(order.uuids))]

    def run(self) -> None:
        """Everything, phase by phase."""
        self._together(self._set_up, seconds=SETUP_S)
        self._emit(Line(phase=Phase.COPIES))
        for worker in self._usable():
            self._wait([(worker, worker.begin(partial(self._copy, worker, True)))], seconds=COPIES_S)
        self._together(lambda worker: self._copy(worker, False), seconds=COPIES_S)
        self._emit(Line(phase=Phase.MEMORY))
        self._together(self._memory, seconds=COPIES_S)
        self._emit(Line(phase=Phase.BURN))
        self._together(self._burn, seconds=self._order.seconds + MORE_S)
        self._emit(Line(done=True))

    def _usable(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.usable]

    def _together(self, function: Callable[[Worker], None], *, seconds: float) -> None:
        workers = self._usable()
        self._wait([(worker, worker.begin(partial(function, worker))) for worker in workers], seconds=seconds)

    def _wait(self, begun: Sequence[tuple[Worker, threading.Event]], *, seconds: float) -> None:
        for worker, ended in begun:
            if not ended.wait(seconds):
                worker.fail(f"a call into CUDA did not return within {seconds:g} s", hung=True)

    def _set_up(self, worker: Worker) -> None:
        uuid, cpus = self._order.uuids[worker.number], self._order.cpus[worker.number]
        with suppress(OSError, ValueError):
            os.sched_setaffinity(0, cpu_numbers(cpus) & os.sched_getaffinity(0))
        visible = [self._driver.uuid(ordinal) for ordinal in range(self._driver.count())]
        if uuid not in visible:
            worker.fail("NVML shows this GPU, CUDA does not")
            return
        worker.work = Work(self._driver, worker.number, visible.index(uuid))
        self._emit(Line(ready=worker.work.set_up()))

    def _copy(self, worker: Worker, alone: bool) -> None:
        assert worker.work is not None
        seconds = self._order.copy_seconds if alone else self._order.all_seconds
        self._emit(Line(copies=worker.work.copies(seconds=seconds, alone=alone)))

    def _memory(self, worker: Worker) -> None:
        assert worker.work is not None
        self._emit(Line(memory=worker.work.memory()))

    def _burn(self, worker: Worker) -> None:
        assert worker.work is not None
        worker.work.burn(seconds=self._order.seconds, report=lambda each: self._emit(Line(interval=each)))
        self._emit(Line(finished=worker.number))


def cpu_numbers(ranges: str) -> set[int]:
    """`0-3,8` as numbers; raises ValueError for anything else."""
    numbers: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def main(arguments: Sequence[str]) -> int:
    """Run the order in `arguments`; returns the exit code."""
    parser = argparse.ArgumentParser(description="Drives the GPUs of a load run; started by the probe.")
    parser.add_argument("--order", required=True)
    try:
        order = decode_order(parser.parse_args(arguments).order)
        descriptor = int(os.environ[FD_VARIABLE])
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        print(f"invalid order, or no {FD_VARIABLE}: {error!r}", file=sys.stderr)
        return BAD_ORDER

    def emit(line: Line) -> None:
        os.write(descriptor, encode_line(line))

    try:
        driver = Driver()
    except (NoCuda, CudaError) as error:
        emit(Line(no_cuda=str(error)[:MAX_MESSAGE]))
        return 0
    Team(order, driver, emit).run()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a thread may hang in the driver
