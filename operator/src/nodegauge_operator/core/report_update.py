"""The report's next status after one run has ended.

One place decides what a run changes: an unreadable run only counts up and says why; a readable one replaces
what its probe said before, and keeps the raw inputs of the next judgement.  Here: which probe it was, and the
health probe.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_judge import History, Judgement, NodeFacts, Verdict, judge_health
from nodegauge_judge.nccl.model import Peers, no_peers
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, Until
from nodegauge_operator.api.report import (
    GpusStatus,
    InterconnectStatus,
    Outcome,
    ProbeStatus,
    ReportStatus,
    Run,
)
from nodegauge_operator.core import events, readings
from nodegauge_operator.core import gates as rows
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes import nccl
from nodegauge_operator.core.readings import Reading

MAX_ITEMS = 16
"""GPUs listed one by one: no machine has more, and a report stays a few KiB; the count tells of others."""
MAX_MATRIX = 8192


def advance(
    status: ReportStatus,
    *,
    run: Run,
    end: RunEnd,
    node: NodeView,
    policy: Policy,
    request: str,
    now: float,
    probe: str = names.PROBE_HEALTH,
    image: str = "",
    peers: Peers = no_peers,
) -> ReportStatus:
    """The status after `end` of a run of `probe`.

    `run` carries the number, the pod and the start; `node` is the node as the run met it; `request` the
    `spec.requestedAt` that it answers; `now` in epoch seconds; `image` what a pull was to bring; `peers` what
    nodes like this one reach.
    """
    met = nccl.Met(node=node, policy=policy, now=now, peers=peers)
    match probe:
        case names.PROBE_NCCL:
            after = nccl.after_run(status, run=run, end=end, met=met, request=request)
        case names.PROBE_PULL:
            after = nccl.after_pull(status, run=run, end=end, met=met, request=request, image=image)
        case _:
            after = _after_health(status, run=run, end=end, met=met, request=request)
    last = after.probe(probe).last_run
    assert last is not None, "it has just ended"
    change = events.of_run(status, after, run=last, probe=probe)
    return replace(after, policy=policy.name, change=change or status.change)


def _after_health(
    status: ReportStatus, *, run: Run, end: RunEnd, met: nccl.Met, request: str
) -> ReportStatus:
    node, policy, now = met.node, met.policy, met.now
    before = status.probe(names.PROBE_HEALTH)
    judgement = _judge(end, before=before, node=node, policy=policy)
    if judgement is not None and not judgement.readable:
        end = RunEnd(outcome=Outcome.UNKNOWN, reason="NotReadable", message=judgement.summary)
    run = readings.ended(run, end, node=node, now=now)
    if judgement is None or not judgement.readable:
        found = judgement.findings if judgement is not None else None
        probe = readings.unread(before, run, request=request, findings=found)
        return replace(status, probes=status.with_probe(probe))
    reading = Reading(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        history=judgement.history.encode(),
    )
    probe = readings.read(before, run, reading, request=request)
    gates = rows.after_run(status.gates, judgement, policy=policy.spec.hysteresis, now=now)
    passed = (
        judgement.verdict in (Verdict.PASS, Verdict.WARN)
        and policy.spec.taints.unvalidated_until is Until.HEALTH
    )
    return replace(
        status,
        verdict=probe.verdict,
        summary=probe.summary,
        probes=status.with_probe(probe),
        interconnect=_interconnect(judgement),
        gpus=_gpus(judgement),
        matrix=judgement.matrix[:MAX_MATRIX],
        gates=gates,
        throttle_judged_at=rows.throttle_judged_at(
            status.throttle_judged_at, gates, judgement=judgement, now=now
        ),
        psu=judgement.psu.value if judgement.psu else "",
        passed_at=status.passed_at or (run.finished_at if passed else ""),
    )


def _judge(end: RunEnd, *, before: ProbeStatus, node: NodeView, policy: Policy) -> Judgement | None:
    if end.result is None:
        return None
    facts = NodeFacts.of(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpu_capacity})
    return judge_health(
        end.result,
        thresholds=policy.spec.thresholds,
        history=History.decode(before.history),
        node=facts,
        interval=policy.interval_seconds,
    )


def _interconnect(judgement: Judgement) -> InterconnectStatus:
    found = judgement.interconnect
    return InterconnectStatus(
        klass=found.klass or "",
        nvlink_gbps=found.nvlink_gbps,
        evidence=found.evidence or "",
        reason=found.reason,
        message=found.message[:500],
    )


def _gpus(judgement: Judgement) -> GpusStatus:
    return GpusStatus(
        count=len(judgement.gpus),
        product=judgement.product,
        driver=judgement.driver,
        items=list(judgement.gpus[:MAX_ITEMS]),
    )
