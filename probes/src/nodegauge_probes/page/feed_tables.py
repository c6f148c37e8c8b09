"""The page's blocks about a window of the feed probe: each GPU, and what the machine gave it."""

from __future__ import annotations

from nodegauge_contract import FeedGroup, FeedHost, FeedResult, Num, Unavailable
from nodegauge_probes.page.format import NOTHING, Cells, columns, paragraph, shown


def blocks(feed: FeedResult) -> list[str]:
    """The blocks of a window; empty ones are dropped by `page`."""
    return [_gpus(feed), _host(feed.host), _disks(feed), _groups(feed)]


def _gpus(feed: FeedResult) -> str:
    rows: list[Cells] = [
        (
            "GPU",
            "Busy",
            "Idle",
            "Full",
            "Swings",
            "Memory",
            "Power",
            "of limit",
            "SM clock",
            "Slowed",
            "PCIe in",
            "of link",
            "Processes",
            "NUMA",
        )
    ]
    for gpu in feed.gpus:
        rows.append(
            (
                str(gpu.index),
                _number(gpu.utilization, "%"),
                _percent(gpu.idle_share),
                _percent(gpu.full_share),
                str(shown(gpu.swings)),
                _number(gpu.memory_utilization, "%"),
                _number(gpu.power_mw, "W", scale=1000),
                _part(gpu.power_mw, gpu.limit_mw),
                _number(gpu.sm_mhz, "MHz"),
                _percent(gpu.slowed_share),
                _number(gpu.pcie_rx_mbps, "MB/s"),
                _part(gpu.pcie_rx_mbps, gpu.pcie_link_mbps),
                str(shown(gpu.processes)),
                str(shown(gpu.numa)),
            )
        )
    head = paragraph(f"A window of {shown(feed.seconds)} s")
    return f"{head}\n{columns(rows, right=set(range(1, 14)))}" if feed.gpus else head


def _host(host: FeedHost) -> str:
    pressure = host.pressure
    busy, waiting = _percent(host.cpu_busy), _percent(host.cpu_iowait)
    cpus = f"CPUs: {shown(host.cpus)}, {busy} busy, {waiting} waiting for I/O"
    stalls = ", ".join(
        f"{name} {_percent(value)}"
        for name, value in (("CPU", pressure.cpu), ("I/O", pressure.io), ("memory", pressure.memory))
    )
    free, total, cached = (
        _number(mib, "GiB", scale=1024) for mib in (host.available_mib, host.memory_mib, host.cached_mib)
    )
    again = f"{shown(host.refaults)} pages/s read again"
    memory = f"Memory: {free} of {total} available, {cached} of cache, {again}"
    return "\n".join(paragraph(line) for line in (cpus, f"Stalled: {stalls}", memory))


def _disks(feed: FeedResult) -> str:
    rows: list[Cells] = [("Disk or port", "In", "Out", "Busy", "Wait")]
    for disk in feed.disks:
        rows.append(
            (
                disk.name,
                _number(disk.read_mbps, "MB/s"),
                _number(disk.write_mbps, "MB/s"),
                _percent(disk.busy_share),
                _number(disk.read_wait_ms, "ms"),
            )
        )
    for port in feed.ports:
        rate = _number(port.rate_gbps, "Gb/s")
        rows.append(
            (f"{port.name} ({rate})", _number(port.rx_mbps, "MB/s"), _number(port.tx_mbps, "MB/s"), "", "")
        )
    return columns(rows, right={1, 2, 3, 4}) if len(rows) > 1 else ""


def _groups(feed: FeedResult) -> str:
    if not feed.groups:
        return paragraph(f"Pods: {feed.groups_unread}") if feed.groups_unread else ""
    rows: list[Cells] = [("Pod", "Cores", "Quota", "Stopped", "CPUs", "Stalled", "Memory", "Read again")]
    return columns([*rows, *map(_group, feed.groups)], right=set(range(1, 8)))


def _group(group: FeedGroup) -> Cells:
    return (
        group.pod_uid,
        str(shown(group.cpu_cores)),
        str(shown(group.cpu_quota)),
        _percent(group.throttled_share),
        str(shown(group.cpuset)),
        _percent(group.pressure.cpu),
        _number(group.memory_mib, "GiB", scale=1024),
        str(shown(group.refaults)),
    )


def _number(value: Num, unit: str, *, scale: float = 1.0) -> str:
    if isinstance(value, Unavailable):
        return NOTHING
    number = value / scale
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def _percent(value: Num) -> str:
    return NOTHING if isinstance(value, Unavailable) else f"{100 * value:.0f} %"


def _part(value: Num, whole: Num) -> str:
    if isinstance(value, Unavailable) or isinstance(whole, Unavailable) or not whole:
        return NOTHING
    return f"{100 * value / whole:.0f} %"
