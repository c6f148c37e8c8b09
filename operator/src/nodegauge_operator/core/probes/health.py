"""The health probe: reads the node through NVML for seconds, and holds no GPU.

By its environment the NVIDIA runtime shows it all GPUs, and `utility` alone brings NVML in.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nodegauge_judge import GpuIdentity, History, Judgement, NodeFacts, Verdict, judge_health
from nodegauge_judge.history.model import uuid_start
from nodegauge_judge.history.xids import SAME_BOOT, ends_at
from nodegauge_judge.peers import no_peers
from nodegauge_judge.rule import NEXT
from nodegauge_judge.rules import HEALTH_RULES
from nodegauge_operator import names
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.node_history import Day, noted
from nodegauge_operator.api.policy import Policy, Until, seconds
from nodegauge_operator.api.report import (
    ClockStatus,
    InterconnectStatus,
    Outcome,
    ProbeStatus,
    ReportStatus,
    VersionsStatus,
)
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core import gates, probe_status, unreadable
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.driver_access import DriverAccess, gap
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.probes import bmc, node_class, watch
from nodegauge_operator.core.probes.health_labels import LABELS
from nodegauge_operator.core.probes.kind import (
    AT_ONCE,
    EndedRun,
    Pool,
    ProbeKind,
    backed_off,
    finished_at,
    requested,
    shown_change,
    wanted_now,
)
from nodegauge_operator.core.probes.pod import container, with_kernel_log
from nodegauge_operator.core.report_size import cut

MAX_VERSIONS = 256
"""Characters of the VBIOS versions that a report keeps: of GPUs of one model they are alike."""
RETRY_SECONDS = 30.0
DRAIN_SECONDS = 600.0
"""After a cordon a drain may be under way: a pod that comes now is evicted, or keeps the drain waiting.
Chosen by this project: drains mostly end within minutes, and a node may be cordoned for days."""
MAX_GPUS = 16
"""GPUs listed one by one: no machine has more, and a report stays a few KiB; the count covers the rest."""
REQUESTS = {"cpu": "10m", "memory": "32Mi"}
LIMITS = {"cpu": "1", "memory": "256Mi"}
DEADLINE_SHARE = 0.8
"""The probe ends itself a little before the kubelet would, so that its message arrives."""


class HealthKind(ProbeKind):
    """Runs on every selected node, also if it was cordoned some time ago (promise 7, docs/promises.md)."""

    name = names.PROBE_HEALTH
    rules = HEALTH_RULES
    labels = LABELS
    pool = Pool(name="health", setting=lambda budget: budget.concurrent_probes)
    ignores_background = True

    @staticmethod
    def peer_value(status: ReportStatus) -> tuple[str, float] | None:
        """The SM clock at work in MHz."""
        return (status.clock.fingerprint, float(status.clock.sm_mhz)) if status.clock.sm_mhz else None

    def deadline(self, policy: Policy) -> float:
        return seconds(policy.spec.probes.health.deadline)

    def due_at(self, context: Context) -> float:
        """At once: never run, requested, rebooted.  A run that read nothing is repeated after 30 s, then
        twice that each time, up to the interval.  Soon after one that a gate counts, and when time alone
        ends a finding.  But for the first, none while the node may be drained.  In mode Watch a first or
        regular reading is left to the container on the node for as long as that may take, also after an
        outage, in which all become overdue."""
        policy = context.policy
        if not policy.spec.probes.health.enabled or not context.may_run:
            return NEVER
        probe = context.status.probe[self.name]
        if wanted_now(context, probe):
            left_to_watch = policy.watches and not requested(context, probe)
            return watch.expected_by(context) if left_to_watch else AT_ONCE
        if policy.watches and not context.watch_since:
            return NEVER  # what its container reported is not known yet
        interval = watch.overdue_after(policy) if policy.watches else policy.interval_of(self.name)
        if probe.unread:
            wait = backed_off(probe, first=RETRY_SECONDS, most=interval)
        else:
            wait = gates.recheck_after(
                context.status.gates, policy=policy, read_at=probe.read_at, incidents=context.incidents
            )
            wait = min(wait, _xids_end_at(context, probe) - finished_at(probe))
        drained_at = context.cordoned_since + DRAIN_SECONDS if context.cordoned_since else 0.0
        regular = policy.watches and wait >= interval
        brought_by = context.since + watch.start_grace(policy) if regular else 0.0
        return max(finished_at(probe) + min(wait, interval), drained_at, brought_by)

    def ending(self, pod: PodView, context: Context) -> RunEnd | None:
        """A result that waited for longer than an interval, for an operator that was away, is not news.  A
        pod that found no place says what the node lacks, such as whole GPUs where MIG divides all of them."""
        end = super().ending(pod, context)
        if end is not None and not pod.scheduled and context.access is DriverAccess.DRA:
            lacks = gap(context.node, context.access)
            return replace(end, message=f"{lacks}; {end.message}") if lacks else end
        age = context.now - end.finished_at if end is not None and end.finished_at else 0.0
        if end is None or age <= context.policy.interval_of(self.name):
            return end
        message = f"the run ended {age:.0f} s ago, longer than an interval: it is made again"
        return RunEnd(outcome=Outcome.UNKNOWN, reason="ResultTooOld", message=message)

    def news(self, context: Context) -> EndedRun | None:
        return watch.reading(context)

    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        template, health = context.policy.spec.pod_template, context.policy.spec.probes.health
        body = container(context, run)
        deadline = max(1.0, seconds(health.deadline) * DEADLINE_SHARE)
        body |= {
            "image": self.image(context),
            "command": ["python", "-m", "nodegauge_probes", self.name],
            "args": [f"--window={seconds(health.window):g}", f"--deadline={deadline:g}"],
            "env": [
                *body["env"],
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
            ],
            "resources": {
                kind: own | context.defaults.resources.get(kind, {}) | template.resources.get(kind, {})
                for kind, own in (("requests", REQUESTS), ("limits", LIMITS))
            },
        }
        return with_kernel_log(context.policy, {"containers": [body]})

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        status, node, result = context.status, context.node, ended.end.result
        if result is None:
            return _after_failure(context, ended)
        ended_at = min(ended.end.finished_at or context.now, context.now)
        judgement = judge_health(
            result,
            thresholds=context.policy.spec.thresholds,
            history=History.decode(status.probe[self.name].history),
            node=NodeFacts.from_node(
                labels=node.labels,
                capacity={names.GPU_RESOURCE: node.gpus_counted},
                expected_gpus=context.policy.spec.expected_gpus or None,
                power=context.policy.spec.power_inventory,
                xids=tuple(xid_rule.rule() for xid_rule in context.policy.spec.xids),
                versions=status.versions.as_read,
                access=context.access,
            ),
            interval=context.policy.interval_of(self.name),
            peers=context.peers.get(self.name, no_peers),
            fleet=context.fleet,
            known=status.gpus.known(),
            chassis=bmc.lately(context),
            read_at=ended_at,
        )
        if judgement.readable:
            return node_class.after_health(context, _after_reading(context, ended, judgement))
        end = RunEnd(outcome=Outcome.UNKNOWN, reason="NotReadable", message=_why_unread(judgement))
        return _after_failure(context, replace(ended, end=end), judgement)

    def event_suffix(self, before: ReportStatus, after: ReportStatus) -> str:
        if not before.probe[self.name].read_at:
            return ""
        change = shown_change("Interconnect", _interconnect(before), _interconnect(after))
        return f" {change}." if change else ""


def _why_unread(judgement: Judgement) -> str:
    """Why a result could not be judged, and the next step."""
    step = next((f.message.rpartition(NEXT)[2] for f in judgement.findings if NEXT in f.message), "")
    return f"{judgement.summary}{NEXT}{step}" if step else judgement.summary


def _after_failure(context: Context, ended: EndedRun, judgement: Judgement | None = None) -> ReportStatus:
    """After a run that read nothing; `judgement`: why its result could not be judged."""
    findings = judgement.findings if judgement is not None else None
    probe = probe_status.unread(context, names.PROBE_HEALTH, ended, findings=findings)
    if judgement is not None and (judgement.history.xids or judgement.history.reported):
        probe = replace(probe, history=judgement.history.encode())
    driver = judgement.driver if judgement is not None else ""
    noted = unreadable.noted(context, ended, findings or (), driver=driver)
    after = replace(context.status, probes=context.status.with_probe(replace(probe, unreadable=noted)))
    return replace(after, gates=unreadable.gates_after(context, after, ended.end, findings or ()))


def _after_reading(context: Context, ended: EndedRun, judgement: Judgement) -> ReportStatus:
    status, policy = context.status, context.policy
    reading = Reading(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        history=judgement.history.encode(),
        coverage=judgement.coverage.text if judgement.coverage is not None else "",
    )
    probe = probe_status.read(context, names.PROBE_HEALTH, ended, reading)
    gates_after = gates.after_run(status.gates, judgement, policy=policy.spec.hysteresis, now=context.now)
    passed = probe.verdict in (Verdict.PASS, Verdict.WARN)
    ends_unvalidated = passed and policy.spec.taints.unvalidated_until is Until.HEALTH
    interconnect, clock, versions = judgement.interconnect, judgement.clock, _versions(context, judgement)
    return replace(
        status,
        verdict=probe.verdict,
        summary=probe.summary,
        probes=status.with_probe(probe),
        interconnect=InterconnectStatus(
            klass=interconnect.klass or "",
            nvlink_gbps=interconnect.nvlink_gbps,
            evidence=interconnect.evidence or "",
            reason=interconnect.reason,
            message=cut(interconnect.message, probe_status.MAX_TEXT),
        ),
        gpus=GpusStatus(
            count=len(judgement.gpus),
            product=judgement.product,
            driver=judgement.driver,
            items=list(judgement.gpus[:MAX_GPUS]),
            missing=_missing(status.gpus, judgement)[:MAX_GPUS],
        ),
        gates=gates_after,
        throttle_judged_at=gates.throttle_judged_at(
            status.throttle_judged_at, gates_after, judgement=judgement, now=context.now
        ),
        psu=judgement.psu.value if judgement.psu else "",
        clock=ClockStatus(sm_mhz=clock.mhz, fingerprint=clock.fingerprint) if clock else status.clock,
        versions=versions,
        days=noted(status.days, _figures(status, judgement, versions), now=context.now),
        passed_at=status.passed_at or (probe.read_at if ends_unvalidated else ""),
    )


def _figures(before: ReportStatus, judgement: Judgement, versions: VersionsStatus) -> Day:
    """What the day's text has of a reading; versions only where they changed."""
    celsius = [gpu.celsius for gpu in judgement.gpus if gpu.celsius is not None]
    known = before.versions
    return Day(
        hottest=max(celsius, default=None),
        throttled=judgement.slowed_seconds,
        gpus=len(judgement.gpus),
        of=judgement.coverage.of_gpus if judgement.coverage is not None else None,
        driver=versions.driver if versions.driver != known.driver else "",
        vbios=versions.vbios if versions.vbios != known.vbios else "",
        kernel=versions.kernel if versions.kernel != known.kernel else "",
    )


