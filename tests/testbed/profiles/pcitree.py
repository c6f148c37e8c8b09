"""The PCI functions of a machine as a tree, and how far apart two of them are, derived as nvidia-smi does it:
tests compare that with the recorded matrices."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile

from testbed.profiles.hostmodel import Host, PciKind

SHORT = re.compile(r"([0-9a-f]{2})(?::([0-9a-f]{2})(?:\.([0-7]))?)?")
LINE = re.compile(r"^( *)([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (\S+)$")


class TreeError(ValueError):
    """A tree that cannot be: the message quotes the line."""


class Distance(IntEnum):
    """nvmlGpuTopologyLevel_t, named with nvidia-smi's letters."""

    PIX = 10
    PXB = 20
    PHB = 30
    NODE = 40
    SYS = 50


@dataclass(frozen=True, kw_only=True)
class PciFunction:
    """A PCI function in its place: the host bridge (`0000:07`), and the bridges above it from the top."""

    address: str
    kind: PciKind
    root: str
    numa: int
    bridges: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/".join((f"pci{self.root}", *self.bridges, self.address))


def long_address(text: str, domain: str) -> str:
    """Of `0f`, `09:01` or `0c:00.1` in a domain: 0000:0f:00.0, 0000:09:01.0, 0000:0c:00.1; others stay."""
    match = SHORT.fullmatch(text)
    return f"{domain}:{match[1]}:{match[2] or '00'}.{match[3] or 0}" if match else text


def shaped(shape: str, at: str) -> str:
    """The functions of a host bridge (`PciRoot`) from their kinds, indented, and their addresses in order."""
    first, *others = at.split()
    domain = long_address(first, "0000")[:4]
    kinds, addresses = shape.splitlines(), [long_address(one, domain) for one in (first, *others)]
    if len(kinds) != len(addresses):
        raise TreeError(f"{at!r} has {len(addresses)} addresses for the {len(kinds)} functions of its shape")
    each = zip(kinds, addresses, strict=True)
    return "".join(f"{kind.replace(kind.strip(), '')}{at} {kind.strip()}\n" for kind, at in each)


def functions(host: Host) -> dict[str, PciFunction]:
    result: dict[str, PciFunction] = {}
    for root in host.roots:
        above: list[str] = []
        bus = root.functions[:7]
        for line in root.functions.splitlines():
            if not (match := LINE.match(line)):
                raise TreeError(f"{line!r} is not 'ADDRESS KIND'")
            depth, address, kind = len(match[1]) // 2, match[2], match[3]
            if len(match[1]) % 2 or depth > len(above):
                raise TreeError(f"{line!r} is indented too far")
            if kind not in host.kinds:
                raise TreeError(f"{line!r}: kinds has no {kind!r}")
            if address in result:
                raise TreeError(f"{line!r}: there is such a function already")
            above[depth:] = [address]
            result[address] = PciFunction(
                address=address, kind=host.kinds[kind], root=bus, numa=root.numa, bridges=tuple(above[:depth])
            )
    return result


def distance(one: PciFunction, other: PciFunction) -> Distance:
    """Other host bridges: NODE within a NUMA node, SYS beyond.  The same one, with no bridge in common: PHB.
    With a bridge in common: PIX where at most one bridge lies between it and either of them (the ports of one
    switch), PXB where more do.  Source: the legend of `nvidia-smi topo -m` and the comments on
    nvmlGpuTopologyLevel_t."""
    if one.root != other.root:
        return Distance.NODE if one.numa == other.numa else Distance.SYS
    both = zip(one.bridges, other.bridges, strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], both)))
    if not shared:
        return Distance.PHB
    below = max(len(one.bridges), len(other.bridges)) - shared
    return Distance.PIX if below <= 1 else Distance.PXB


def cpu_numbers(listing: str) -> Iterator[int]:
    for part in listing.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
