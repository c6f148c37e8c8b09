"""How a node stands, from its report and the policy in force there: what `nodes`, `status`, `why` and
`explain` have in common.

A report tells what was so when the operator last looked.  An operator that is gone corrects nothing, so each
command compares its times with the clock: nobody's reading is no health.  Must not print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, Policy, PolicyInvalid, PolicySpec, parse
from nodegauge_operator.api.report import GateState, Report, ReportStatus
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.api.times import stamp, unstamp
from nodegauge_operator.core import gates, override, wording
from nodegauge_operator.core.faults import no_slot
from nodegauge_operator.core.model import NodeView, Taint
from nodegauge_operator.core.usable import UNKNOWN, Lost, usable

UNREAD = "unread"
"""In place of a verdict: nobody has read the node lately, or ever."""
AGAIN = 2.0
"""Ages of a reading, in units of its limit, from which on nobody looks any more.  Chosen by this project: the
operator itself ends a reading at its limit, so one of twice that age has no operator."""


class Standing(Struct, frozen=True, rename="camel", kw_only=True):
    """One node in a line."""

    node: str
    health: str
    """`pass`, `warn` or `fail` by the report; `unread` where nobody has read the node, or can."""
    taints: list[str] = []
    """What the node should carry, as kubectl writes it without our prefix."""
    causes: list[str] = []
    """Confirmed faults by their taint's value, also those without a taint now."""
    held_back: bool = False
    """A taint is due, and a budget, a rate or an incident holds it back."""
    held_by: str = ""
    """What does; empty if nothing is held back."""
    interconnect: str = ""
    """nvlink, nvlink-pairs or pcie; empty if unknown."""
    nvlink_gbps: int | None = None
    """Of the weakest GPU, GB/s one way."""
    all_reduce: int | None = None
    """GB/s of bus bandwidth, as last measured."""
    gpus: int = 0
    """GPUs that the driver reports."""
    gpu_class: str = UNKNOWN
    """Number and model of GPUs that the node has or should have, as `8 x NVIDIA-H100-80GB-HBM3`."""
    gpus_had: int = 0
    """GPUs that the node has or should have, also lost ones."""
    usable: int = 0
    """Those of them that can be used (`core.usable`); none where nobody reads."""
    lost: dict[str, int] = {}
    """The others, by what they are lost to."""
    product: str = ""
    """Their product name."""
    driver: str = ""
    """Version of the driver."""
    read_at: str = ""
    """When the health probe last read the node (RFC 3339, UTC); empty for never."""
    why_unread: str = ""
    """Why nothing is known of it now; empty if something is."""
    override: str = ""
    """`healthy` or `leave-alone` while it is in force; `invalid` if it is not."""
    policy: str = ""
    """The policy that it follows."""
    mode: str = ""
    """That policy's mode; empty if the policy is gone."""
    installation: str = ""
    """`NAMESPACE/RELEASE` of the operator that wrote the report."""
    labels: dict[str, str] = {}
    """Our labels that it should carry."""
    summary: str = ""
    """What the probes found, the worst first."""


def standing_of(
    report: Report, policy: Policy | None, *, now: float, node: NodeView | None = None
) -> Standing:
    """The node's line; `policy`: None if it is gone or cannot be read, `now`: epoch seconds, `node`: None
    where nobody may read nodes: it then counts as Ready and not cordoned."""
    status = report.status
    unread = why_unread(status, policy, now=now)
    count = usable(status, node or _unseen(report), policy)
    if unread and count.usable:
        count = replace(count, usable=0, lost=count.lost | {Lost.UNREAD.value: count.usable})
    known = [gate for gate in status.gates if gate.state.entered and gate.code in gates.GATES]
    waiting = [gate for gate in known if gate.state is GateState.HELD_BACK]
    health = status.probe[names.PROBE_HEALTH]
    return Standing(
        node=report.name,
        health=UNREAD if unread and status.verdict is not Verdict.FAIL else status.verdict.value,
        taints=[taint.short for taint in status.desired.taints],
        causes=list(dict.fromkeys(gates.GATES[gate.code].cause.value for gate in known)),
        held_back=bool(waiting),
        held_by=no_slot(waiting[0], applied(policy, status)) if waiting else "",
        interconnect=status.interconnect.klass,
        nvlink_gbps=status.interconnect.nvlink_gbps,
        all_reduce=status.bandwidth.all_reduce,
        gpus=status.gpus.count,
        gpu_class=count.klass,
        gpus_had=count.gpus,
        usable=count.usable,
        lost=count.lost,
        product=status.gpus.product,
        driver=status.gpus.driver,
        read_at=health.read_at,
        why_unread=unread,
        override=_override(status),
        policy=status.policy,
        mode=policy.spec.mode.value if policy else "",
        installation=report.installation,
        labels=dict(status.desired.labels),
        summary=status.summary,
    )


def why_unread(status: ReportStatus, policy: Policy | None, *, now: float) -> str:
    """Why nothing is known of the node now, as a sentence; empty if it is known."""
    health = status.probe[names.PROBE_HEALTH]
    if health.unreadable is not None:
        return wording.not_readable(health.unreadable)
    if not health.read_at:
        last = health.last_run
        failed = f" ({last.reason}: {last.message.rstrip('.')})" if last is not None else ""
        return f"Never read{failed}."
    if status.verdict not in (Verdict.PASS, Verdict.WARN, Verdict.FAIL):
        return f"Not read since {health.read_at}."
    if policy is not None and policy.paused:
        return ""  # nobody looks, on purpose: what was read stays as it is
    looked = max(health.read_epoch, unstamp(health.last_run.finished_at) if health.last_run else 0.0)
    if health.age_limit_seconds and now > looked + AGAIN * health.age_limit_seconds:
        return (
            f"Nobody has looked since {stamp(looked)}: is the operator running? "
            "`kubectl get lease nodegauge --namespace default`."
        )
    return ""


def _unseen(report: Report) -> NodeView:
    """A node of which only the report is known: taken as Ready, not cordoned, and as the operator left it."""
    desired = report.status.desired
    taints = tuple(Taint(key=each.key, value=each.value, effect=each.effect) for each in desired.taints)
    return NodeView(
        name=report.name, uid=report.node_uid, resource_version="", labels=desired.labels, taints=taints
    )


def applied(policy: Policy | None, status: ReportStatus) -> Policy:
    """The policy as it is in force on the node; one of defaults if it is gone."""
    known = policy or Policy(
        name=status.policy, uid="", generation=0, spec=PolicySpec(node_selector=Selector())
    )
    return override.applied(known, status.override)


def observing(policy: Policy | None) -> bool:
    """Whether the policy writes nothing to nodes."""
    return policy is not None and policy.spec.mode is Mode.OBSERVE


def policies_of(bodies: Iterable[Mapping[str, Any]]) -> dict[str, Policy]:
    """The policies among these objects that can be read, by name."""
    known = {}
    for body in bodies:
        try:
            policy = parse(dict(body))
        except PolicyInvalid:
            continue
        known[policy.name] = policy
    return known


def _override(status: ReportStatus) -> str:
    if status.override is None:
        return ""
    return "invalid" if status.override.problem else status.override.kind
