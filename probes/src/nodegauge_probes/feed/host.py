"""What the machine's counters in /proc and /sys say of one window: CPUs, pressure, memory, disks, network.

`read` takes the counters now, `over` subtracts two readings.  All of it is the machine's also in a container,
but for network interfaces and mounts, which are the container's own: RDMA ports are seen, a pod's NFS is not.
Sources: Documentation/filesystems/proc.rst (stat, meminfo, vmstat, mountstats), Documentation/admin-guide/
iostats.rst (diskstats, sectors of 512 bytes), rdma-core's ibdev (`port_rcv_data` counts four bytes).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import NOT_READ, FeedDisk, FeedHost, FeedPort, Int, Num, Unavailable
from nodegauge_contract.feed import MAX_FEED_DISKS, MAX_FEED_PORTS
from nodegauge_probes.feed import pressure
from nodegauge_probes.feed.files import content, entry, rate, rounded, share, table, whole
from nodegauge_probes.host.kernel import listing

MB, MIB_KIB = 1e6, 1024
SECTOR = 512
PAGE = 4096
"""Bytes of a page in vmstat's counters; os.sysconf where it can be asked."""
BUSY = 0.9
_NOT_DISKS = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d*")
_NETWORK = ("nfs", "nfs4", "ceph", "lustre", "cifs", "smb3", "glusterfs", "fuse.juicefs", "gpfs", "beegfs")

Cpu = tuple[int, int, int, int]
"""Ticks: busy, idle, waiting for I/O, stolen."""
DiskCounts = tuple[int, int, int, int, int]
"""Reads, sectors read, ms of reads, sectors written, ms busy."""


class Counters(Struct, frozen=True, kw_only=True):
    """The machine's counters at one moment."""

    cpus: dict[str, Cpu] | Unavailable = NOT_READ
    running: Int = NOT_READ
    blocked: Int = NOT_READ
    stalls: pressure.Stalls = pressure.Stalls()
    memory: dict[str, int] | Unavailable = NOT_READ
    vmstat: dict[str, int] | Unavailable = NOT_READ
    disks: dict[str, DiskCounts] | Unavailable = NOT_READ
    ports: dict[str, tuple[Int, Int, Num]] = {}
    mounts: Int = NOT_READ
    mount_bytes: Int = NOT_READ


def read(*, procfs: Path, sysfs: Path) -> Counters:
    """All counters now."""
    stat = content(procfs / "stat")
    mounts, mount_bytes = _mounts(procfs)
    return Counters(
        cpus=_cpus(stat),
        running=_of_stat(stat, "procs_running"),
        blocked=_of_stat(stat, "procs_blocked"),
        stalls=pressure.read(procfs / "pressure"),
        memory=table(procfs / "meminfo", colon=True),
        vmstat=table(procfs / "vmstat"),
        disks=_disks(procfs, sysfs),
        ports={**_interfaces(procfs, sysfs), **_rdma(sysfs)},
        mounts=mounts,
        mount_bytes=mount_bytes,
    )


def over(before: Counters, after: Counters, *, seconds: float, between: Sequence[Counters] = ()) -> FeedHost:
    """The window between two readings.  `between`: readings inside it, for what only a moment shows."""
    moments = (before, *between, after)
    cpu = _cpu_shares(before.cpus, after.cpus)
    swapped = _sum(_grown(before, after, name, seconds) for name in ("pswpin", "pswpout"))
    return FeedHost(
        cpus=cpu.count,
        cpu_busy=cpu.busy,
        cpu_iowait=cpu.waiting,
        cpu_steal=cpu.stolen,
        busiest_cpus=cpu.busiest,
        runnable=_mean(moment.running for moment in moments),
        blocked=_mean(moment.blocked for moment in moments),
        pressure=pressure.over(before.stalls, after.stalls, seconds=seconds),
        memory_mib=_mib(after, "MemTotal"),
        available_mib=_mib(after, "MemAvailable"),
        cached_mib=_mib(after, "Cached"),
        swap_mbps=swapped if isinstance(swapped, Unavailable) else rounded(swapped * _page() / MB),
        refaults=_refaults(before, after, seconds),
        reclaimed=_reclaimed(before, after, seconds),
        network_mounts=after.mounts,
        network_read_mbps=rate(before.mount_bytes, after.mount_bytes, seconds=seconds, unit=MB),
    )


