"""Disks, network file systems, memory and PCIe as causes: data does not come fast enough.

Memory that is too small for the page cache makes disks busy, so what is read again counts as memory.
"""

from __future__ import annotations

from nodegauge_contract.feed import FeedDisk, FeedGroup, FeedPort
from nodegauge_judge.case import clip
from nodegauge_judge.feed.case import PAGE_MB, FeedCase, amount, most, share
from nodegauge_judge.feed.causes import FeedCause, FeedLimits, Stall, score
from nodegauge_judge.model import Scalar


def io_stall(case: FeedCase, limits: FeedLimits) -> tuple[float, str] | None:
    """How clearly tasks waited for I/O, and in words; None if they did not, or nobody knows."""
    pressure = share(case.host.pressure.io)
    groups = most([share(group.pressure.io) for group in case.groups])
    if pressure is not None or groups is not None:
        worst = max(pressure or 0.0, groups or 0.0)
        reached = score(worst, limits.io_pressure)
        return None if reached is None else (reached, f"tasks waited for I/O in {worst:.0%} of the time")
    cpus, waiting = amount(case.host.cpus), share(case.host.cpu_iowait)
    waited = most([amount(case.host.blocked), None if waiting is None or cpus is None else waiting * cpus])
    reached = score(waited, limits.io_waiting)
    return None if reached is None else (reached, f"{waited:.1f} tasks waited for I/O at any time")


def busiest_disk(case: FeedCase) -> tuple[float, FeedDisk] | None:
    """The disk with the largest busy share; None if none was read."""
    read = [(busy, disk) for disk in case.disks if (busy := share(disk.busy_share)) is not None]
    return max(read, key=lambda pair: pair[0], default=None)


