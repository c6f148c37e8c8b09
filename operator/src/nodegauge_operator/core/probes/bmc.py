"""What a node's BMC says: a run without a pod.  The BMC reader writes a ChassisReading; each reading in it is
judged once.

It answers for its own gates and for the label `psu`, and touches nothing of what NVML or NCCL measured.  A
BMC that no longer answers leaves a reading that goes stale, and nothing worse.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract.chassis import HARDWARE, THERMAL, BoardGpu, ChassisReading
from nodegauge_judge import Answer, Psu, Verdict
from nodegauge_judge.bmc_witness import slowdown
from nodegauge_judge.case import number
from nodegauge_judge.chassis.judge import CHASSIS_RULES, ChassisJudgement, judge_chassis
from nodegauge_judge.coverage import still_says
from nodegauge_operator import names
from nodegauge_operator.api.node_history import Day, noted
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus, Run
from nodegauge_operator.api.times import SKEW_SECONDS, stamp, unstamp
from nodegauge_operator.core import gates, probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.label import Label
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.probes.kind import EndedRun, Kind

RENEWED_SHARE = 0.5
"""A reading that says nothing new renews the report once the last one is older than this share of its age
limit.  Chosen by this project: a quiet BMC then costs a third of the writes."""
SLOWED_SECONDS = 1.0
"""Slowdown between two readings that is worth a word.  Chosen by this project: less is one correction."""
WORST_FIRST = (Psu.FAULT, Psu.REDUNDANCY_LOST, Psu.OK)


class BmcMemory(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the report keeps of a BMC's reading (`ProbeStatus.history`): `psu` is the supplies in one word,
    `board` the GPUs as their baseboard sees them, in a sentence."""

    psu: str = ""
    board: str = ""


def _psu(context: Context, status: ReportStatus) -> str:
    """The worst that fresh readings say of the supplies: by hwmon and NVML, and by the BMC; empty if none
    does."""
    states = [
        text
        for probe, text in (
            (names.PROBE_HEALTH, status.psu),
            (names.PROBE_BMC, memory(status.probe[names.PROBE_BMC]).psu),
        )
        if probe not in context.stale and status.probe[probe].read_at
    ]
    return next((psu.value for psu in WORST_FIRST if psu.value in states), "")


def memory(probe: ProbeStatus) -> BmcMemory:
    """What the report keeps; nothing if somebody broke it."""
    try:
        return msgspec.json.decode(probe.history or "{}", type=BmcMemory)
    except msgspec.DecodeError:
        return BmcMemory()


PSU = Label(
    key=names.PREFIX + "psu",
    values="ok | redundancy-lost | fault",
    meaning=(
        "State of the power supplies: by sensors of the node, by NVML and by the BMC; the worst "
        "counts. ok: supplies were read and report no fault. redundancy-lost: by the BMC, one is out "
        "and the others carry the machine. fault: a supply or a rail is bad, or a power brake keeps the "
        "GPUs from what they need, whatever is to blame for it (`nodegauge explain` says which). Absent: "
        "nothing could be read."
    ),
    value=_psu,
    history="power supplies",
)


