"""CPUs as a cause: a pod's own limit, too few of them, or a loader that uses only one.

A quota raises the CPU pressure too, so pressure means too few cores only where the CPUs are busy.
"""

from __future__ import annotations

from nodegauge_contract.feed import FeedGroup
from nodegauge_judge.feed.case import FeedCase, amount, share
from nodegauge_judge.feed.causes import FeedCause, FeedLimits, Stall, score
from nodegauge_judge.model import Scalar


def quota(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """A pod that its own CPU limit stops; without control groups: pods wait for a CPU while some are free."""
    stopped = [(read, group) for group in case.groups if (read := share(group.throttled_share)) is not None]
    if stopped:
        worst, group = max(stopped, key=lambda pair: pair[0])
        reached = score(worst, limits.throttled)
        return None if reached is None else _by_quota(case, group, worst, reached)
    if any(amount(group.cpu_cores) is not None for group in case.groups):
        return None  # their groups are seen, and none has a quota
    pressure, busy = share(case.host.pressure.cpu), share(case.host.cpu_busy)
    reached = score(pressure, limits.cpu_pressure)
    if reached is None or pressure is None or busy is None or busy > limits.cpu_free:
        return None
    return Stall(
        cause=FeedCause.QUOTA,
        score=reached,
        message=(
            f"tasks waited for a CPU in {pressure:.0%} of the time while {1 - busy:.0%} of the CPUs were "
            "free: a CPU limit or a cpuset keeps them from running"
        ),
        advice=(
            "look for `limits.cpu` in the pods with GPUs and raise or remove it (for each GPU 4 to "
            "8 loader workers with a core each, and one core more); `nr_throttled` in the pod's own "
            "/sys/fs/cgroup/cpu.stat grows then"
        ),
        evidence={"cpu_pressure": round(pressure, 3), "cpu_busy": round(busy, 3)},
    )


def _by_quota(case: FeedCase, group: FeedGroup, stopped: float, reached: float) -> Stall:
    name, allowed, used = case.name_of(group), amount(group.cpu_quota), amount(group.cpu_cores)
    may = f"may use {allowed:g} cores" if allowed is not None else "has a CPU limit"
    evidence: dict[str, Scalar] = {"throttled_share": round(stopped, 3)}
    evidence |= {"quota_cores": allowed} if allowed is not None else {}
    evidence |= {"used_cores": round(used, 2)} if used is not None else {}
    return Stall(
        cause=FeedCause.QUOTA,
        score=reached,
        message=f"{name} {may} and was stopped in {stopped:.0%} of its periods",
        advice=(
            "raise `limits.cpu` of the pod or remove it, and set `requests.cpu` to what it needs: for each "
            "GPU 4 to 8 loader workers with a core each, and one core more"
        ),
        evidence=evidence,
    )


def cores(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """Too few CPUs: of the machine, or of those that a pod may run on; or a loader that uses only one."""
    return _pinned(case, limits) or _full(case, limits) or _serial(case, limits)


def _full(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """Tasks wait for a CPU, or there are as many of them as CPUs and all are busy all the time."""
    busy, pressure = share(case.host.cpu_busy), share(case.host.pressure.cpu)
    cpus, runnable = amount(case.host.cpus), amount(case.host.runnable)
    full = score(busy, limits.cpu_busy)
    if full is None or busy is None:
        return None
    message = f"{busy:.0%} of all CPU time was used"
    if pressure is not None:
        waits = score(pressure, limits.cpu_pressure)
        message += f", and tasks waited for a CPU in {pressure:.0%} of the time" if waits else ""
    else:
        waits = score(None if not cpus or runnable is None else runnable / cpus, limits.runnable)
    reached = (full + waits) / 2 if waits is not None else score(busy, limits.cpu_full)
    if reached is None:
        return None
    stolen = share(case.host.cpu_steal) or 0.0
    message += f"; the hypervisor took {stolen:.0%}" if stolen >= limits.cpu_steal else ""
    evidence: dict[str, Scalar] = {"cpu_busy": round(busy, 3)}
    evidence |= {} if pressure is None else {"cpu_pressure": round(pressure, 3)}
    theirs = _neighbours(case, busy_cores=busy * (cpus or 0.0), limits=limits)
    return Stall(
        cause=FeedCause.CORES,
        score=reached,
        message=message + theirs,
        advice=(
            "move the neighbours to other nodes, or give the pod `requests.cpu` for 4 to 8 loader workers "
            "and one core for each GPU so that it gets its share"
            if theirs
            else "prepare data beforehand or on the GPU (cache decoded samples, DALI), use fewer loader "
            "workers than cores, or take a node with more cores a GPU (4 to 8 loader workers each)"
        ),
        evidence=evidence,
    )


def _neighbours(case: FeedCase, *, busy_cores: float, limits: FeedLimits) -> str:
    """Who fills the CPUs, if that is not the pods with GPUs; empty if it is, or nobody knows."""
    used = [(cores, group) for group in case.groups if (cores := amount(group.cpu_cores)) is not None]
    own = sum(cores for cores, _ in used)
    if not used or not busy_cores or own >= limits.neighbour_share * busy_cores:
        return ""
    whose = "the pods with GPUs" if case.pods is not None else "all pods together"
    return f"; {whose} use {own:.1f} of {busy_cores:.1f} busy cores, neighbours the rest"


def _pinned(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """A pod that uses up the CPUs that it may run on, on a machine that has more."""
    cpus = amount(case.host.cpus)
    for group in case.groups:
        may, used = amount(group.cpuset), amount(group.cpu_cores)
        if (
            not may
            or used is None
            or cpus is None
            or may >= cpus
            or score(share(group.throttled_share), limits.throttled)
        ):
            continue
        full, waits = score(used / may, limits.cpuset_used), share(group.pressure.cpu)
        pressed = score(waits, limits.cpu_pressure) if waits is not None else full
        if full is None or pressed is None:
            continue
        return Stall(
            cause=FeedCause.CORES,
            score=(full + pressed) / 2,
            message=f"{case.name_of(group)} may run on {may:g} of {cpus:g} CPUs and used {used:.1f} of them",
            advice=(
                "raise `requests.cpu` and `limits.cpu` of the pod (the kubelet pins as many CPUs), to 4 to 8 "
                "loader workers and one core for each GPU"
            ),
            evidence={"used_cores": round(used, 2), "cpuset": may},
        )
    return None


def _serial(case: FeedCase, limits: FeedLimits) -> Stall | None:
    """Single CPUs are busy, the others free, and nothing waits: the job prepares data in one thread."""
    busy, busiest = share(case.host.cpu_busy), amount(case.host.busiest_cpus)
    pressure = share(case.host.pressure.cpu)
    if busy is None or pressure is None or not busiest or busy > limits.serial_busy:
        return None
    if pressure >= limits.cpu_pressure[0]:
        return None
    return Stall(
        cause=FeedCause.CORES,
        score=limits.serial_score,
        message=f"{busiest:g} CPUs were busy all the time and {1 - busy:.0%} of the CPU time was free",
        advice=(
            "the job likely prepares its data in one thread: set 4 to 8 loader workers for each GPU "
            "(`num_workers`), `pin_memory` and `prefetch_factor`"
        ),
        evidence={"cpu_busy": round(busy, 3), "busiest_cpus": busiest},
    )
