"""The load probe: all GPUs of an idle node at full power, and what that changes in the report.

It touches its own probe, `status.load`, and the gates that it answers for.  It needs no image of its own: the
driver's libcuda comes with the NVIDIA runtime (ADR 0026).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nodegauge_judge.loadtest_rules.judge import LOAD_RULES, LoadJudgement, judge_load
from nodegauge_judge.loadtest_rules.offload import OffloadReading
from nodegauge_judge.peers import no_peers
from nodegauge_operator import names
from nodegauge_operator.api.load_status import LoadStatus
from nodegauge_operator.api.node_history import Day, noted
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.api.times import NEVER, stamp, unstamp
from nodegauge_operator.core import gates, gpu_eligibility, probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.probes import kind, offload, whole_node
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.pod import with_nvme


class LoadKind(whole_node.WholeNodeKind):
    """Holds every GPU of the node and works them as hard as they can."""

    name = names.PROBE_LOAD
    title = "Load probe"
    fewest_gpus = 1
    rules = LOAD_RULES
    labels = offload.LABELS

    @staticmethod
    def peer_value(status: ReportStatus) -> tuple[str, float] | None:
        """Computing speed of the median GPU under load in TFLOPS."""
        return (status.load.fingerprint, status.load.tflops) if status.load.tflops else None

    def measured_on(self, status: ReportStatus) -> str:
        """A reboot cools nothing: a run counts beyond it."""
        return status.load.hardware

    def deadline(self, policy: Policy) -> float:
        return seconds(policy.spec.probes.load.deadline)

    def due_at(self, context: Context) -> float:
        """Never without a health reading of this boot, and where no run can be made.  At once: requested.
        The first one within an interval, at the node's own time.  A run that brought nothing, or found the
        GPUs taken, is repeated after `recheck`, then twice that each time, up to the interval."""
        policy = context.policy
        settings = policy.spec.probes.load
        if not settings.enabled or not self.may_hold(context):
            return NEVER
        probe = context.status.probe[self.name]
        if kind.requested(context, probe):
            return kind.AT_ONCE
        recheck, interval = seconds(settings.recheck), policy.interval_of(self.name)
        if probe.last_run is None:
            wanted = context.status.load.wanted_since
            return unstamp(wanted) + interval * kind.share_of(context.node.name) if wanted else NEVER
        if probe.unread:
            return kind.finished_at(probe) + kind.backed_off(probe, first=recheck, most=interval)
        in_vain = whole_node.runs_in_vain(
            context.status.gates, probe=names.PROBE_LOAD, leave=policy.spec.hysteresis.leave_runs
        )
        waits = [interval, *(recheck * kind.doubled(runs) for runs in in_vain)]
        if not gpu_eligibility.same_hardware(context.status.load.hardware, context.status.gpus):
            waits.append(recheck)
        return kind.finished_at(probe) + min(waits)

    def waits_since(self, context: Context) -> float:
        """Never loaded goes first, then loaded longest ago."""
        return context.status.probe[self.name].read_epoch

    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        settings = context.policy.spec.probes.load
        deadline = self.deadline(context.policy) * whole_node.DEADLINE_SHARE
        spec = whole_node.pod_parts(
            context,
            run,
            image=self.image(context),
            probe=self.name,
            args=[
                f"--seconds={seconds(settings.duration):g}",
                f"--deadline={deadline:g}",
                f"--stop-below={settings.stop_below}",
            ],
        )
        return with_nvme(context.policy, spec)

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        result = ended.end.result
        if result is None:
            return self._unread(context, ended)
        judgement = judge_load(
            result,
            thresholds=context.policy.spec.thresholds,
            peers=context.peers.get(self.name, no_peers),
            previous=self.peer_value(context.status),
            known=context.status.gpus.known(),
        )
        if judgement.readable:
            return self._read(context, ended, judgement)
        return self._unread(context, replace(ended, end=whole_node.unreadable(judgement)))

    def at_look(self, context: Context) -> ReportStatus:
        """The status with the reason why no run can be made now, since when the first is wanted, and what
        the node has for offload."""
        why, status = self.hindrance(context), context.status
        reason, detail = (why.reason.value, why.detail) if why else ("", "")
        first = self.asked_for(context) and status.probe[self.name].last_run is None
        wanted = (status.load.wanted_since or stamp(context.now)) if first else ""
        load = replace(status.load, reason=reason, detail=detail, wanted_since=wanted)
        looked_at = context.after(replace(status, load=load))
        return replace(looked_at.status, offload=offload.standing(looked_at))

    def _unread(self, context: Context, ended: EndedRun) -> ReportStatus:
        probe = probe_status.unread(context, self.name, ended)
        return replace(context.status, probes=context.status.with_probe(probe))

    def _read(self, context: Context, ended: EndedRun, judgement: LoadJudgement) -> ReportStatus:
        status, numbers = context.status, context.policy.spec.hysteresis
        reading = Reading(verdict=judgement.verdict, summary=judgement.summary, findings=judgement.findings)
        probe = probe_status.read(context, self.name, ended, reading)
        return replace(
            status,
            probes=status.with_probe(probe),
            load=LoadStatus(
                tflops=judgement.tflops,
                power_percent=judgement.power_percent,
                hottest=judgement.hottest,
                gpus=judgement.gpus,
                fingerprint=judgement.fingerprint,
                hardware=gpu_eligibility.hardware(status.gpus),
                reason=status.load.reason,
                detail=status.load.detail,
                offload=_with_earlier_write(judgement.offload, status.load.offload),
            ),
            days=noted(status.days, Day(tflops=judgement.tflops, hottest=judgement.hottest), now=context.now),
            gates=gates.after_run(
                status.gates, judgement, policy=numbers, now=context.now, probe=names.PROBE_LOAD
            ),
        )


def _with_earlier_write(now: OffloadReading, before: OffloadReading) -> OffloadReading:
    """The rate of writing is measured once, when the file is made: it stays while the path does."""
    if now.nvme_write_gbps is not None or now.nvme_path != before.nvme_path:
        return now
    return replace(now, nvme_write_gbps=before.nvme_write_gbps)
