"""One call on known data: fills the buffers of this process's GPUs, and counts the wrong elements in them.

Apart from `engine_nccl4py`, which knows the libraries: here are only addresses and copies of their buffers.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import Any

from nodegauge_contract.nccl import Collective
from nodegauge_probes.nccl import pattern

STAGING = pattern.PERIOD * pattern.ELEMENT * 4096
"""Bytes per copy to a GPU: whole periods of the pattern, so that all pieces are equal."""


class Checked(ABC):
    """The part of an engine that checks data; the engine has the members.  `_size`: ranks in all; `_ranks`:
    those of this process, in the order of `_devices`, `_streams` and `_buffers`."""

    _size: int
    _ranks: list[int]
    _devices: list[Any]
    _streams: list[Any]
    _buffers: list[Any]

    @abstractmethod
    def _view(self, address: int, size: int, *, of: Any) -> Any:
        """`size` bytes of a GPU's buffer from `address` on."""

    @abstractmethod
    def _pinned(self) -> Any:
        """A buffer of the host for `STAGING` bytes."""

    def _fill(self, collective: str, here: int, count: int) -> None:
        """Write a rank's input; the rest of an all_gather is poisoned, so that old data is detected.
        `here`: the rank's place in this process."""
        ranks, rank, stream = self._size, self._ranks[here], self._streams[here]
        self._devices[here].set_current()
        base = int(self._buffers[here].handle)
        size = pattern.ELEMENT * (count if collective == Collective.ALL_REDUCE else count * ranks)
        if collective == Collective.ALL_GATHER:
            self._view(base, size, of=self._buffers[here]).fill(pattern.POISON, stream=stream)
            base, size = base + rank * count * pattern.ELEMENT, count * pattern.ELEMENT
        piece = pattern.values(rank + 1, start=0, stop=STAGING // pattern.ELEMENT)
        host = self._pinned()
        ctypes.memmove(int(host.handle), piece, STAGING)
        for offset in range(0, size, STAGING):
            part = min(STAGING, size - offset)
            source = self._view(int(host.handle), part, of=host)
            source.copy_to(self._view(base + offset, part, of=self._buffers[here]), stream=stream)
        stream.sync()

    def _compare(self, collective: str, here: int, count: int) -> int:
        self._devices[here].set_current()
        ranks, rank = self._size, self._ranks[here]
        stream, host = self._streams[here], self._pinned()
        base, size = int(self._buffers[here].handle), count * pattern.ELEMENT
        if collective == Collective.REDUCE_SCATTER:
            base += rank * size
        elif collective == Collective.ALL_GATHER:
            size *= ranks
        wrong = 0
        for low, high in pattern.windows(size):
            for start in range(low, high, STAGING):
                stop = min(start + STAGING, high)
                target = self._view(int(host.handle), stop - start, of=host)
                self._view(base + start, stop - start, of=self._buffers[here]).copy_to(target, stream=stream)
                stream.sync()
                first, last = start // pattern.ELEMENT, stop // pattern.ELEMENT
                correct = pattern.expected(
                    collective, ranks=ranks, rank=rank, count=count, start=first, stop=last
                )
                wrong += pattern.wrong(ctypes.string_at(int(host.handle), stop - start), correct)
        return wrong
