"""RDMA devices in /sys/class/infiniband: their distances, and the state and error counters of their ports.

Readable without privilege, for InfiniBand and for RoCE.  A dead adapter answers late, so ports are read in a
thread of their own during the sampling window (`health`).  Source: the kernel's
Documentation/ABI/stable/sysfs-class-infiniband;
`hw_counters` are the vendor's (mlx5: drivers/infiniband/hw/mlx5/counters.c).  The network interface of a port
(`carrier_changes`) belongs to the machine's network namespace, which a pod does not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from nodegauge_contract import Int, Nics, Num, Port, Text, Unavailable
from nodegauge_contract.model import MAX_NICS, MAX_PORTS
from nodegauge_probes.host.kernel import listing, natural, text_of
from nodegauge_probes.host.pci import Location, distance, locate, numa_node, numa_nodes

FASTEST_GBPS = 1_000_000
"""No port comes close; a larger rate is broken, and JSON cannot express infinity."""


def nics(root: Path, gpus: list[Location | Unavailable]) -> Nics:
    """The RDMA devices in the order in which their drivers registered them, with all distances."""
    names = _device_names(root)[:MAX_NICS]
    locations = [locate(root / "class/infiniband" / name / "device") for name in names]
    nodes = numa_nodes(root)
    return Nics(
        names=names,
        pci=[each if isinstance(each, Unavailable) else each.address for each in locations],
        to_gpu=[[distance(nic, gpu, nodes=nodes) for gpu in gpus] for nic in locations],
        to_nic=[
            ["X" if i == j else distance(nic, other, nodes=nodes) for j, other in enumerate(locations)]
            for i, nic in enumerate(locations)
        ],
        numa=[numa_node(nic) for nic in locations],
    )


def _device_names(root: Path) -> list[str]:
    """Registration order is the number of the device's uverbs file; devices without one follow by name."""
    order = {ibdev: number for number, ibdev in _uverbs(root)}
    names = listing(root / "class/infiniband")
    return sorted((n[:128] for n in names), key=lambda n: (order.get(n, len(order) + 10**6), natural(n)))


def _uverbs(root: Path) -> list[tuple[int, str]]:
    devices = []
    for name in listing(root / "class/infiniband_verbs"):
        number = re.fullmatch(r"uverbs(\d+)", name)
        if number is None:
            continue
        ibdev = text_of(root / "class/infiniband_verbs" / name / "ibdev")
        if isinstance(ibdev, str):
            devices.append((int(number[1]), ibdev))
    return devices


def ports(root: Path, names: list[str], add: Callable[[Port], None]) -> None:
    """Call `add` with every port of the devices `names`, in their order, up to the document's limit."""
    numbered = [
        (nic, number)
        for nic, name in enumerate(names)
        for number in sorted(int(p) for p in listing(_ports(root, name)) if p.isdecimal() and int(p) < 256)
    ]
    for nic, number in numbered[:MAX_PORTS]:
        add(_port(_ports(root, names[nic]) / str(number), nic=nic, number=number))


def _ports(root: Path, name: str) -> Path:
    return root / "class/infiniband" / name / "ports"


def _port(folder: Path, *, nic: int, number: int) -> Port:
    return Port(
        nic=nic,
        port=number,
        state=_state(folder / "state"),
        physical=_state(folder / "phys_state"),
        rate_gbps=_rate(folder / "rate"),
        link_layer=text_of(folder / "link_layer"),
        link_downed=_count(folder / "counters/link_downed"),
        symbol_errors=_count(folder / "counters/symbol_error"),
        receive_errors=_count(folder / "counters/port_rcv_errors"),
        integrity_errors=_count(folder / "counters/local_link_integrity_errors"),
        overruns=_count(folder / "counters/excessive_buffer_overrun_errors"),
        recoveries=_count(folder / "counters/link_error_recovery"),
        discards=_count(folder / "counters/port_xmit_discards"),
        ack_timeouts=_count(folder / "hw_counters/local_ack_timeout_err"),
        receiver_not_ready=_count(folder / "hw_counters/rnr_nak_retry_err"),
    )


def _state(path: Path) -> Text:
    """`ACTIVE` of the kernel's `4: ACTIVE`."""
    text = text_of(path)
    return text if isinstance(text, Unavailable) else text.rpartition(":")[2].strip()


def _rate(path: Path) -> Num:
    """Gb/s from `200 Gb/sec (4X HDR)`, as an integer if possible."""
    text = text_of(path)
    if isinstance(text, Unavailable):
        return text
    try:
        rate = float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return Unavailable(f"not a rate: {text[:40]}")
    if not 0 <= rate <= FASTEST_GBPS:  # also "nan" and "inf", which are floats to Python
        return Unavailable(f"not a rate: {text[:40]}")
    return int(rate) if rate.is_integer() else rate


def _count(path: Path) -> Int:
    text = text_of(path)
    if isinstance(text, Unavailable):
        return text
    return min(int(text), 2**63 - 1) if text.isdecimal() else Unavailable("not a number")
