"""When something is due on a node: its next run, and the next moment at which to look at it again.

Two chains: health runs, and benchmarks, of which a pull of their image comes first where the node may lack
it.  Whether there is a place for a run is not asked here.
"""

from __future__ import annotations

from nodegauge_judge.nccl.model import Agreement
from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, Policy, seconds
from nodegauge_operator.api.report import GateState, GateStatus, ProbeStatus, Report, ReportStatus, unstamp
from nodegauge_operator.core import bandwidth, gates, nccl_eligibility, pod_outcome, staleness
from nodegauge_operator.core.context import Situation
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes.pod import ProbeDefaults
from nodegauge_operator.core.selection import may_run

RETRY_SECONDS = 30.0
NEVER = float("inf")
AT_ONCE = 0.0


def run_due_at(report: Report | None, *, node: NodeView, policy: Policy) -> float:
    """When the next health run may start, epoch seconds; 0.0 for at once, infinity for never.

    At once: never run, asked for by `spec.requestedAt`, booted anew.  A run that brought nothing is repeated
    after 30 s, then twice that, up to the interval.
    """
    if not policy.spec.probes.health.enabled or not may_run(node):
        return NEVER
    if report is None or report.node_uid != node.uid:
        return AT_ONCE
    probe = report.status.probe(names.PROBE_HEALTH)
    if _wanted_now(probe, report, node):
        return AT_ONCE
    wait = policy.interval_seconds
    return _finished(probe) + (_backed_off(probe, first=RETRY_SECONDS, most=wait) if probe.unread else wait)


def nccl_due_at(report: Report | None, *, node: NodeView, policy: Policy, defaults: ProbeDefaults) -> float:
    """When the next run of the benchmark's chain (its pull, or itself) may start; as `run_due_at`.

    Never: without a nccl image, where the health probe has not read the GPUs of this boot, and where no
    benchmark can run.
    """
    image = policy.nccl_image(defaults.nccl_image)
    if not image or report is None or report.node_uid != node.uid or not may_run(node):
        return NEVER
    health = report.status.probe(names.PROBE_HEALTH)
    if not health.read_at or health.unread or staleness.rebooted(health, node):
        return NEVER
    asked = _asked(report.status.probe(names.PROBE_NCCL), report)
    if (
        not nccl_eligibility.allocatable(node)
        or nccl_eligibility.hindrance(report.status, node, asked=asked) is not None
    ):
        return NEVER
    at = _nccl_due_at(report, node=node, policy=policy)
    if nccl_probe(report.status, node=node, image=image) == names.PROBE_NCCL:
        return at
    pull = report.status.probe(names.PROBE_PULL)
    if not pull.unread or pull.image != image or _wanted_now(pull, report, node):
        return at  # what another image was like says nothing of this one
    return max(at, _finished(pull) + _rechecked(pull, policy))


def nccl_probe(status: ReportStatus, *, node: NodeView, image: str) -> str:
    """Which run of the chain comes next: the image is brought to the node before its GPUs are held."""
    pull = status.probe(names.PROBE_PULL)
    there = pull.image == image and not pull.unread and not staleness.rebooted(pull, node)
    return names.PROBE_NCCL if there else names.PROBE_PULL


def _nccl_due_at(report: Report, *, node: NodeView, policy: Policy) -> float:
    """When the GPUs may be measured again; sooner than the interval where something waits for it.

    A run that brought nothing, or found the GPUs taken, is repeated after `recheck`, then twice that, up to
    the interval; so is one on a node that the last ones left bad.
    """
    status, probe = report.status, report.status.probe(names.PROBE_NCCL)
    if _wanted_now(probe, report, node):
        return AT_ONCE
    if probe.unread:
        return _finished(probe) + _rechecked(probe, policy)
    recheck, interval = seconds(policy.spec.probes.nccl.recheck), policy.interval_of(names.PROBE_NCCL)
    other = not bandwidth.same_hardware(status)
    waits = [interval] + ([recheck] if status.bandwidth.again or other else [])
    if status.bandwidth.gpus < status.bandwidth.of <= nccl_eligibility.allocatable(node):
        waits.append(recheck * _doubled(probe.streak))  # the GPUs that were missing are back
    leave = policy.spec.hysteresis.leave_runs
    in_vain = [_in_vain(row) for row in status.gates if _open(row, leave=leave)]
    if status.bandwidth.agreement == Agreement.CONTRADICTED and not in_vain:
        in_vain.append(probe.streak)  # only a number that agrees brings the label back
    waits += [recheck * _doubled(times) for times in in_vain]
    return _finished(probe) + min(waits)


def _open(row: GateStatus, *, leave: int) -> bool:
    """Whether another benchmark could settle the row: one that was good often enough only waits for time."""
    if row.code not in gates.GATES_OF_NCCL or row.good >= leave:
        return False
    return bool(row.bad) or row.state is not GateState.WATCHING


def _in_vain(row: GateStatus) -> int:
    """Runs that brought the row no nearer to its end: bad ones, and those that could not tell."""
    return row.bad + max(0, row.readable_since - row.good)


def _wanted_now(probe: ProbeStatus, report: Report, node: NodeView) -> bool:
    """Never run, asked for since the last run, or booted anew since."""
    last = probe.last_run
    if last is None or _asked(probe, report):
        return True
    return bool(last.boot_id and node.boot_id) and last.boot_id != node.boot_id


def _asked(probe: ProbeStatus, report: Report) -> bool:
    """Somebody asked for a run that has not been made yet."""
    return bool(report.requested_at) and report.requested_at != probe.request


def _finished(probe: ProbeStatus) -> float:
    return unstamp(probe.last_run.finished_at) if probe.last_run else AT_ONCE


def _rechecked(probe: ProbeStatus, policy: Policy) -> float:
    first = seconds(policy.spec.probes.nccl.recheck)
    return _backed_off(probe, first=first, most=policy.interval_of(names.PROBE_NCCL))


def _backed_off(probe: ProbeStatus, *, first: float, most: float) -> float:
    """Seconds to wait after so many runs that brought nothing."""
    return min(most, first * _doubled(probe.unread))


def _doubled(times: int) -> float:
    """1, 1, 2, 4, ... for 0, 1, 2, 3, ... times."""
    return float(1 << min(max(0, times - 1), 10))


def wake_at(s: Situation) -> float:
    """When to ask `next_step` again if nothing happens before: the next moment after `now`, or infinity."""
    pods = [p for p in s.pods if not p.gone]
    limits = s.policy.spec.limits if s.policy else Limits()
    times = [p.deleting_since + seconds(limits.not_gone) for p in pods if p.deleting_since]
    if s.node is None or s.policy is None:
        return min((at for at in times if at > s.now), default=NEVER)
    policy = s.policy
    times += [
        pod_outcome.wake_at(p, limits=policy.limits_of(p.probe), deadline=policy.deadline_of(p.probe))
        for p in pods
        if not p.deleting_since
    ]
    if not any(p.in_the_way for p in pods):
        times.append(run_due_at(s.report, node=s.node, policy=policy))
    if not pods:
        times.append(nccl_due_at(s.report, node=s.node, policy=policy, defaults=s.defaults))
    if s.report is not None:
        for probe in (s.report.status.probe(name) for name in (names.PROBE_HEALTH, names.PROBE_NCCL)):
            times.append(staleness.stale_at(probe, policy=policy, since=s.since) + 1)
            times.append(staleness.topology_stale_at(probe, policy=policy, since=s.since) + 1)
        times.append(gates.due_at(s.report.status.gates, policy=policy))
    return min((at for at in times if at > s.now), default=NEVER)
