"""What a request for runs waits for, in words, and what no request can start.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.load_status import LoadStatus
from nodegauge_operator.api.policy import Mode, Policy
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.gpu_eligibility import PASSING
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.probes.kind import ProbeKind
from nodegauge_operator.core.probes.registry import KINDS


def able(status: ReportStatus, policy: Policy | None, probes: Sequence[str]) -> tuple[str, ...]:
    """The probes that a request for all of them can start on this node."""
    return tuple(name for name in probes if not _switched_off(policy, name) and not _hindered(status, name))


def refusal(status: ReportStatus, policy: Policy | None, probes: Sequence[str]) -> str:
    """Why a request for these would never be answered; empty if it may be."""
    if not probes:
        return "its policy has every probe off, so a request starts nothing: set spec.probes.health.enabled"
    for name in probes:
        if policy is not None and _switched_off(policy, name):
            field = f"spec.probes.{name}.enabled of policy {policy.name}"
            return f"{field} is false, so a request starts no {name} run: set it to true first"
    return ""


def sentence(
    status: ReportStatus,
    policy: Policy | None,
    probes: Sequence[str],
    pods: Sequence[PodView] | None,
    may_run: bool,
) -> str:
    """What the first of these probes waits for.  `pods`: those of the node, None if they cannot be listed;
    `may_run`: the node allows runs."""
    name = probes[0]
    own = [pod for pod in pods or () if not pod.finished and not pod.deleting_since]
    running = next((pod for pod in own if pod.probe == name), None)
    text = (
        _of_pod(running)
        if running
        else _of_node(status, policy, may_run) or _of_probe(status, policy, name, own)
    )
    more = f" (then {', '.join(probes[1:])})" if len(probes) > 1 else ""
    return f"{name}: {text}{more}"


def _of_pod(pod: PodView) -> str:
    if pod.started_at:
        return "measures"
    why = f": {pod.pending_reason}" if pod.pending_reason else ""
    why += f", {pod.pending_message}" if pod.pending_message else ""
    return f"its pod starts{why}" if pod.scheduled else f"its pod waits for room on the node{why}"


def _of_node(status: ReportStatus, policy: Policy | None, may_run: bool) -> str:
    """What keeps every probe off the node; empty for nothing."""
    override = status.override
    if override is not None and override.leaves_alone:
        return f"left alone by {override.by} until {override.until} ({override.reason}), so no run starts"
    if policy is None:
        return (
            f"policy {status.policy or '(none)'} cannot be read" if status.policy else "no policy selects it"
        )
    if policy.spec.mode is Mode.PAUSED:
        return f"policy {policy.name} is paused, so no run starts: `nodegauge pause {policy.name} --end`"
    if policy.paused:
        return f"policy {policy.name} has budget.concurrentProbes 0, so no run starts"
    return "" if may_run else "the node is not Ready, leaves, or its driver is being changed"


def _of_probe(status: ReportStatus, policy: Policy | None, name: str, pods: Sequence[PodView]) -> str:
    kind, health = KINDS[name], status.probe[names.PROBE_HEALTH]
    if pods:
        return f"the {pods[0].probe} run on the node ends first"
    if kind.holds_gpus and (not health.read_at or health.unread):
        return "a health reading comes first, and the node cannot be read yet"
    if reason := _reason(status, name):
        return reason
    share = _limit(policy, kind)
    where = f" ({share} of the policy's nodes at a time)" if share else ""
    return f"waits for a slot{where}" + (", then for GPUs that nobody uses" if kind.holds_gpus else "")


def _limit(policy: Policy | None, kind: ProbeKind) -> str:
    return str(kind.pool.setting(policy.spec.budget)) if policy is not None else ""


def _switched_off(policy: Policy | None, name: str) -> bool:
    settings = getattr(policy.spec.probes, name, None) if policy is not None else None
    return settings is not None and not settings.enabled


def _hindered(status: ReportStatus, name: str) -> bool:
    """Something about the node that only somebody can change."""
    reason = _reason(status, name).partition(":")[0]
    return bool(reason) and reason not in {why.value for why in PASSING}


def _reason(status: ReportStatus, name: str) -> str:
    """`Shared: ...`: why the report says that no run of this probe can be made now; empty if one can."""
    of_runs: dict[str, BandwidthStatus | LoadStatus] = {
        names.PROBE_NCCL: status.bandwidth,
        names.PROBE_LOAD: status.load,
    }
    known = of_runs.get(name)
    return f"{known.reason}: {known.detail}" if known is not None and known.reason else ""
