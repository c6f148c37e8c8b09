"""Ports of RDMA devices: whether they are up, how fast, and what went wrong on them since they were reset.

All of it stands in /sys/class/infiniband without privilege, for InfiniBand and for RoCE.  Counters stay
counters: whoever judges looks at their growth.  A dead adapter answers late, so this runs beside the sampling
window (`aside`).  Source: Documentation/ABI/stable/sysfs-class-infiniband of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nodegauge_contract import Int, Num, Port, Text, Unavailable
from nodegauge_contract.model import MAX_PORTS
from nodegauge_probes.host.sysfs import listing, text_of

COUNTERS = {
    "link_downed": "link_downed",
    "symbol_errors": "symbol_error",
    "receive_errors": "port_rcv_errors",
}
FASTEST_GBPS = 1_000_000
"""No port is near it; what says more is broken, and JSON has no words for infinity."""


def ports(root: Path, names: list[str], found: Callable[[Port], None]) -> None:
    """Tell `found` every port of the devices `names`, in their order, at most as many as a document holds."""
    places = [
        (nic, number)
        for nic, name in enumerate(names)
        for number in sorted(int(p) for p in listing(_ports(root, name)) if p.isdecimal() and int(p) < 256)
    ]
    for nic, number in places[:MAX_PORTS]:
        found(_port(_ports(root, names[nic]) / str(number), nic=nic, number=number))


def _ports(root: Path, name: str) -> Path:
    return root / "class/infiniband" / name / "ports"


def _port(folder: Path, *, nic: int, number: int) -> Port:
    return Port(
        nic=nic,
        port=number,
        state=_word(folder / "state"),
        physical=_word(folder / "phys_state"),
        rate_gbps=_rate(folder / "rate"),
        link_layer=text_of(folder / "link_layer"),
        **{name: _count(folder / "counters" / file) for name, file in COUNTERS.items()},
    )


def _word(path: Path) -> Text:
    """The kernel's word behind its number: `4: ACTIVE`."""
    text = text_of(path)
    return text if isinstance(text, Unavailable) else text.rpartition(":")[2].strip()


def _rate(path: Path) -> Num:
    """Gb/s from `200 Gb/sec (4X HDR)`, a whole number where it is one."""
    text = text_of(path)
    if isinstance(text, Unavailable):
        return text
    try:
        rate = float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return Unavailable(f"no rate: {text[:40]}")
    if not 0 <= rate <= FASTEST_GBPS:  # also no number at all: "nan" and "inf" are floats to Python
        return Unavailable(f"no rate: {text[:40]}")
    return int(rate) if rate.is_integer() else rate


def _count(path: Path) -> Int:
    text = text_of(path)
    if isinstance(text, Unavailable):
        return text
    return min(int(text), 2**63 - 1) if text.isdecimal() else Unavailable("no number")
