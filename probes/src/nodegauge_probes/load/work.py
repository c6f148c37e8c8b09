"""What one GPU does: set up, copy, compute and compare.  All of it runs in the thread that made the object.

Every launch takes about `LAUNCH_S`: long enough that its start costs nothing, short enough that results are
compared several times a second.  Two streams run side by side: `burn` in the tensor cores' registers,
`stream` through the memory; alone, neither draws what a training job draws.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from ctypes import c_uint, c_ulonglong
from statistics import median

from nodegauge_probes.load import ptx, truth
from nodegauge_probes.load.cuda import MULTIPROCESSORS, CudaError, Driver, Gpu, Stream
from nodegauge_probes.load.protocol import Copies, Interval, Memory, Ready

LAUNCH_S = 0.2
INTERVAL_S = 1.0
COPY_BYTES = 64 << 20
"""Pinned on the host for each GPU: sixteen need 1 GiB."""
BUFFER_BYTES = 2 << 30
"""Several times the largest cache (128 MB)."""
LEAST_BYTES = 256 << 20
PAIR = 2
"""Loops come in pairs: the second one returns the sums to zero."""
MAX_LOOPS = 1 << 26
CHECKED_LOOPS = 1001
"""Of the launch whose checksum is reported: the same on every GPU, however fast it is."""
MEMORY_COPIES = 20
MEMORY_ROUNDS = 5
"""The fastest counts: a host that is late with its copies makes a round longer, never shorter."""


class Work:
    """One GPU.  Raises `CudaError`."""

    def __init__(self, driver: Driver, number: int, ordinal: int) -> None:
        self._number, self._gpu = number, Gpu(driver, ordinal)
        variant = ptx.variant_for(self._gpu.capability)
        if variant is None:
            raise CudaError("load", -1, "this GPU is older than Maxwell, which the kernels need")
        self._variant = variant
        self._burn, self._fill, self._stream = self._gpu.load(ptx.source(variant), "burn", "fill", "stream")
        self._compute, self._read = self._gpu.stream(), self._gpu.stream()
        processors = self._gpu.attribute(MULTIPROCESSORS)
        self._blocks, self._readers = processors * ptx.BLOCKS_PER_SM, processors
        self._threads = self._blocks * ptx.THREADS
        self._allocate()
        self._loops, self._rounds = PAIR, 1

    def _allocate(self) -> None:
        gpu = self._gpu
        self._table = gpu.allocate(len(truth.table(self._variant)))
        gpu.write(self._table, truth.table(self._variant))
        self._results = gpu.allocate(4 * self._threads)
        self._wrong = gpu.allocate(8)
        self._host = gpu.pinned(COPY_BYTES)
        # One buffer for everything: its two halves are copied to each other, then it holds the pattern.
        step = self._readers * ptx.THREADS * ptx.UNROLL
        wanted = min(BUFFER_BYTES, max(LEAST_BYTES, gpu.free_bytes() // 4))
        self._vectors = wanted // 16 // step * step
        self._buffer = gpu.allocate(self._vectors * 16)

    def set_up(self) -> Ready:
        """Find out how long launches have to be, and what their results are."""
        self._run_fill()
        self._loops = self._calibrated(self._launch_burn, "_loops", self._compute, PAIR)
        self._rounds = self._calibrated(self._launch_stream, "_rounds", self._read, 1)
        loops, self._loops = self._loops, CHECKED_LOOPS
        checked = self._usual_lanes()
        self._loops = loops
        lanes = self._usual_lanes()
        self._reference = b"".join(lane.to_bytes(4, "little") for lane in lanes)
        self._reference *= self._threads // ptx.WARP
        return Ready(
            gpu=self._number,
            kernel=self._variant.name,
            checksum=truth.checksum(checked),
            expected=truth.checksum(truth.expected(self._variant, loops=CHECKED_LOOPS)),
        )

    def _usual_lanes(self) -> list[int]:
        """What most warps compute: a single processor that errs must not become the reference."""
        self._launch_burn()
        self._compute.wait()
        results = memoryview(self._gpu.read(self._results, 4 * self._threads)).cast("I")
        return [Counter(results[lane :: ptx.WARP]).most_common(1)[0][0] for lane in range(ptx.WARP)]

    def _calibrated(self, launch: Callable[[], None], name: str, stream: Stream, step: int) -> int:
        """How many rounds take `LAUNCH_S`; the first launch also loads the kernel, so it does not count."""

        def timed() -> float:
            launch()
            return max(stream.wait(), 1e-6)

        number = step
        for _ in range(12):
            setattr(self, name, number)
            seconds = timed()
            if seconds > LAUNCH_S / 4:
                seconds = min(seconds, timed())  # the host may have been late
            if seconds > LAUNCH_S / 4 or number >= MAX_LOOPS:
                return max(step, round(number * LAUNCH_S / seconds) // step * step)
            number = min(MAX_LOOPS, max(number * 4, round(number * LAUNCH_S / 2 / seconds)) // step * step)
        return number

    def _run_fill(self) -> None:
        self._read.begin()
        arguments = c_ulonglong(self._buffer), c_ulonglong(self._vectors)
        self._gpu.launch(self._read, self._fill, *arguments, blocks=self._readers, threads=ptx.THREADS)
        self._read.end()

    def _launch_burn(self) -> None:
        self._compute.begin()
        arguments = c_ulonglong(self._table), c_ulonglong(self._results), c_uint(self._loops)
        self._gpu.launch(self._compute, self._burn, *arguments, blocks=self._blocks, threads=ptx.THREADS)
        self._compute.record()

    def _launch_stream(self) -> None:
        self._read.begin()
        self._gpu.launch(
            self._read,
            self._stream,
            c_ulonglong(self._buffer),
            c_ulonglong(self._vectors),
            c_uint(self._rounds),
            c_ulonglong(self._wrong),
            blocks=self._readers,
            threads=ptx.THREADS,
        )
        self._read.record()

    def copies(self, *, seconds: float, alone: bool) -> Copies:
        """Pinned copies for so many seconds in each direction."""
        buffer, size = {"source": self._host, "to": self._buffer}, COPY_BYTES
        back = {"source": self._buffer, "to": self._host}
        h2d = self._rate(lambda: self._gpu.to_gpu(self._read, **buffer, size=size), seconds)
        d2h = self._rate(lambda: self._gpu.to_host(self._read, **back, size=size), seconds)
        return Copies(gpu=self._number, alone=alone, h2d=h2d, d2h=d2h)

    def _rate(self, copy: Callable[[], None], seconds: float) -> float:
        """GB/s of copies of `COPY_BYTES`, two queued at a time."""
        until, copied, taken = time.monotonic() + seconds, 0, 0.0
        while not copied or time.monotonic() < until:
            self._read.begin()
            copy()
            copy()
            taken += self._read.end()
            copied += 2 * COPY_BYTES
        return copied / max(taken, 1e-9) / 1e9

    def memory(self) -> Memory:
        """Copies from one half of the buffer to the other, then the pattern again."""
        half = self._vectors * 8
        rounds = []
        for _ in range(MEMORY_ROUNDS):  # the first one also wakes the clocks
            self._read.begin()
            for _ in range(MEMORY_COPIES):
                self._gpu.within(self._read, to=self._buffer + half, source=self._buffer, size=half)
            rounds.append(self._read.end())
        self._run_fill()
        return Memory(gpu=self._number, gbps=2 * half * MEMORY_COPIES / max(min(rounds), 1e-9) / 1e9)

    def burn(self, *, seconds: float, report: Callable[[Interval], None]) -> None:
        """Compute and read for so many seconds; a report about every second.

        The median launch gives the speed: the host may be late with some of them.
        """
        until, checks, mismatches = time.monotonic() + seconds, 0, 0
        operations = self._variant.operations * self._loops * self._threads // ptx.WARP
        while (now := time.monotonic()) < until:
            launches: list[float] = []
            end = now + INTERVAL_S if now + 2 * INTERVAL_S <= until else until  # no short one at the end
            while not launches or time.monotonic() < end:
                launches.append(self._step())
                results = self._gpu.read(self._results, 4 * self._threads)
                checks, mismatches = checks + 1, mismatches + _differing(results, self._reference)
            wrong = int.from_bytes(self._gpu.read(self._wrong, 8), "little")
            report(
                Interval(
                    gpu=self._number,
                    tflops=operations / max(median(launches), 1e-9) / 1e12,
                    checks=checks,
                    mismatches=mismatches,
                    memory_mismatches=wrong,
                )
            )

    def _step(self) -> float:
        """One launch of each kernel; seconds of the computing one, after which the other's length follows."""
        self._launch_burn()
        self._launch_stream()
        computing, reading = self._compute.wait(), self._read.wait()
        self._rounds = max(1, min(MAX_LOOPS, round(self._rounds * computing / max(reading, 1e-6))))
        return computing


def _differing(results: bytes, reference: bytes) -> int:
    """Threads whose result is another one."""
    if results == reference:
        return 0
    pairs = zip(memoryview(results).cast("I"), memoryview(reference).cast("I"), strict=True)
    return sum(result != expected for result, expected in pairs)
