"""What a judgement leaves behind for the next one: per GPU a `GpuMemory`, and where the node's clock stood.

A report keeps it as text, so it must be small (`LIMIT`) and must survive being cut, edited or written by
another version: what cannot be read counts as nothing, and what does not fit is forgotten rather than cut, in
a fixed order (`trimmed`).  GPUs are keyed by the start of their UUID: NVML's index may change at a reboot.  A
swapped GPU brings a new UUID and starts anew.  Deleting the node's NodeReport forgets everything.

It does not decide what is worth remembering: `remember` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from nodegauge_judge.history.gpu_history import Counts, GpuMemory, PortMemory

LIMIT = 2048
"""Bytes of JSON that a report keeps for this (design: 2 KiB); 16 GPUs need about 1.8 KB."""
SHORT = 8
"""Characters of a UUID that tell GPUs of one node apart; where they do not, the whole UUID is the key."""
_PREFIX = "GPU-"
_Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Written(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The form in a report."""

    boot: str = ""
    driver: str = ""
    at: _Whole | None = None
    gpus: dict[str, str] = {}
    ports: str = ""


class History(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Raw inputs kept for the next judgement.

    `boot` and `driver`: of the last clean reading, `boottime_ms` its CLOCK_BOOTTIME: the counters of `gpus`
    and `ports` are of that moment.  The keys of `gpus` (see `keys`) are also the set of GPUs that the node is
    known to have.  `ports`: NIC ports that have been up, by `device/port`.
    """

    boot: str = ""
    driver: str = ""
    boottime_ms: int | None = None
    gpus: dict[str, GpuMemory] = {}
    ports: dict[str, PortMemory] = {}

    def encode(self) -> str:
        """JSON of at most `LIMIT` bytes."""
        return self.trimmed()._written().decode()

    @classmethod
    def decode(cls, text: str) -> History | None:
        """The history in `text`; None when there is none or it cannot be read, which costs only memory."""
        try:
            found = msgspec.json.decode(text, type=_Written) if text else None
            gpus = {key: GpuMemory.unpacked(packed) for key, packed in found.gpus.items()} if found else {}
            ports = dict(_ports(found.ports)) if found else {}
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            return None
        if found is None:
            return None
        return cls(boot=found.boot, driver=found.driver, boottime_ms=found.at, gpus=gpus, ports=ports)

    def trimmed(self) -> History:
        """As much of it as a report keeps.  Forgotten first are ports, then counters, then what was bad and
        warm, last the links."""
        return next((history for history in self._less() if len(history._written()) <= LIMIT), History())

    def _less(self) -> Iterator[History]:
        yield self
        without = replace(self, ports={})
        yield without
        counts = {key: replace(gpu, counts=Counts(), idle_dw=None) for key, gpu in self.gpus.items()}
        yield replace(without, boottime_ms=None, gpus=counts)
        links = {key: GpuMemory(links=gpu.links) for key, gpu in self.gpus.items()}
        yield replace(without, boottime_ms=None, gpus=links)
        yield History(boot=self.boot, driver=self.driver)

    def _written(self) -> bytes:
        packed = {key: gpu.packed() for key, gpu in self.gpus.items()}
        ports = ",".join(f"{key} {port.packed()}" for key, port in self.ports.items() if "," not in key)
        return msgspec.json.encode(
            _Written(boot=self.boot, driver=self.driver, at=self.boottime_ms, gpus=packed, ports=ports)
        )


def _ports(text: str) -> Iterator[tuple[str, PortMemory]]:
    """Ports as `_written` leaves them: `mlx5_0/1 bp0.-0,mlx5_1/1 bp0.-0`; ValueError for anything else."""
    for port in text.split(",") if text else ():
        key, packed = port.rsplit(" ", 1)
        yield key, PortMemory.unpacked(packed)


def keys(uuids: Iterable[str]) -> Mapping[str, str]:
    """The key in `History.gpus` of each of a node's UUIDs."""
    every = set(uuids)
    short = {uuid: uuid.removeprefix(_PREFIX)[:SHORT] for uuid in every}
    return short if len(set(short.values())) == len(every) else {uuid: uuid for uuid in every}


def uuid_start(key: str) -> str:
    """The UUID, or the start of it, that a key stands for."""
    return key if key.startswith(_PREFIX) else _PREFIX + key