class BmcKind(Kind):
    """Readings of the BMC reader."""

    name = names.PROBE_BMC
    title = "BMC"
    needs_node = False
    rules = CHASSIS_RULES
    labels = (PSU,)

    def interval(self, context: Context) -> float:
        """The installation's, whatever the policy says."""
        return context.defaults.bmc_interval

    run_interval = interval

    def news(self, context: Context) -> EndedRun | None:
        """A reading that was not judged yet; None if there is none, or it says nothing new.

        A reading from before the last one (the object was made anew, or edited), or one that would be stale
        at once, is none.
        """
        seen, before = context.chassis, context.status.probe[self.name]
        if seen is None or not seen.reading or not context.policy.spec.probes.bmc.enabled:
            return None
        read_at, identity = min(seen.read_at, context.now), f"{seen.uid}/{seen.number}"
        judged = before.last_run is not None and before.last_run.pod_uid == identity
        older = context.now - read_at > context.stale_seconds_of(self.name)
        if judged or older or context.policy.paused or read_at <= before.read_epoch:
            return None
        run = Run(number=before.next_number, pod_uid=identity, started_at=stamp(read_at))
        end = RunEnd(outcome=Outcome.READ, reason="Read", finished_at=read_at)
        ended = EndedRun(run=run, end=end)
        return ended if self._is_news(context, self.after_run(context, ended)) else None

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        status, policy = context.status, context.policy
        assert context.chassis is not None, "its reading is the run"
        reading = msgspec.json.decode(context.chassis.reading, type=ChassisReading)
        judgement = judge_chassis(reading, thresholds=policy.spec.thresholds)
        before, numbers = status.probe[self.name], policy.spec.hysteresis
        after = gates.after_run(
            status.gates, judgement, policy=numbers, now=context.now, probe=names.PROBE_BMC
        )
        if judgement.verdict is Verdict.UNKNOWN and judgement.psu is None:
            # what was read of its rails may still lift a taint, or nothing ever would
            kept = after if Answer.GOOD in judgement.answers.values() else status.gates
            end = replace(ended.end, outcome=Outcome.UNKNOWN, reason="NotReadable", message=judgement.summary)
            unread = probe_status.unread(
                context, self.name, replace(ended, end=end), findings=judgement.findings
            )
            return replace(status, probes=status.with_probe(unread), gates=kept)
        probe = probe_status.read(context, self.name, ended, _reading(reading, judgement, before))
        days = noted(status.days, Day(spare=_spare(judgement)), now=context.now)
        return replace(status, probes=status.with_probe(probe), gates=after, days=days)

    def of_unread_node(self, context: Context) -> str | None:
        """What the BMC still sees of the GPUs."""
        gpus = memory(context.status.probe[self.name]).board
        return f"Its baseboard shows {gpus}." if gpus else ""

    def _is_news(self, context: Context, after: ReportStatus) -> bool:
        """Whether somebody would see a difference, or the last reading has to be renewed."""
        old, new = context.status.probe[self.name], after.probe[self.name]
        if _shown(old) != _shown(new) or after.gates != context.status.gates:
            return True
        age = context.now - unstamp(old.read_at or old.since)
        return age >= RENEWED_SHARE * context.stale_seconds_of(self.name)


def lately(context: Context) -> ChassisReading | None:
    """What the node's BMC said while that counts: the second witness of what NVML shows."""
    seen = context.chassis
    if seen is None or not seen.reading or not context.policy.spec.probes.bmc.enabled:
        return None
    age = context.now - seen.read_at
    if not -SKEW_SECONDS <= age <= context.stale_seconds_of(names.PROBE_BMC):
        return None
    return msgspec.json.decode(seen.reading, type=ChassisReading)


def _reading(reading: ChassisReading, judgement: ChassisJudgement, before: ProbeStatus) -> Reading:
    kept = BmcMemory(psu=judgement.psu.value if judgement.psu else "", board=board(reading.gpus))
    return Reading(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        history=msgspec.json.encode(kept).decode(),
        coverage=before.coverage if still_says(before.coverage, judgement.coverage) else judgement.coverage,
    )


def _spare(judgement: ChassisJudgement) -> int | None:
    """Watts that the working supplies could give beyond what the machine draws; None if not known."""
    capacity, load = judgement.capacity_watts, judgement.load_watts
    return None if capacity is None or load is None else capacity - load


def board(gpus: list[BoardGpu]) -> str:
    """`8 GPUs, 1 Critical, 2 slowed down by heat or hardware; NVLink: 143 of 144 ports up`; empty where the
    BMC shows no GPUs."""
    if not gpus:
        return ""
    bad = [text for gpu in gpus if (text := gpu.health) in ("Warning", "Critical")]
    parts = [f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"]
    parts += [f"{bad.count(health)} {health}" for health in ("Critical", "Warning") if health in bad]
    slowed = sum(slowdown(gpu, THERMAL, HARDWARE) >= SLOWED_SECONDS for gpu in gpus)
    parts += [f"{slowed} slowed down by heat or hardware"] if slowed else []
    counted = [(number(gpu.ports_up), number(gpu.ports)) for gpu in gpus]
    known = [(up, ports) for up, ports in counted if up is not None and ports is not None]
    if not known:
        return ", ".join(parts)
    up, ports = (sum(column) for column in zip(*known, strict=True))
    return f"{', '.join(parts)}; NVLink: {up:g} of {ports:g} ports up"


def _shown(probe: ProbeStatus) -> tuple[Any, ...]:
    """What a person or a label would show of a reading.  Texts may hold watts of the moment."""
    findings = sorted((f.code, f.severity, f.subject) for f in probe.findings)
    outcome = probe.last_run.outcome if probe.last_run else None
    return (probe.verdict, findings, memory(probe), probe.coverage, outcome)