def _versions(context: Context, judgement: Judgement) -> VersionsStatus:
    """What the node runs, with the time from which it is known to run all of it."""
    before, now = context.status.versions, judgement.versions
    read = VersionsStatus(
        klass=judgement.klass,
        driver=now.driver,
        vbios=cut(now.vbios, MAX_VERSIONS),
        kernel=now.kernel,
        since=before.since or stamp(context.now),
    )
    return read if replace(read, since=before.since) == before else replace(read, since=stamp(context.now))


def _xids_end_at(context: Context, probe: ProbeStatus) -> float:
    """When a finding of the policy's rules about Xids ends by itself, epoch seconds; `NEVER` if none stands.

    The judge's clock starts with the boot, and may be behind by `SAME_BOOT`."""
    rules = [xid_rule.rule() for xid_rule in context.policy.spec.xids]
    if not rules or all(finding.code != "xid" for finding in probe.findings):
        return NEVER
    history = History.decode(probe.history) or History()
    at = ends_at(history.xids, rules, after=finished_at(probe) - SAME_BOOT)
    return NEVER if at is None else at + SAME_BOOT


def _missing(before: GpusStatus, judgement: Judgement) -> list[GpuIdentity]:
    """GPUs that were read before and are not there now, for as long as the judge misses them."""
    here = {gpu.uuid for gpu in judgement.gpus}
    missed = [uuid_start(key) for key in judgement.history.gpus]
    return [
        GpuIdentity(index=gpu.index, uuid=gpu.uuid, serial=gpu.serial, pci=gpu.pci)
        for gpu in before.known()
        if gpu.uuid and gpu.uuid not in here and gpu.uuid.startswith(tuple(missed))
    ]


def _interconnect(status: ReportStatus) -> str:
    klass, gbps = status.interconnect.as_reported
    return (klass or "none") + (f" {gbps} GB/s" if gbps is not None else "")