def disks(before: Counters, after: Counters, *, seconds: float) -> list[FeedDisk]:
    """Disks that were there at both ends, busiest first."""
    if isinstance(before.disks, Unavailable) or isinstance(after.disks, Unavailable):
        return []
    rows = []
    for name, late in after.disks.items():
        early = before.disks.get(name)
        if early is None:
            continue
        reads, read, waited, written, busy = zip(early, late, strict=True)
        count = reads[1] - reads[0]
        wait = rounded((waited[1] - waited[0]) / count) if count > 0 <= waited[1] - waited[0] else None
        rows.append(
            FeedDisk(
                name=name,
                read_mbps=rate(*read, seconds=seconds, unit=MB / SECTOR),
                write_mbps=rate(*written, seconds=seconds, unit=MB / SECTOR),
                reads=rate(*reads, seconds=seconds),
                busy_share=share(*busy, of=seconds * 1000),
                read_wait_ms=Unavailable("no read ended") if wait is None else wait,
            )
        )
    return sorted(rows, key=lambda disk: -_known(disk.busy_share))[:MAX_FEED_DISKS]


def ports(before: Counters, after: Counters, *, seconds: float) -> list[FeedPort]:
    """Ports that carried something, busiest first."""
    rows = []
    for name, (received, sent, gbps) in after.ports.items():
        early = before.ports.get(name)
        if early is None:
            continue
        rx = rate(early[0], received, seconds=seconds, unit=MB)
        tx = rate(early[1], sent, seconds=seconds, unit=MB)
        if _known(rx) > 0 or _known(tx) > 0:
            rows.append(FeedPort(name=name, rx_mbps=rx, tx_mbps=tx, rate_gbps=gbps))
    return sorted(rows, key=lambda port: -(_known(port.rx_mbps) + _known(port.tx_mbps)))[:MAX_FEED_PORTS]


def _cpus(stat: str | Unavailable) -> dict[str, Cpu] | Unavailable:
    if isinstance(stat, Unavailable):
        return stat
    cpus = {}
    for line in stat.splitlines():
        if not line.startswith("cpu"):
            break
        name, *texts = line.split()
        if len(texts) < 8 or not all(text.isdecimal() for text in texts[:8]):
            continue
        user, nice, system, idle, waiting, irq, softirq, steal = map(int, texts[:8])
        cpus[name] = (user + nice + system + irq + softirq, idle, waiting, steal)
    return cpus if "cpu" in cpus else Unavailable("no cpu line in stat")


def _of_stat(stat: str | Unavailable, name: str) -> Int:
    if isinstance(stat, Unavailable):
        return stat
    match = re.search(rf"^{name} (\d{{1,9}})$", stat, re.M)
    return int(match[1]) if match else Unavailable(f"no {name} in stat")


class CpuShares(Struct, frozen=True, kw_only=True):
    """Of all CPUs over the window; `busiest`: how many were busy for 90 % of it."""

    count: Int
    busy: Num
    waiting: Num
    stolen: Num
    busiest: Int


def _cpu_shares(before: dict[str, Cpu] | Unavailable, after: dict[str, Cpu] | Unavailable) -> CpuShares:
    if isinstance(before, Unavailable) or isinstance(after, Unavailable):
        why = before if isinstance(before, Unavailable) else Unavailable("/proc/stat cannot be read any more")
        return CpuShares(count=why, busy=why, waiting=why, stolen=why, busiest=why)
    unknown = Unavailable("the ticks of the CPUs did not grow")
    names = [name for name in after if name != "cpu" and name in before]
    single = [parts for name in names if (parts := _parts(before[name], after[name])) is not None]
    all_of_them = _parts(before["cpu"], after["cpu"])
    if all_of_them is None:
        return CpuShares(count=len(after) - 1, busy=unknown, waiting=unknown, stolen=unknown, busiest=unknown)
    busy, _, waiting, stolen = all_of_them
    busiest: Int = sum(parts[0] >= BUSY for parts in single) if single else unknown
    return CpuShares(count=len(after) - 1, busy=busy, waiting=waiting, stolen=stolen, busiest=busiest)


def _parts(before: Cpu, after: Cpu) -> tuple[float, float, float, float] | None:
    """Shares of the time between two readings; idle and iowait of one CPU may go back a little (proc.rst)."""
    grown = [max(0, b - a) for a, b in zip(before, after, strict=True)]
    total = sum(grown)
    if not total:
        return None
    busy, idle, waiting, stolen = (rounded(part / total) for part in grown)
    return busy, idle, waiting, stolen


