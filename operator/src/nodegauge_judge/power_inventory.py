"""Which cables feed each GPU's power sockets, as a person wrote it down, and what they carry.

No driver can tell: NVML knows a card's limit, not its cables.  Without an inventory nothing is judged.

Sources: Intel's ATX 3.0 design guide (336521), table 3-5: 75 W (2x3), 150 W (2x4) and 600 W (12VHPWR)
sustained per connector.  PCI Express CEM: 75 W from a x16 slot; the sense pins of 12VHPWR and 12V-2x6 state
150, 300, 450 or 600 W.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract import Gpu

SENSED = (150, 300, 450, 600)
"""Watts that the sense pins of a 12-pin socket can state (PCI Express CEM 5.1)."""
ADAPTER_PLUG = 150
"""Watts of each plug of an adapter to a 12-pin socket: they are 8-pin."""
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Connector(StrEnum):
    """The form of a power socket on a graphics card.  The CPU's 8-pin (EPS) on server cards is missing: no
    published rating of it as a card's connector is known to this project."""

    PIN6 = "6-pin"
    PIN8 = "8-pin"
    PIN12 = "12-pin"
    VHPWR = "12VHPWR"
    V2X6 = "12V-2x6"


RATED = {Connector.PIN6: 75, Connector.PIN8: 150}
"""Watts of connectors that have one rating."""


class PowerSocket(Struct, frozen=True, rename="camel", kw_only=True):
    """One power socket of a GPU.  `watts`: what the cable's sense pins state, for 12-pin sockets only.

    `cables`: names of the cables that feed it; empty for one of its own.  Several, or one twice, only for an
    adapter from 8-pin plugs to a 12-pin socket: one name per plug.
    """

    connector: Connector
    watts: Annotated[int, Meta(ge=0, le=600)] = 0
    cables: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...], Meta(max_length=8)] = ()

    def __post_init__(self) -> None:
        rated = RATED.get(self.connector)
        if rated is None and self.watts not in SENSED:
            raise ValueError(f"watts must be one of 150, 300, 450 and 600 for {self.connector}: set it")
        if rated is not None and self.watts:
            raise ValueError(
                f"watts applies to 12-pin sockets only, {self.connector} is {rated} W: remove it"
            )
        if rated is not None and len(self.cables) > 1:
            raise ValueError(f"cables must name one cable for {self.connector}: remove the others")

    @property
    def most(self) -> int:
        """Watts that the socket may take."""
        return RATED.get(self.connector, self.watts)


class GpuPower(Struct, frozen=True, rename="camel", kw_only=True):
    """What feeds one GPU, or each GPU of a model.

    `gpu`: index ("0"), UUID ("GPU-..."), PCI address ("0000:01:00.0"), or a case-insensitive glob over NVML's
    product name ("*RTX 4090*").  Names of cables are per node; under a model, per GPU.
    """

    gpu: Annotated[str, Meta(min_length=1, max_length=128)]
    slot_watts: Annotated[int, Meta(ge=0, le=75)] = 75
    sockets: Annotated[tuple[PowerSocket, ...], Meta(max_length=8)] = ()

    def __post_init__(self) -> None:
        if ":" in self.gpu and _address(self.gpu) is None:
            raise ValueError(f"gpu {self.gpu!r} is no PCI address: write one such as '0000:01:00.0'")

    @property
    def is_model(self) -> bool:
        """Whether it is about every GPU of a model."""
        return not (self.gpu.isdecimal() or self.gpu.startswith("GPU-") or ":" in self.gpu)

    def applies(self, gpu: Gpu) -> bool | None:
        """Whether this entry is about the GPU; None if what it compares could not be read."""
        if self.gpu.isdecimal():
            return gpu.index == int(self.gpu)
        if self.gpu.startswith("GPU-"):
            return self.gpu.lower() == gpu.uuid.lower() if isinstance(gpu.uuid, str) else None
        if ":" in self.gpu:
            return _address(self.gpu) == _address(gpu.pci) if isinstance(gpu.pci, str) else None
        return fnmatchcase(gpu.name.lower(), self.gpu.lower()) if isinstance(gpu.name, str) else None


