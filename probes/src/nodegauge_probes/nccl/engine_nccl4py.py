"""The engine `nccl4py`: NCCL and CUDA through NVIDIA's own Python packages, one process for all GPUs.

The only module that imports nccl4py and cuda.core; their versions are pinned in pyproject.toml (extra
`nccl`), because neither has a stable API.  Communicators are made by `Communicator.init_all`; the calls that
are timed go through nccl4py's generated bindings, because its checked methods take 50 to 90 us per rank and
call, which is longer than a small collective.

One process for all GPUs uses NCCL's path "P2P/direct pointer" instead of the IPC of one process per GPU.
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
from nodegauge_probes.nccl.protocol import (
    CUDA_ERROR,
    NCCL_ERROR,
    NO_ENGINE,
    OUT_OF_MEMORY,
    WRONG_ORDER,
    EngineInfo,
    Failure,
)

NAME = "nccl4py"
FLOAT32, SUM, SUCCESS = 7, 0, 0
"""ncclFloat32, ncclSum and ncclSuccess of nccl.h."""
MAX_GPUS = 256
STAGING = pattern.PERIOD * pattern.ELEMENT * 4096
"""Bytes per copy to a GPU: whole periods of the pattern, so that all pieces are equal."""


class Nccl4py:
    """The GPUs of one order."""

    def __init__(self) -> None:
        self.buffer_bytes = 0
        self._buffers: list[Any] = []
        self._host: Any = None
        self._open_to: set[int] = set()

    def load(self, *, find_gpus: bool) -> EngineInfo:
        with self._translated_errors():
            import nccl.core as nccl
            from cuda import core as cuda
            from nccl.bindings import nccl as calls

            self._nccl, self._cuda, self._calls = nccl, cuda, calls
            calls.get_version()  # loads libnccl, or says why it cannot
            versions = nccl.get_version()
            self._visible_devices = dict(self._find_devices()) if find_gpus else {}
        library = versions.libnccl
        variant = getattr(library, "cuda_variant", None)
        return EngineInfo(
            name=NAME,
            version=str(versions.nccl4py),
            nccl=str(library.version) if library is not None else NOT_READ,
            cuda=_text(variant),
            uuids=list(self._visible_devices),
        )

    def _find_devices(self) -> Iterator[tuple[str, Any]]:
        """CUDA's devices by UUID.  cuda.core's count is NVML's, which ignores CUDA_VISIBLE_DEVICES."""
        for number in range(MAX_GPUS):
            try:
                device = self._cuda.Device(number)
            except ValueError:
                return
            yield f"GPU-{device.uuid}", device

    def open(self, uuids: Sequence[str]) -> None:
        if absent := [uuid for uuid in uuids if uuid not in self._visible_devices]:
            shown = ", ".join(self._visible_devices) or "none"
            raise Failure(WRONG_ORDER, f"not visible to CUDA: {', '.join(absent)}; visible: {shown}")
        with self._translated_errors():
            self._devices = [self._visible_devices[uuid] for uuid in uuids]
            self._streams, self._starts, self._stops = [], [], []
            timed = self._cuda.EventOptions(timing_enabled=True)
            for device in self._devices:
                device.set_current()
                self._streams.append(device.create_stream())
                self._starts.append(device.create_event(timed))
                self._stops.append(device.create_event(timed))
            self._timed = timed

    def connect(self) -> None:
        with self._translated_errors():
            self._comms = self._nccl.Communicator.init_all([device.device_id for device in self._devices])
            self._handles = [self._calls.Comm(comm.ptr) for comm in self._comms]

    def allocate(self, size: int) -> None:
        with self._translated_errors():
            try:
                for device, stream in zip(self._devices, self._streams, strict=True):
                    device.set_current()
                    self._buffers.append(device.memory_resource.allocate(size, stream=stream))
                    stream.sync()
            except BaseException:
                self._drop()
                raise
            self.buffer_bytes = size

    def _drop(self) -> None:
        self.buffer_bytes = 0
        while self._buffers:
            self._buffers.pop().close()
        for stream in self._streams:
            stream.sync()

    def batch(self, collective: str, size: int, calls: int) -> float:
        with self._translated_errors():
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
            for stream, event in zip(self._streams, self._stops, strict=True):
                stream.record(event)
            for event in self._stops:
                event.sync()
            self._check_async_errors()
            spans = zip(self._starts, self._stops, strict=True)
            return max(float(late - early) for early, late in spans)

    def _call(self, collective: str, size: int) -> tuple[Callable[..., None], list[tuple[Any, ...]]]:
        """The function, and its arguments for each rank, in place."""
        ranks = len(self._devices)
        count = pattern.elements(collective, size, ranks)
        arguments: list[tuple[Any, ...]] = []
        for rank in range(ranks):
            whole = int(self._buffers[rank].handle)
            block = whole + rank * count * pattern.ELEMENT
            target = (self._handles[rank], int(self._streams[rank].handle))
            if collective == Collective.ALL_REDUCE:
                arguments.append((whole, whole, count, FLOAT32, SUM, *target))
            elif collective == Collective.ALL_GATHER:
                arguments.append((block, whole, count, FLOAT32, *target))
            else:
                arguments.append((whole, block, count, FLOAT32, SUM, *target))
        functions = {
            Collective.ALL_REDUCE: self._calls.all_reduce,
            Collective.ALL_GATHER: self._calls.all_gather,
            Collective.REDUCE_SCATTER: self._calls.reduce_scatter,
        }
        return functions[Collective(collective)], arguments

    def _check_async_errors(self) -> None:
        """Errors after a call had returned."""
        for comm in self._comms:
            if int(comm.get_async_error()) != SUCCESS:
                raise Failure(NCCL_ERROR, comm.get_last_error() or str(comm.get_async_error()))

    def wrong(self, collective: str, size: int) -> int:
        with self._translated_errors():
            ranks = len(self._devices)
            count = pattern.elements(collective, size, ranks)
            for rank in range(ranks):
                self._fill(collective, rank, count)
            self.batch(collective, size, 1)
            return sum(self._compare(collective, rank, count) for rank in range(ranks))

    def _fill(self, collective: str, rank: int, count: int) -> None:
        """Write the rank's input; the rest of an all_gather is poisoned, so that old data is detected."""
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
                correct = pattern.expected(
                    collective, ranks=ranks, rank=rank, count=count, start=first, stop=last
                )
                wrong += pattern.wrong(ctypes.string_at(int(host.handle), stop - start), correct)
        return wrong

    def _view(self, address: int, size: int, *, of: Any) -> Any:
        return self._cuda.Buffer.from_handle(address, size, owner=of)

    def _pinned(self) -> Any:
        """Host memory for asynchronous copies."""
        if self._host is None:
            self._host = self._cuda.LegacyPinnedMemoryResource().allocate(STAGING)
        return self._host

    def copies(self, source: int, target: int, size: int, number: int) -> list[float]:
        with self._translated_errors():
            self._open_peers(target)
            stream = self._streams[source]
            self._devices[source].set_current()
            buffers = [
                self._view(int(self._buffers[rank].handle), size, of=self._buffers[rank])
                for rank in (source, target)
            ]
            buffers[0].copy_to(buffers[1], stream=stream)
            marks = [self._devices[source].create_event(self._timed) for _ in range(number + 1)]
            stream.record(marks[0])
            for mark in marks[1:]:
                buffers[0].copy_to(buffers[1], stream=stream)
                stream.record(mark)
            marks[-1].sync()
            return [late - early for early, late in pairwise(marks)]

    def _open_peers(self, target: int) -> None:
        """Allow direct copies from all GPUs that can access this one's memory."""
        pool, device = self._devices[target].memory_resource, self._devices[target]
        if target in self._open_to or not hasattr(pool, "peer_accessible_by"):
            return  # without memory pools NCCL has already enabled access to plain memory
        self._open_to.add(target)
        peers = {
            other.device_id
            for other in self._devices
            if other.device_id != device.device_id and other.can_access_peer(device.device_id)
        }
        pool.peer_accessible_by = peers

    def close(self) -> None:
        with self._translated_errors():
            for comm in self._comms:
                comm.destroy()
            self._drop()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn the libraries' exceptions into `Failure`; our own bugs stay exceptions."""
        try:
            yield
        except Failure:
            raise
        except ImportError as error:
            raise Failure(NO_ENGINE, f"{type(error).__name__}: {error}") from error
        except Exception as error:
            message = f"{type(error).__name__}: {error} {self._last_error(error)}"
            kind = failure_kind(error, message)
            if kind is None:
                raise
            raise Failure(kind, message) from error

    def _last_error(self, error: Exception) -> str:
        """NCCL's message, which names the failed call to CUDA: its error codes do not."""
        if type(error).__name__ != "NCCLError":
            return ""
        try:
            return f"({self._calls.get_last_error(self._calls.Comm())})"
        except Exception:
            return ""


def _text(value: Any) -> Text:
    return str(value) if value is not None else NOT_READ


def failure_kind(error: Exception, message: str) -> str | None:
    """The kind of failure for a library's exception; None for any other."""
    home, name = type(error).__module__.partition(".")[0], type(error).__name__
    if name.startswith("DynamicLib"):
        return NO_ENGINE
    kind = {"nccl": NCCL_ERROR, "cuda": CUDA_ERROR}.get(home)
    no_memory = "out of memory" in message.lower().replace("_", " ")
    return OUT_OF_MEMORY if isinstance(error, MemoryError) or (kind and no_memory) else kind


if __name__ == "__main__":
    sys.exit(engine.main(Nccl4py, sys.argv[1:], os.environ))