def _disks(procfs: Path, sysfs: Path) -> dict[str, DiskCounts] | Unavailable:
    text = content(procfs / "diskstats")
    if isinstance(text, Unavailable):
        return text
    partitions_known = (sysfs / "class/block").is_dir()
    disks = {}
    for line in text.splitlines():
        fields = line.split()
        if (
            len(fields) < 14
            or _NOT_DISKS.fullmatch(fields[2])
            or not all(f.isdecimal() for f in fields[3:14])
        ):
            continue
        if partitions_known and (sysfs / "class/block" / fields[2] / "partition").exists():
            continue
        n = [int(field) for field in fields[3:14]]
        disks[fields[2][:64]] = (n[0], n[2], n[3], n[6], n[9])
    return disks


def _interfaces(procfs: Path, sysfs: Path) -> dict[str, tuple[Int, Int, Num]]:
    """Of this network namespace, without the loopback."""
    text = content(procfs / "net/dev")
    if isinstance(text, Unavailable):
        return {}
    rows: dict[str, tuple[Int, Int, Num]] = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() == "lo" or len(fields) < 16 or not (fields[0] + fields[8]).isdecimal():
            continue
        speed = whole(sysfs / "class/net" / name.strip() / "speed")
        known = isinstance(speed, int) and speed > 0
        gbps: Num = speed / 1000 if isinstance(speed, int) and known else Unavailable("no speed in sysfs")
        rows[name.strip()[:64]] = (int(fields[0]), int(fields[8]), gbps)
    return rows


def _rdma(sysfs: Path) -> dict[str, tuple[Int, Int, Num]]:
    """RDMA ports, which show the machine's traffic also in a container."""
    rows: dict[str, tuple[Int, Int, Num]] = {}
    folder = sysfs / "class/infiniband"
    for device in listing(folder):
        for port in listing(folder / device / "ports"):
            location = folder / device / "ports" / port
            counts = [_bytes(location / "counters" / f"port_{way}_data") for way in ("rcv", "xmit")]
            text = content(location / "rate")
            match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text) if isinstance(text, str) else None
            gbps: Num = float(match[1]) if match else Unavailable("no rate in sysfs")
            rows[f"{device}/{port}"[:64]] = (counts[0], counts[1], gbps)
    return rows


def _bytes(path: Path) -> Int:
    counts = whole(path)
    return counts if isinstance(counts, Unavailable) else counts * 4


def _mounts(procfs: Path) -> tuple[Int, Int]:
    """Network file systems that this process can see, and the bytes that NFS read for them.

    Only NFS counts bytes (`bytes:` of mountstats: the sixth number is what servers sent for reads).
    """
    text = content(procfs / "self/mountstats")
    if isinstance(text, Unavailable):
        return text, text
    kinds = re.findall(r"^device .* with fstype (\S+)", text, re.M)
    seen = [kind for kind in kinds if kind in _NETWORK]
    counts = [line.split() for line in re.findall(r"^\s+bytes:\s+([\d ]+)$", text, re.M)]
    read = [int(numbers[4]) for numbers in counts if len(numbers) >= 5]
    return len(seen), sum(read) if read else Unavailable("no NFS mount in this container")


def _grown(before: Counters, after: Counters, name: str, seconds: float) -> Num:
    return rate(entry(before.vmstat, name), entry(after.vmstat, name), seconds=seconds)


def _refaults(before: Counters, after: Counters, seconds: float) -> Num:
    """Kernels before 5.9 count `workingset_refault` for all pages."""
    newer = isinstance(entry(after.vmstat, "workingset_refault_file"), int)
    return _grown(before, after, "workingset_refault_file" if newer else "workingset_refault", seconds)


def _reclaimed(before: Counters, after: Counters, seconds: float) -> Num:
    """`pgsteal_direct`; with kswapd's it is split by zone on kernels before 4.8."""
    return _grown(before, after, "pgsteal_direct", seconds)


def _sum(values: Iterable[Num]) -> Num:
    total = 0.0
    for value in values:
        if isinstance(value, Unavailable):
            return value
        total += value
    return total


def _mean(values: Iterable[Int]) -> Num:
    numbers = [value for value in values if not isinstance(value, Unavailable)]
    return rounded(sum(numbers) / len(numbers)) if numbers else Unavailable("not in stat")


def _mib(counters: Counters, name: str) -> Int:
    kib = entry(counters.memory, name)
    return kib if isinstance(kib, Unavailable) else kib // MIB_KIB


def _page() -> int:
    return os.sysconf("SC_PAGE_SIZE") or PAGE


def _known(value: Num) -> float:
    return 0.0 if isinstance(value, Unavailable) else value
