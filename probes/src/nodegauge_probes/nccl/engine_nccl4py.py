"""The engine `nccl4py`: NCCL and CUDA through NVIDIA's own Python packages, one process for all GPUs.

The only file that knows nccl4py and cuda.core; their versions are pinned in pyproject.toml (extra `nccl`),
because neither promises to stay as it is.  Communicators are made by `Communicator.init_all`; the calls that
are timed go through nccl4py's generated bindings, because its checked methods take 50 to 90 us per rank and
call, which is longer than a small collective.

One process for all GPUs takes NCCL's path "P2P/direct pointer", never the IPC that one process per GPU takes.
Nothing here is sure to have met a GPU of yours: what it does is what the packages' documentation says.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from nodegauge_contract.nccl import Collective
from nodegauge_contract.values import NOT_READ, Text
from nodegauge_probes.nccl import engine, pattern
from nodegauge_probes.nccl.emitter import CUDA_ERROR, NCCL_ERROR, NO_ENGINE, OUT_OF_MEMORY, Failure
from nodegauge_probes.nccl.emitter import WRONG_ORDER as UNKNOWN_GPU
from nodegauge_probes.nccl.protocol import About

NAME = "nccl4py"
FLOAT32, SUM, SUCCESS = 7, 0, 0
"""ncclFloat32, ncclSum and ncclSuccess of nccl.h."""
MOST_GPUS = 256
STAGING = pattern.PERIOD * pattern.ELEMENT * 4096
"""Bytes that go to a GPU at once: whole periods of the pattern, so that each piece begins like the first."""


class Nccl4py:
    """The GPUs of one order."""

    def __init__(self) -> None:
        self.held = 0
        self._buffers: list[Any] = []
        self._host: Any = None
        self._open_to: set[int] = set()

    def about(self, *, touch: bool) -> About:
        with self._explained():
            import nccl.core as nccl
            from cuda import core as cuda
            from nccl.bindings import nccl as calls

            self._nccl, self._cuda, self._calls = nccl, cuda, calls
            calls.get_version()  # loads libnccl, or says why it cannot
            versions = nccl.get_version()
            self._seen = dict(self._visible()) if touch else {}
        library = versions.libnccl
        variant = getattr(library, "cuda_variant", None)
        return About(
            engine=NAME,
            engine_version=str(versions.nccl4py),
            nccl=str(library.version) if library is not None else NOT_READ,
            cuda=_text(variant),
            uuids=list(self._seen),
        )

    def _visible(self) -> Iterator[tuple[str, Any]]:
        """CUDA's devices by UUID; its own count is NVML's, which CUDA_VISIBLE_DEVICES does not change."""
        for number in range(MOST_GPUS):
            try:
                device = self._cuda.Device(number)
            except ValueError:
                return
            yield f"GPU-{device.uuid}", device

    def open(self, uuids: Sequence[str]) -> None:
        if absent := [uuid for uuid in uuids if uuid not in self._seen]:
            shown = ", ".join(self._seen) or "none"
            raise Failure(UNKNOWN_GPU, f"not visible to CUDA: {', '.join(absent)}; visible: {shown}")
        with self._explained():
            self._devices = [self._seen[uuid] for uuid in uuids]
            self._streams, self._starts, self._ends = [], [], []
            timed = self._cuda.EventOptions(timing_enabled=True)
            for device in self._devices:
                device.set_current()
                self._streams.append(device.create_stream())
                self._starts.append(device.create_event(timed))
                self._ends.append(device.create_event(timed))
            self._timed = timed

    def connect(self) -> None:
        with self._explained():
            self._comms = self._nccl.Communicator.init_all([device.device_id for device in self._devices])
            self._handles = [self._calls.Comm(comm.ptr) for comm in self._comms]

    def room(self, size: int) -> None:
        with self._explained():
            try:
                for device, stream in zip(self._devices, self._streams, strict=True):
                    device.set_current()
                    self._buffers.append(device.memory_resource.allocate(size, stream=stream))
                    stream.sync()
            except BaseException:
                self._drop()
                raise
            self.held = size

    def _drop(self) -> None:
        self.held = 0
        while self._buffers:
            self._buffers.pop().close()
        for stream in self._streams:
            stream.sync()

    def batch(self, collective: str, size: int, calls: int) -> float:
        with self._explained():
            call, arguments = self._call(collective, size)
            start, end = self._calls.group_start, self._calls.group_end
            for stream in self._streams:
                stream.sync()
            for stream, event in zip(self._streams, self._starts, strict=True):
                stream.record(event)
            for _ in range(calls):
                start()
                for rank in arguments:
                    call(*rank)
                end()
            for stream, event in zip(self._streams, self._ends, strict=True):
                stream.record(event)
            for event in self._ends:
                event.sync()
            self._health()
            spans = zip(self._starts, self._ends, strict=True)
            return max(float(late - early) for early, late in spans)

    def _call(self, collective: str, size: int) -> tuple[Callable[..., None], list[tuple[Any, ...]]]:
        """The function, and its arguments for each rank, in place."""
        ranks = len(self._devices)
        count = pattern.elements(collective, size, ranks)
        arguments: list[tuple[Any, ...]] = []
        for rank in range(ranks):
            whole = int(self._buffers[rank].handle)
            own = whole + rank * count * pattern.ELEMENT
            ends = (self._handles[rank], int(self._streams[rank].handle))
            if collective == Collective.ALL_REDUCE:
                arguments.append((whole, whole, count, FLOAT32, SUM, *ends))
            elif collective == Collective.ALL_GATHER:
                arguments.append((own, whole, count, FLOAT32, *ends))
            else:
                arguments.append((whole, own, count, FLOAT32, SUM, *ends))
        functions = {
            Collective.ALL_REDUCE: self._calls.all_reduce,
            Collective.ALL_GATHER: self._calls.all_gather,
            Collective.REDUCE_SCATTER: self._calls.reduce_scatter,
        }
        return functions[Collective(collective)], arguments

    def _health(self) -> None:
        """Errors that NCCL met after a call had returned."""
        for comm in self._comms:
            if int(comm.get_async_error()) != SUCCESS:
                raise Failure(NCCL_ERROR, comm.get_last_error() or str(comm.get_async_error()))

    def wrong(self, collective: str, size: int) -> int:
        with self._explained():
            ranks = len(self._devices)
            count = pattern.elements(collective, size, ranks)
            for rank in range(ranks):
                self._fill(collective, rank, count)
            self.batch(collective, size, 1)
            return sum(self._compare(collective, rank, count) for rank in range(ranks))

    def _fill(self, collective: str, rank: int, count: int) -> None:
        """What the rank puts in; all else of an all_gather is poisoned, so that old data cannot pass."""
        ranks, stream = len(self._devices), self._streams[rank]
        self._devices[rank].set_current()
        base = int(self._buffers[rank].handle)
        size = pattern.ELEMENT * (count if collective == Collective.ALL_REDUCE else count * ranks)
        if collective == Collective.ALL_GATHER:
            self._view(base, size, of=self._buffers[rank]).fill(pattern.POISON, stream=stream)
            base, size = base + rank * count * pattern.ELEMENT, count * pattern.ELEMENT
        piece = pattern.values(rank + 1, start=0, stop=STAGING // pattern.ELEMENT)
        host = self._pinned()
        ctypes.memmove(int(host.handle), piece, STAGING)
        for offset in range(0, size, STAGING):
            part = min(STAGING, size - offset)
            source = self._view(int(host.handle), part, of=host)
            source.copy_to(self._view(base + offset, part, of=self._buffers[rank]), stream=stream)
        stream.sync()

    def _compare(self, collective: str, rank: int, count: int) -> int:
        self._devices[rank].set_current()
        ranks, stream, host = len(self._devices), self._streams[rank], self._pinned()
        base, size = int(self._buffers[rank].handle), count * pattern.ELEMENT
        if collective == Collective.REDUCE_SCATTER:
            base += rank * size
        elif collective == Collective.ALL_GATHER:
            size *= ranks
        wrong = 0
        for low, high in pattern.windows(size):
            for start in range(low, high, STAGING):
                stop = min(start + STAGING, high)
                target = self._view(int(host.handle), stop - start, of=host)
                self._view(base + start, stop - start, of=self._buffers[rank]).copy_to(target, stream=stream)
                stream.sync()
                first, last = start // pattern.ELEMENT, stop // pattern.ELEMENT
                wanted = pattern.expected(
                    collective, ranks=ranks, rank=rank, count=count, start=first, stop=last
                )
                wrong += pattern.wrong(ctypes.string_at(int(host.handle), stop - start), wanted)
        return wrong

    def _view(self, address: int, size: int, *, of: Any) -> Any:
        return self._cuda.Buffer.from_handle(address, size, owner=of)

    def _pinned(self) -> Any:
        """Host memory that copies run asynchronously from and to."""
        if self._host is None:
            self._host = self._cuda.LegacyPinnedMemoryResource().allocate(STAGING)
        return self._host

    def copies(self, source: int, target: int, size: int, number: int) -> list[float]:
        with self._explained():
            self._open_peers(target)
            stream = self._streams[source]
            self._devices[source].set_current()
            ends = [
                self._view(int(self._buffers[rank].handle), size, of=self._buffers[rank])
                for rank in (source, target)
            ]
            ends[0].copy_to(ends[1], stream=stream)
            marks = [self._devices[source].create_event(self._timed) for _ in range(number + 1)]
            stream.record(marks[0])
            for mark in marks[1:]:
                ends[0].copy_to(ends[1], stream=stream)
                stream.record(mark)
            marks[-1].sync()
            return [late - early for early, late in pairwise(marks)]

    def _open_peers(self, target: int) -> None:
        """Let the GPUs that can reach this one's memory do so, without the host between them."""
        pool, device = self._devices[target].memory_resource, self._devices[target]
        if target in self._open_to or not hasattr(pool, "peer_accessible_by"):
            return  # without memory pools NCCL has opened plain memory already
        self._open_to.add(target)
        peers = {
            other.device_id
            for other in self._devices
            if other.device_id != device.device_id and other.can_access_peer(device.device_id)
        }
        pool.peer_accessible_by = peers

    def close(self) -> None:
        with self._explained():
            for comm in self._comms:
                comm.destroy()
            self._drop()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what the libraries raise into `Failure`; a mistake of ours stays what it is."""
        try:
            yield
        except Failure:
            raise
        except ImportError as error:
            raise Failure(NO_ENGINE, f"{type(error).__name__}: {error}") from error
        except Exception as error:
            words = f"{type(error).__name__}: {error} {self._last_words(error)}"
            what = what_of(error, words)
            if what is None:
                raise
            raise Failure(what, words) from error

    def _last_words(self, error: Exception) -> str:
        """NCCL's own, which name the call to CUDA that failed: its error codes do not."""
        if type(error).__name__ != "NCCLError":
            return ""
        try:
            return f"({self._calls.get_last_error(self._calls.Comm())})"
        except Exception:
            return ""


def _text(value: Any) -> Text:
    return str(value) if value is not None else NOT_READ


def what_of(error: Exception, words: str) -> str | None:
    """What kind of failure an exception of the libraries is; None for one that is not theirs."""
    home, name = type(error).__module__.partition(".")[0], type(error).__name__
    if name.startswith("DynamicLib"):
        return NO_ENGINE
    known = {"nccl": NCCL_ERROR, "cuda": CUDA_ERROR}.get(home)
    starved = "out of memory" in words.lower().replace("_", " ")
    return OUT_OF_MEMORY if isinstance(error, MemoryError) or (known and starved) else known


if __name__ == "__main__":
    sys.exit(engine.main(Nccl4py, sys.argv[1:], os.environ))