def storage(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """Tasks wait for a local disk that is busy."""
    stalled, busiest = io_stall(case, limits), busiest_disk(case)
    if stalled is None or _reads_network(case, limits):
        return None
    reached, message = stalled
    if busiest is None:
        return (
            None if amount(case.host.network_mounts) else _storage(reached * limits.unseen_disk, message, {})
        )
    busy, disk = busiest
    filled = score(busy, limits.disk_busy)
    if filled is None:
        return None
    read, wrote = amount(disk.read_mbps) or 0.0, amount(disk.write_mbps) or 0.0
    message += (
        f", and {clip(disk.name)} was busy in {busy:.0%} of it ({read:.0f} MB/s read, {wrote:.0f} written)"
    )
    evidence: dict[str, Scalar] = {"disk": clip(disk.name), "disk_busy_share": round(busy, 3)}
    evidence |= {"read_mbps": round(read, 1), "write_mbps": round(wrote, 1)}
    return _storage((reached + filled) / 2, message, evidence)


def _storage(reached: float, message: str, evidence: dict[str, Scalar]) -> Stall:
    return Stall(
        cause=FeedCause.STORAGE,
        score=reached,
        message=message,
        advice=(
            "keep the data set on a faster local disk (NVMe) or in memory, pack small files into large ones "
            "(WebDataset, tar, LMDB, Parquet), read ahead (`prefetch_factor`, more loader workers), and "
            "write checkpoints in the background"
        ),
        evidence=evidence,
    )


def network_storage(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """Tasks wait for I/O and no local disk is busy, or a port that only receives is at its rate."""
    stalled, port = io_stall(case, limits), _full_port(case, limits)
    busiest = busiest_disk(case)
    free = busiest is not None and score(busiest[0], limits.disk_busy) is None
    read = amount(case.host.network_read_mbps)
    seen = read is not None and read >= limits.network_mbps
    evidence: dict[str, Scalar] = {"network_read_mbps": round(read, 1)} if seen and read is not None else {}
    parts, reached = [], 0.0
    if stalled is not None and (free or _reads_network(case, limits)):
        reached = stalled[0] * (1.0 if seen or port else limits.unseen_mount)
        parts = [stalled[1] + (" while no local disk was busy" if free else "")]
    if port is not None:
        reached = max(reached, port[0])
        parts.append(port[1])
    if not parts:
        return None
    parts += [f"network file systems brought {read:.0f} MB/s"] if evidence else []
    return Stall(
        cause=FeedCause.NETWORK,
        score=reached,
        message=", and ".join(parts),
        advice=(
            "copy the data set to a local disk before training or cache it there, pack small files into "
            "large ones, read ahead with more loader workers, and ask for the server's and the network's rate"
        ),
        evidence=evidence,
    )


def _reads_network(case: FeedCase, limits: FeedLimits) -> bool:
    """Whether more comes from network file systems than from local disks."""
    read, local = (
        amount(case.host.network_read_mbps),
        sum(amount(disk.read_mbps) or 0.0 for disk in case.disks),
    )
    return read is not None and read >= limits.network_mbps and read > local


def _full_port(case: FeedCase, limits: FeedLimits) -> tuple[float, str] | None:
    """The fullest port that receives much more than it sends."""
    full = []
    for port in case.ports:
        used, sent = port_share(port.rx_mbps, port), amount(port.tx_mbps) or 0.0
        reached = score(used, limits.port_full)
        if reached is not None and (amount(port.rx_mbps) or 0.0) >= limits.reading_ratio * sent:
            full.append((reached, f"{clip(port.name)} received {used:.0%} of what it can"))
    return max(full, default=None)


def port_share(mbps: object, port: FeedPort) -> float | None:
    """A port's MB/s as a share of its rate; None if either is unread."""
    carried, rate = amount(mbps), amount(port.rate_gbps)
    return carried / (rate * 125) if carried is not None and rate else None


def memory(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """Memory is too small: tasks wait for it, swap, or read again what the page cache could not keep."""
    pressure = most([share(case.host.pressure.memory), *(share(g.pressure.memory) for g in case.groups)])
    swap, again = amount(case.host.swap_mbps), _read_again(case, limits)
    stalls: list[tuple[float, str]] = []
    if (reached := score(pressure, limits.memory_pressure)) is not None:
        stalls.append((reached, f"tasks waited for memory in {pressure:.0%} of the time"))
    if (reached := score(swap, limits.swap_mbps)) is not None:
        stalls.append((reached, f"{swap:.0f} MB/s were swapped"))
    if again is not None:
        stalls.append(again)
    if not stalls:
        return None
    limit = [case.name_of(group) for group in case.groups if _at_its_limit(group)]
    evidence: dict[str, Scalar] = {} if pressure is None else {"memory_pressure": round(pressure, 3)}
    return Stall(
        cause=FeedCause.MEMORY,
        score=max(reached for reached, _ in stalls),
        message=", ".join(message for _, message in sorted(stalls, reverse=True))
        + (f"; {limit[0]} is at its memory limit" if limit else ""),
        advice=(
            ("raise `limits.memory` of the pod (its page cache counts too)" if limit else "free host memory")
            + ", use fewer loader workers or a smaller `prefetch_factor`, do not copy the data set into each "
            "worker, or take a node with more memory for each GPU"
        ),
        evidence=evidence,
        explains_reads=again is not None or score(swap, limits.swap_mbps) is not None,
    )


def _read_again(case: FeedCase, limits: FeedLimits) -> tuple[float, str] | None:
    """How much of what was read had been in the page cache before; None if little, or nobody knows."""
    refaults = most([amount(case.host.refaults), *(amount(group.refaults) for group in case.groups)])
    if refaults is None or refaults < limits.refault_rate:
        return None
    again = refaults * PAGE_MB
    read = sum(amount(disk.read_mbps) or 0.0 for disk in case.disks)
    read += amount(case.host.network_read_mbps) or 0.0
    part = min(1.0, again / read) if read > 0 else 1.0
    reached = score(part, limits.refault_part)
    if reached is None:
        return None
    return (
        reached,
        f"{again:.0f} MB/s were read again that the page cache had dropped ({part:.0%} of all reads)",
    )


def _at_its_limit(group: FeedGroup) -> bool:
    used, limit = amount(group.memory_mib), amount(group.memory_limit_mib)
    return used is not None and bool(limit) and limit is not None and used >= 0.95 * limit


def pcie(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """A GPU's link carries as much as it can."""
    worst: tuple[float, int, str] | None = None
    for gpu in case.feed.gpus:
        link = amount(gpu.pcie_link_mbps)
        for mbps, way in ((amount(gpu.pcie_rx_mbps), "into"), (amount(gpu.pcie_tx_mbps), "out of")):
            if link and mbps is not None and (worst is None or mbps / link > worst[0]):
                worst = (mbps / link, gpu.index, way)
    reached = score(None if worst is None else worst[0], limits.pcie)
    if worst is None or reached is None:
        return None
    used, index, way = worst
    return Stall(
        cause=FeedCause.PCIE,
        score=reached,
        message=f"the PCIe link {way} GPU {index} carried {used:.0%} of what it can",
        advice=(
            "keep data and states on the GPU, move less (smaller types, decode on the GPU, larger batches or "
            "gradient accumulation between offloads), use `pin_memory`, and pin the job to the GPU's NUMA "
            "node (kubelet: `topologyManagerPolicy: single-numa-node`); compare the link's width with "
            "`nvidia-smi -q -d PCIE`"
        ),
        evidence={"pcie_share": round(used, 3), "gpu": index},
    )
