"""The control groups of the node's pods over a window, version 1 or 2, by either driver of the kubelet.

Only where the container sees the host's groups (`--control-groups ROOT`).  A pod's group has the sum of its
containers' limits, or none if one of them has none; so the group that its quota stopped most counts: the
pod's or a container's.  Sources: Documentation/admin-guide/cgroup-v2.rst (cpu.stat, cpu.max, memory.stat,
io.stat) and cgroup-v1; pkg/kubelet/cm of Kubernetes for the names of the folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import FeedGroup, Int, Num, Unavailable
from nodegauge_contract.feed import MAX_FEED_GROUPS
from nodegauge_probes.feed import pressure
from nodegauge_probes.feed.files import content, entry, rate, rounded, share, table, whole

_POD = re.compile(r"(?:.*-)?pod([0-9a-fA-F]{8}[-_].{0,60}?|[0-9a-f]{32})(?:\.slice)?")
_GROUPS = re.compile(r"kubepods|burstable|besteffort|guaranteed|kubelet|\.slice$|^kind|^docker|^system")
DEEPEST, MOST_FOLDERS, MOST_PODS, MOST_CONTAINERS = 5, 2000, 512, 16
MB, MIB = 1e6, 1 << 20
NO_LIMIT = Unavailable("no limit")
HUGE = 1 << 60
"""Version 1 says no limit by a number near 2^63."""


class Quota(Struct, frozen=True, kw_only=True):
    """One group's quota: how many periods, in how many it was stopped, for how long (microseconds of its
    CPUs), and the cores that it allows."""

    periods: Int
    stopped: Int
    stopped_us: Int
    cores: Num


class Group(Struct, frozen=True, kw_only=True):
    """One pod's counters at one moment."""

    usage_us: Int
    quotas: dict[str, Quota]
    cpuset: Int
    stalls: pressure.Stalls
    memory: Int
    limit: Int
    read_bytes: Int
    refaults: Int


def read(root: Path | None) -> dict[str, Group] | Unavailable:
    """The pods' groups now, by the pod's UID; or why there is none to be seen."""
    if root is None:
        return Unavailable("the container does not see the host's control groups (probes.feed.controlGroups)")
    second = (root / "cgroup.controllers").exists()
    base = root if second else _controller(root, "cpu")
    if base is None:
        return Unavailable(f"no control groups below {root}")
    pods = dict(_pods(base))
    if not pods:
        return Unavailable(f"no pod's control group below {root}")
    reader = _read_second if second else _read_first
    return {uid: reader(root, folder.relative_to(base)) for uid, folder in pods.items()}


def over(
    before: dict[str, Group] | Unavailable, after: dict[str, Group] | Unavailable, *, seconds: float
) -> tuple[list[FeedGroup], str]:
    """Pods that were there at both ends, most CPU first; and why there are none."""
    if isinstance(after, Unavailable):
        return [], after.unavailable
    if isinstance(before, Unavailable):
        return [], before.unavailable
    groups = [_over(uid, before[uid], group, seconds) for uid, group in after.items() if uid in before]

    def cores(group: FeedGroup) -> float:
        return 0.0 if isinstance(group.cpu_cores, Unavailable) else group.cpu_cores

    return sorted(groups, key=lambda group: -cores(group))[:MAX_FEED_GROUPS], ""


def _over(uid: str, before: Group, after: Group, seconds: float) -> FeedGroup:
    share_of, cores_of, quota = _most_stopped(before, after, seconds)
    mib = after.memory if isinstance(after.memory, Unavailable) else after.memory // MIB
    limit = after.limit if isinstance(after.limit, Unavailable) else after.limit // MIB
    return FeedGroup(
        pod_uid=uid,
        cpu_cores=rate(before.usage_us, after.usage_us, seconds=seconds, unit=1e6),
        cpu_quota=quota,
        throttled_share=share_of,
        throttled_cores=cores_of,
        cpuset=after.cpuset,
        pressure=pressure.over(before.stalls, after.stalls, seconds=seconds),
        memory_mib=mib,
        memory_limit_mib=limit,
        read_mbps=rate(before.read_bytes, after.read_bytes, seconds=seconds, unit=MB),
        refaults=rate(before.refaults, after.refaults, seconds=seconds),
    )


def _most_stopped(before: Group, after: Group, seconds: float) -> tuple[Num, Num, Num]:
    """Share of periods, cores and quota of the group within the pod that its quota stopped longest."""
    best: tuple[float, Num, Num, Num] | None = None
    for name, late in after.quotas.items():
        early = before.quotas.get(name)
        if early is None or isinstance(late.cores, Unavailable):
            continue
        stopped = rate(early.stopped_us, late.stopped_us, seconds=seconds, unit=1e6)
        periods = rate(early.periods, late.periods, seconds=1)
        part: Num = periods if isinstance(periods, Unavailable) else 0.0
        if not isinstance(periods, Unavailable) and periods:
            part = share(early.stopped, late.stopped, of=periods)
        rank = -1.0 if isinstance(stopped, Unavailable) else stopped
        if best is None or rank > best[0]:
            best = (rank, part, stopped, late.cores)
    if best is not None:
        return best[1:]
    reasons = [quota.cores for quota in after.quotas.values() if isinstance(quota.cores, Unavailable)]
    reason = reasons[0] if reasons else Unavailable("no quota can be read")
    return reason, reason, reason


