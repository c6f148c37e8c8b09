"""The NCCL probe: collectives over all GPUs of an idle node, and what their bandwidth changes in the report.

It touches its own probe, the bandwidth, and the gates that it answers for.  What NVML reports of the node
belongs to the health probe; `nccl_status.with_agreement` joins the two.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_judge import History
from nodegauge_judge.nccl.judge import NCCL_RULES, judge_nccl
from nodegauge_judge.nccl.measurement import Agreement, NcclJudgement
from nodegauge_judge.peers import no_peers
from nodegauge_operator import names
from nodegauge_operator.api.node_history import Day, noted
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.api.report import ProbeStatus, ReportStatus
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core import gates, gpu_eligibility, probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.probes import kind, nccl_status, node_class, whole_node
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.whole_node import WholeNodeKind, runs_in_vain, unreadable

SHM_GIB = 4
"""NCCL's host buffers are in /dev/shm if seccomp forbids it cuMem (NCCL's misc/cudawrap.cc); a runtime's
default of 64 MiB is too small.  It counts as the pod's memory, so the memory limit includes it."""
NO_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "ContainerCreating",
    "NotStarted",
)
"""Reasons of a pod that never started because its image is not on the node (any more)."""


class NcclKind(WholeNodeKind):
    """Holds every GPU of the node for minutes."""

    name = names.PROBE_NCCL
    title = "NCCL probe"
    fewest_gpus = 2
    rules = NCCL_RULES
    labels = (*node_class.LABELS, *nccl_status.LABELS)

    @staticmethod
    def peer_value(status: ReportStatus) -> tuple[str, float] | None:
        """all_reduce bus bandwidth in GB/s."""
        gbps = status.bandwidth.all_reduce
        return None if gbps is None else (status.bandwidth.fingerprint, float(gbps))

    def asked_for(self, context: Context) -> bool:
        """Where there is an image for it."""
        return bool(image(context))

    def same_machine(self, context: Context) -> bool:
        """Also the same boot: a reboot may bring other links up."""
        rebooted = context.rebooted_since(context.status.probe[self.name])
        return not rebooted and super().same_machine(context)

    def measured_on(self, status: ReportStatus) -> str:
        return status.bandwidth.hardware

    def deadline(self, policy: Policy) -> float:
        return seconds(policy.spec.probes.nccl.deadline)

    def due_at(self, context: Context) -> float:
        return self.next_measurement_at(context) if image_is_there(context) else NEVER

    def next_measurement_at(self, context: Context) -> float:
        """When the GPUs may be measured again, whether or not the image has to be pulled first.

        Never: without an NCCL image, without a health reading of this boot, and where no NCCL run can be
        made.  A run that read nothing, or found the GPUs taken, is repeated after `recheck`, then twice that
        each time, up to the interval.
        """
        if not self.asked_for(context) or not self.may_hold(context):
            return NEVER
        policy, probe = context.policy, context.status.probe[self.name]
        if kind.wanted_now(context, probe):
            return kind.AT_ONCE
        if probe.unread:
            return kind.finished_at(probe) + recheck_delay(probe, policy)
        return kind.finished_at(probe) + _wait_after_reading(context, probe)

    def waits_since(self, context: Context) -> float:
        """Never measured goes first, then measured longest ago."""
        return last_measured_at(context.status)

    def image(self, context: Context) -> str:
        return image(context)

    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        probe, deadline = context.policy.spec.probes.nccl, self.deadline(context.policy)
        return whole_node.pod_parts(
            context,
            run,
            image=image(context),
            probe=self.name,
            args=[
                f"--engine={probe.engine.value}",
                f"--processes={probe.processes.value}",
                f"--deadline={deadline * whole_node.DEADLINE_SHARE:g}",
                f"--environment={msgspec.json.encode(probe.environment, order='sorted').decode()}",
            ],
            shm_gib=SHM_GIB,
        )

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        judgement, status = _judge(context, ended), context.status
        if judgement is not None and not judgement.readable:
            ended = replace(ended, end=unreadable(judgement))
        if judgement is None or not judgement.readable:
            probes = status.with_probe(probe_status.unread(context, self.name, ended))
            after = replace(status, probes=probes)
            return _without_image(after) if ended.end.reason in NO_IMAGE else after
        probe = probe_status.read(context, self.name, ended, nccl_status.reading_of(judgement))
        measured = replace(
            nccl_status.measured(judgement, context.policy),
            boot_id=probe.boot_id,
            hardware=gpu_eligibility.hardware(status.gpus),
        )
        numbers = context.policy.spec.hysteresis
        figures = Day(
            all_reduce=measured.all_reduce,
            all_gather=measured.all_gather,
            reduce_scatter=measured.reduce_scatter,
        )
        after = replace(
            status,
            probes=status.with_probe(probe),
            bandwidth=nccl_status.still_contradicted(status.bandwidth, measured),
            days=noted(status.days, figures, now=context.now),
            gates=gates.after_run(
                status.gates, judgement, policy=numbers, now=context.now, probe=names.PROBE_NCCL
            ),
        )
        return node_class.after_nccl(context, self._with_agreement(context.after(after)))

    def at_look(self, context: Context) -> ReportStatus:
        """The last measurement as the policy grades it now, and what it says of the interconnect."""
        return self._with_agreement(context.after(nccl_status.regraded(context)))

    def at_condition(self, status: ReportStatus) -> str:
        return nccl_status.missing_label_sentence(status)

    def _with_agreement(self, context: Context) -> ReportStatus:
        why, wanted = self.hindrance(context), self.is_wanted(context)
        return nccl_status.with_agreement(context, why=why, wanted=wanted)

    def event_suffix(self, before: ReportStatus, after: ReportStatus) -> str:
        change = kind.shown_change("Interconnect label", _label(before), _label(after))
        why = f": {after.interconnect.message}" if after.interconnect.reported else ""
        return f" {change}{why}." if change else ""