class PowerInventory(Struct, frozen=True, rename="camel", kw_only=True):
    """`supply_watts`: rated watts of a workstation's power supply; 0 if it is not given.  `other_watts`: what
    the machine draws at most besides its GPUs."""

    gpus: Annotated[tuple[GpuPower, ...], Meta(max_length=64)] = ()
    supply_watts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    other_watts: Annotated[int, Meta(ge=0, le=100_000)] = 0

    def __post_init__(self) -> None:
        if bool(self.supply_watts) != bool(self.other_watts):
            raise ValueError("supplyWatts and otherWatts belong together: set both, or remove both")

    @classmethod
    def of_file(cls, document: Any) -> PowerInventory:
        """The inventory in a file of its own; `ValueError` names the field.  A person typed it, so an unknown
        name is an error."""
        try:
            inventory = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            hint = ": write it in quotes" if "Expected `str`" in str(error) else ""
            raise ValueError(str(error).replace("`$.", "`") + hint) from None
        for path in _unknown(document, msgspec.to_builtins(inventory), ""):
            raise ValueError(f"there is no field {path}: remove it, or correct its name")
        return inventory


class Feed(Struct, frozen=True, kw_only=True):
    """What feeds one GPU: `watts` in all, `parts` in words, and by name the `shared` cables, each with the
    positions of the GPUs whose plugs it feeds, one per plug."""

    watts: int
    parts: str
    shared: dict[str, tuple[int, ...]]


Key = tuple[int, str]


def entry_of(gpu: Gpu, entries: Sequence[GpuPower]) -> int | None:
    """The number of the first entry that applies; None without one, or if one before it may apply."""
    for number, entry in enumerate(entries):
        applies = entry.applies(gpu)
        if applies is not False:
            return number if applies else None
    return None


def feeds(gpus: Sequence[Gpu], inventory: PowerInventory) -> dict[int, Feed]:
    """What feeds each GPU, by its position; a GPU without an entry is left out.

    A cable carries what its one plug at the supply carries, which is taken as the largest of its plugs at the
    cards; each of them gets an equal share.
    """
    fed = {
        position: inventory.gpus[number]
        for position, gpu in enumerate(gpus)
        if (number := entry_of(gpu, inventory.gpus)) is not None
    }
    plugs = [plug for position, entry in fed.items() for plug in _plugs(position, entry)]
    count = Counter(cable for _, cable, _ in plugs)
    carries: dict[Key, int] = {}
    for _, cable, watts in plugs:
        carries[cable] = max(watts, carries.get(cable, 0))
    result = {}
    for position, entry in fed.items():
        sockets = list(_sockets(position, entry))
        taken = [
            min(socket.most, sum(carries[cable] / count[cable] for cable in cables))
            for socket, cables in zip(entry.sockets, sockets, strict=True)
        ]
        texts = [f"{entry.sockets[n].connector} {watts:.0f}" for n, watts in enumerate(taken)]
        shared = {cable for cables in sockets for cable in cables if count[cable] > 1}
        result[position] = Feed(
            watts=int(entry.slot_watts + sum(taken)),
            parts=", ".join([f"slot {entry.slot_watts}", *texts]),
            shared={
                name: tuple(other for other, cable, _ in plugs if cable == (scope, name))
                for scope, name in sorted(shared)
            },
        )
    return result


def _sockets(position: int, entry: GpuPower) -> Iterator[list[Key]]:
    """The cables of each socket: named ones are the node's or, under a model, the GPU's own."""
    scope = position if entry.is_model else -1
    for number, socket in enumerate(entry.sockets):
        # A name has at least one character, so nobody's cable has the name of an unnamed one.
        yield [(scope, name) for name in socket.cables] or [(position * 8 + number, "")]


def _plugs(position: int, entry: GpuPower) -> Iterator[tuple[int, Key, int]]:
    for socket, cables in zip(entry.sockets, _sockets(position, entry), strict=True):
        for cable in cables:
            yield position, cable, socket.most if len(cables) == 1 else ADAPTER_PLUG


def _address(text: str) -> str | None:
    """A PCI address in sysfs form, also out of `00000000:3B:00.0` or `3b:00.0`; None if it is none."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}" if match else None


def _unknown(given: Any, known: Any, path: str) -> Iterator[str]:
    """Paths of the fields that were given and not read."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            here = f"{path}.{name}".lstrip(".")
            yield from _unknown(value, known[name], here) if name in known else (here,)
    elif isinstance(given, list):
        for number, (value, read) in enumerate(zip(given, known, strict=True)):
            yield from _unknown(value, read, f"{path}[{number}]")