def _pods(base: Path) -> Iterator[tuple[str, Path]]:
    """Folders of pods, by walking what may hold them; bounded."""
    waiting, seen, matches = [(base, 0)], 0, 0
    while waiting:
        folder, depth = waiting.pop()
        for name in _folders(folder):
            seen += 1
            if seen > MOST_FOLDERS or matches >= MOST_PODS:
                return
            match = _POD.fullmatch(name)
            if match:
                matches += 1
                yield match[1].replace("_", "-")[:64], folder / name
            elif depth < DEEPEST and _GROUPS.search(name):
                waiting.append((folder / name, depth + 1))


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.name.isprintable() and e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _controller(root: Path, name: str) -> Path | None:
    """The mount of a controller of version 1, alone or with others."""
    names = (name, *(entry for entry in _folders(root) if name in entry.split(",")))
    return next((root / each for each in names if (root / each).is_dir()), None)


def _read_second(root: Path, path: Path) -> Group:
    folder = root / path
    stat = table(folder / "cpu.stat")
    memory_max = content(folder / "memory.max")
    return Group(
        usage_us=entry(stat, "usage_usec"),
        quotas={name: _quota_second(location) for name, location in _parts(folder)},
        cpuset=_cpus(content(folder / "cpuset.cpus.effective")),
        stalls=pressure.read(folder, suffix=".pressure"),
        memory=whole(folder / "memory.current"),
        limit=NO_LIMIT if str(memory_max).strip() == "max" else whole(folder / "memory.max"),
        read_bytes=_io_bytes(content(folder / "io.stat"), r"\brbytes=(\d{1,18})"),
        refaults=entry(table(folder / "memory.stat"), "workingset_refault_file"),
    )


def _quota_second(folder: Path) -> Quota:
    stat, text = table(folder / "cpu.stat"), content(folder / "cpu.max")
    return Quota(
        periods=entry(stat, "nr_periods"),
        stopped=entry(stat, "nr_throttled"),
        stopped_us=entry(stat, "throttled_usec"),
        cores=text if isinstance(text, Unavailable) else _cores(*(*text.split(), "", "")[:2]),
    )


def _read_first(root: Path, path: Path) -> Group:
    def file(controller: str, name: str) -> Path:
        mount = _controller(root, controller)
        return (mount if mount is not None else root / controller) / path / name

    usage, limit = whole(file("cpuacct", "cpuacct.usage")), whole(file("memory", "memory.limit_in_bytes"))
    stat = table(file("memory", "memory.stat"))
    refaults = entry(stat, "workingset_refault_file")
    return Group(
        usage_us=usage if isinstance(usage, Unavailable) else usage // 1000,
        quotas={name: _quota_first(location) for name, location in _parts(file("cpu", "cpu.stat").parent)},
        cpuset=_cpus(content(file("cpuset", "cpuset.cpus"))),
        stalls=pressure.read(root / "unified" / path, suffix=".pressure"),
        memory=whole(file("memory", "memory.usage_in_bytes")),
        limit=NO_LIMIT if isinstance(limit, int) and limit >= HUGE else limit,
        read_bytes=_io_bytes(
            content(file("blkio", "blkio.throttle.io_service_bytes")), r"^\d+:\d+ Read (\d{1,18})$"
        ),
        refaults=refaults if isinstance(refaults, int) else entry(stat, "workingset_refault"),
    )


def _quota_first(folder: Path) -> Quota:
    stat = table(folder / "cpu.stat")
    nanoseconds = entry(stat, "throttled_time")
    quota, period = whole(folder / "cpu.cfs_quota_us"), whole(folder / "cpu.cfs_period_us")
    cores: Num = quota if isinstance(quota, Unavailable) else _cores(str(quota), str(period))
    stopped_us = nanoseconds if isinstance(nanoseconds, Unavailable) else nanoseconds // 1000
    return Quota(
        periods=entry(stat, "nr_periods"),
        stopped=entry(stat, "nr_throttled"),
        stopped_us=stopped_us,
        cores=cores,
    )


def _parts(folder: Path) -> Iterator[tuple[str, Path]]:
    """The pod's group and those of its containers."""
    yield "", folder
    for name in _folders(folder)[:MOST_CONTAINERS]:
        yield name, folder / name


def _cores(quota: str, period: str) -> Num:
    if quota in ("max", "-1"):
        return NO_LIMIT
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return Unavailable("the quota is no number")
    return rounded(int(quota) / int(period))


def _cpus(text: str | Unavailable) -> Int:
    """How many CPUs a list such as `0-3,8` names."""
    if isinstance(text, Unavailable):
        return text
    count = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if match is None:
            return Unavailable("no CPUs in the list")
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return count


def _io_bytes(text: str | Unavailable, pattern: str) -> Int:
    if isinstance(text, Unavailable):
        return text
    return sum(int(number) for number in re.findall(pattern, text, re.M))