def image(context: Context) -> str:
    """The image of NCCL runs: the policy's, or else the installation's; empty for no NCCL runs."""
    policy = context.policy.spec
    own = policy.pod_template.nccl_image or context.defaults.nccl_image
    return own if policy.probes.nccl.enabled else ""


def _wait_after_reading(context: Context, probe: ProbeStatus) -> float:
    """Seconds from a readable run to the next: the interval, or less if something waits for a measurement."""
    status, policy = context.status, context.policy
    recheck = seconds(policy.spec.probes.nccl.recheck)
    waits = [policy.interval_of(names.PROBE_NCCL)]
    if status.bandwidth.again or not gpu_eligibility.same_hardware(status.bandwidth.hardware, status.gpus):
        waits.append(recheck)
    offered = gpu_eligibility.allocatable(context.node, context.access)
    if status.bandwidth.gpus < status.bandwidth.of <= offered:
        waits.append(recheck * kind.doubled(probe.streak))  # the missing GPUs are back
    if _cleared_by_grading(status, probe) or 0 < status.node_class.runs < policy.spec.hysteresis.enter_runs:
        waits.append(recheck)
    leave = policy.spec.hysteresis.leave_runs
    in_vain = runs_in_vain(status.gates, probe=names.PROBE_NCCL, leave=leave)
    if status.bandwidth.agreement == Agreement.CONTRADICTED and not in_vain:
        in_vain.append(probe.streak)  # only a run that agrees brings the label back
    return min(waits + [recheck * kind.doubled(runs) for runs in in_vain])


def _cleared_by_grading(status: ReportStatus, probe: ProbeStatus) -> bool:
    """A gate counts the last run as bad, and the policy of now no longer does: good runs will lift it."""
    codes = {finding.code for finding in probe.findings}
    return any(
        gate.bad and not gate.readable_since and gate.code not in codes
        for gate in status.gates
        if gates.PROBES.get(gate.code) == names.PROBE_NCCL
    )


def recheck_delay(probe: ProbeStatus, policy: Policy) -> float:
    """Seconds to wait after runs that read nothing."""
    first, most = seconds(policy.spec.probes.nccl.recheck), policy.interval_of(names.PROBE_NCCL)
    return kind.backed_off(probe, first=first, most=most)


def image_is_there(context: Context) -> bool:
    """The image of NCCL runs was pulled in this boot: no GPU is held for a pull."""
    pull = context.status.probe[names.PROBE_PULL]
    return pull.image == image(context) and not pull.unread and not context.rebooted_since(pull)


def last_measured_at(status: ReportStatus) -> float:
    """When the node was last measured: a run that found the GPUs taken measured nothing."""
    return status.probe[names.PROBE_NCCL].read_epoch


def _judge(context: Context, ended: EndedRun) -> NcclJudgement | None:
    """The judgement of a run that brought a result; None for any other."""
    if ended.end.result is None:
        return None
    status, by = context.status, nccl_status.grading(context.policy)
    return judge_nccl(
        ended.end.result,
        expectations=by.expectations,
        thresholds=by.thresholds,
        previous=status.probe[names.PROBE_NCCL].history,
        history=History.decode(status.probe[names.PROBE_HEALTH].history),
        node=nccl_status.facts(context.node),
        peers=context.peers.get(names.PROBE_NCCL, no_peers),
        known=status.gpus.known(),
        environment=context.policy.spec.probes.nccl.environment,
    )


def _without_image(status: ReportStatus) -> ReportStatus:
    """The image has to be pulled again before GPUs are held."""
    pull = status.probe[names.PROBE_PULL]
    return replace(status, probes=status.with_probe(replace(pull, image=""))) if pull.image else status


def _label(status: ReportStatus) -> str:
    interconnect = status.interconnect
    return f"{interconnect.klass} ({interconnect.evidence})" if interconnect.klass else "none"
