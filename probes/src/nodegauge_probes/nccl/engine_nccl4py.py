"""The engine `nccl4py`: NCCL and CUDA through NVIDIA's own Python packages.

The only module that imports nccl4py and cuda.core; their versions are pinned in pyproject.toml (extra
`nccl`), because neither has a stable API.  Communicators are made by `Communicator.init_all`; the calls that
are timed go through nccl4py's generated bindings, because its checked methods take 50 to 90 us per rank and
call, which is longer than a small collective.

One process drives all GPUs, or (an order with a rank) one GPU as torchrun's do, with communicators by
`Communicator.init` and a unique id that rank 0 writes into a file.  Then NCCL exchanges memory handles, and
pairs are measured with its send and receive instead of copies.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from nodegauge_contract.nccl import Collective
from nodegauge_contract.values import NOT_READ
from nodegauge_probes.nccl import engine, pattern
from nodegauge_probes.nccl import engine_nccl4py_data as checked
from nodegauge_probes.nccl.protocol import (
    CUDA_ERROR,
    NCCL_ERROR,
    NO_ENGINE,
    OUT_OF_MEMORY,
    WRONG_ORDER,
    EngineInfo,
    Failure,
)
from nodegauge_probes.nccl.ranks import shared_id

NAME = "nccl4py"
FLOAT32, FLOAT64, SUM, MAX, SUCCESS = 7, 8, 0, 2, 0
"""ncclFloat32, ncclFloat64, ncclSum, ncclMax and ncclSuccess of nccl.h."""
AGREED = 256
"""Bytes for values to agree on."""
LAUNCHES = 64
"""Launches that are timed: with more the queue fills, and the host waits for the GPU."""
MAX_GPUS = 256


class Nccl4py(checked.Checked):
    """The GPUs of one order."""

    def __init__(self) -> None:
        self.buffer_bytes = 0
        self.launch_ms = 0.0
        self._buffers: list[Any] = []
        self._host: Any = None
        self._agreed: Any = None
        self._open_to: set[int] = set()

    def load(self, *, find_gpus: bool) -> EngineInfo:
        # Buffers come from memory pools, which other GPUs of this process cannot access unless each pool is
        # opened to them.  NCCL must not address them directly then (NCCL user guide, environment variables:
        # NCCL_P2P_DIRECT_DISABLE); jobs with one process per GPU never do.
        os.environ.setdefault("NCCL_P2P_DIRECT_DISABLE", "1")
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
            cuda=NOT_READ if variant is None else str(variant),
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

    def open(self, uuids: Sequence[str], *, rank: int) -> None:
        if absent := [uuid for uuid in uuids if uuid not in self._visible_devices]:
            shown = ", ".join(self._visible_devices) or "none"
            raise Failure(WRONG_ORDER, f"not visible to CUDA: {', '.join(absent)}; visible: {shown}")
        with self._translated_errors():
            self._ranks = [rank] if rank >= 0 else list(range(len(uuids)))
            self._size = len(uuids)
            self._devices = [self._visible_devices[uuids[each]] for each in self._ranks]
            self._streams, self._starts, self._stops = [], [], []
            timed = self._cuda.EventOptions(timing_enabled=True)
            for device in self._devices:
                device.set_current()
                self._streams.append(device.create_stream())
                self._starts.append(device.create_event(timed))
                self._stops.append(device.create_event(timed))
            self._timed = timed

    def connect(self, meeting: str) -> None:
        with self._translated_errors():
            if self._alone:
                devices = [device.device_id for device in self._devices]
                self._comms = self._nccl.Communicator.init_all(devices)
            else:
                self._devices[0].set_current()
                [rank] = self._ranks
                known = shared_id(meeting, rank=rank, make=lambda: bytes(self._nccl.get_unique_id()))
                unique = self._nccl.UniqueId.from_bytes(known)
                self._comms = [self._nccl.Communicator.init(self._size, rank, unique)]
            self._handles = [self._calls.Comm(comm.ptr) for comm in self._comms]
            if not self._alone:
                self._agreed = _allocated(self._devices[0], self._streams[0], AGREED)

    @property
    def _alone(self) -> bool:
        """This process drives all GPUs."""
        return len(self._ranks) == self._size

    def agree(self, *values: float) -> tuple[float, ...]:
        if self._alone:
            return values
        with self._translated_errors():
            data = array("d", values).tobytes()
            host, stream = self._pinned(), self._streams[0]
            ctypes.memmove(int(host.handle), data, len(data))
            here = self._view(int(host.handle), len(data), of=host)
            there = self._view(int(self._agreed.handle), len(data), of=self._agreed)
            self._devices[0].set_current()
            here.copy_to(there, stream=stream)
            self._barrier(len(values))
            there.copy_to(here, stream=stream)
            stream.sync()
            self._check_async_errors()
            return tuple(array("d", ctypes.string_at(int(host.handle), len(data))))

    def _barrier(self, count: int = 1) -> None:
        """The largest of so many values of each process, in the buffer for them; none passes before all."""
        buffer, stream = int(self._agreed.handle), int(self._streams[0].handle)
        self._calls.all_reduce(buffer, buffer, count, FLOAT64, MAX, self._handles[0], stream)

    def allocate(self, size: int) -> None:
        failure: Failure | None = None
        try:
            with self._translated_errors():
                for device, stream in zip(self._devices, self._streams, strict=True):
                    self._buffers.append(_allocated(device, stream, size))
        except Failure as error:
            failure = error
        if self.agree(float(failure is not None))[0]:
            self._drop()
            raise failure or Failure(OUT_OF_MEMORY, f"another process could not allocate {size} bytes")
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
            if not self._alone:
                self._barrier()  # else the first process would count the wait for the last one
            for stream, event in zip(self._streams, self._starts, strict=True):
                stream.record(event)
            began = time.perf_counter()
            for number in range(calls):
                start()
                for rank in arguments:
                    call(*rank)
                end()
                if number < LAUNCHES:
                    self.launch_ms = (time.perf_counter() - began) * 1000 / (number + 1)
            for stream, event in zip(self._streams, self._stops, strict=True):
                stream.record(event)
            for event in self._stops:
                event.sync()
            self._check_async_errors()
            spans = zip(self._starts, self._stops, strict=True)
            return self.agree(max(float(late - early) for early, late in spans))[0]

    def _call(self, collective: str, size: int) -> tuple[Callable[..., None], list[tuple[Any, ...]]]:
        """The function, and its arguments for each rank, in place."""
        count = pattern.elements(collective, size, self._size)
        arguments: list[tuple[Any, ...]] = []
        for here, rank in enumerate(self._ranks):
            whole = int(self._buffers[here].handle)
            block = whole + rank * count * pattern.ELEMENT
            target = (self._handles[here], int(self._streams[here].handle))
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
            count = pattern.elements(collective, size, self._size)
            for here in range(len(self._ranks)):
                self._fill(collective, here, count)
            self.batch(collective, size, 1)
            return sum(self._compare(collective, here, count) for here in range(len(self._ranks)))

    def _view(self, address: int, size: int, *, of: Any) -> Any:
        return self._cuda.Buffer.from_handle(address, size, owner=of)

    def _pinned(self) -> Any:
        """Host memory for asynchronous copies."""
        if self._host is None:
            self._host = self._cuda.LegacyPinnedMemoryResource().allocate(checked.STAGING)
        return self._host

    def copies(self, source: int, target: int, size: int, number: int) -> list[float]:
        if not self._alone:
            return self._transfers(source, target, size, number)
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

    def _transfers(self, source: int, target: int, size: int, number: int) -> list[float]:
        """As `copies`, by NCCL's send and receive: this process cannot address another one's memory."""
        with self._translated_errors():
            stream, rank = self._streams[0], self._ranks[0]
            self._devices[0].set_current()
            marks = [self._devices[0].create_event(self._timed) for _ in range(number + 1)]
            call, peer = (self._calls.send, target) if rank == source else (self._calls.recv, source)
            arguments = (int(self._buffers[0].handle), size // pattern.ELEMENT, FLOAT32, peer)
            for round_number, mark in enumerate(marks):
                if round_number == 1:
                    self._barrier()
                    stream.record(marks[0])
                if rank in (source, target):
                    call(*arguments, self._handles[0], int(stream.handle))
                stream.record(mark)
            marks[-1].sync()
            mine = [float(late - early) for early, late in pairwise(marks)]
            return list(self.agree(*(mine if rank in (source, target) else [0.0] * number)))

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
            if self._agreed is not None:
                self._agreed.close()

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


def _allocated(device: Any, stream: Any, size: int) -> Any:
    device.set_current()
    buffer = device.memory_resource.allocate(size, stream=stream)
    stream.sync()
    return buffer


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
