"""From the objects of a node to the facts of a ticket.  Pure: no cluster, no clock, no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_cli.explanation import bandwidth
from nodegauge_cli.judging import Criteria, judged, regraded
from nodegauge_cli.reported import Reported, Unusable
from nodegauge_cli.ticket.facts import (
    Board,
    Changed,
    Excluded,
    Number,
    Observed,
    Problem,
    TicketFacts,
    cleaned,
)
from nodegauge_cli.ticket.fleet import fleet_of, peers_of
from nodegauge_cli.ticket.hardware import boards_of, cuda_of, machine_of, nvswitch_of, xids_of
from nodegauge_cli.ticket.logs import with_commands
from nodegauge_cli.ticket.problems import for_a_vendor, gpus_of, problem_of
from nodegauge_cli.ticket.raw import Object, mapping, word
from nodegauge_cli.ticket.record import transitions_of, versions_of, with_recorded
from nodegauge_contract import Result
from nodegauge_judge import CATALOGUE, Answer, Judgement, Verdict
from nodegauge_judge.chassis.judge import judge_chassis
from nodegauge_operator import names
from nodegauge_operator.api.chassis import Chassis
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.node_history import NodeHistory, all_days
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core import override
from nodegauge_operator.core.faults import OF_SUPPLIES, faults, supplies

GATES = " Gates: "
"""Before the part of a summary that may name who overrode the node (`core.wording`)."""


class Sources(Struct, frozen=True, kw_only=True):
    """What was found of one node."""

    node: str
    """Its name."""
    reported: Reported
    """Its report, with its reading."""
    body: Object | None = None
    """The Node; None if it was not read."""
    chassis: Chassis | None = None
    """What its BMC said; None if it was not read."""
    history: NodeHistory | None = None
    """Its history; None if it was not read."""
    policy: Policy
    """The policy that it follows, or one with the defaults."""
    criteria: Criteria
    """What that policy judges by."""
    others: Sequence[Object] | None = None
    """NodeReports of the other nodes; None if they were not read."""
    unread: tuple[str, ...] = ()
    """Objects that could not be read, and why."""
    chosen: str = ""
    """Code of the fault that the ticket is about; empty for the worst."""


def collect(sources: Sources) -> TicketFacts:
    """The facts of a node that has a report."""
    status, results = sources.reported.report.status, sources.reported.results
    health = results.get(names.PROBE_HEALTH)
    known = for_a_vendor(
        faults(status, policy=override.applied(sources.policy, status.override), node=sources.node),
        chosen=sources.chosen,
    )
    boards = boards_of(status, health, accused=gpus_of(known[0]) if known else [])
    problems = [_problem(fault, status, boards) for fault in known]
    first = problems[0] if problems else None
    chassis = sources.chassis.reading if sources.chassis is not None else None
    judgements, faulty = _judgements(sources), {fault.code for fault in known}
    open_codes = OF_SUPPLIES if supplies(status, known) else frozenset()
    facts = cleaned(
        TicketFacts(
            node=sources.node,
            source=list(_source(sources)),
            verdict=status.verdict.value,
            summary=status.summary.partition(GATES)[0],
            machine=machine_of(status, sources.body or {}, chassis, health),
            product=status.gpus.product,
            count=status.gpus.count,
            driver=status.gpus.driver or status.versions.driver,
            cuda=cuda_of(health),
            vbios=status.versions.vbios,
            boards=boards,
            faults=problems,
            xids=with_recorded(xids_of(status, health), sources.history, boards),
            observed=[_observed(probe) for probe in status.probes if probe.name != names.PROBE_PULL],
            fleet=fleet_of(sources.others, ("versions", "class"), status.versions.klass, first),
            peers=list(peers_of(status, sources.others or ())),
            changes=list(_changes(sources, since=first.last_good if first else "")),
            tried=list(_tried(sources, first)),
            excluded=_excluded(judgements, faulty | open_codes),
            numbers=list(_numbers(sources, health, known)),
            gaps=list(_gaps(sources, judgements, faulty)),
        )
    )
    return with_commands(facts, nvswitch=nvswitch_of(health))


def _source(sources: Sources) -> Iterator[str]:
    yield names.REPORT_KIND
    if sources.reported.results:
        yield names.READING_KIND
    yield from ["Node"] if sources.body is not None else []
    yield from [names.CHASSIS_KIND] if sources.chassis is not None else []
    yield from [names.HISTORY_KIND] if sources.history is not None else []


def _problem(fault: Fault, status: ReportStatus, boards: Sequence[Board]) -> Problem:
    """The fault, with what its gate and the findings of the report add."""
    gate = next((gate for gate in status.gates if gate.code == fault.code), None)
    evidence = (
        str(finding.evidence.get("xids", ""))
        for probe in status.probes
        for finding in probe.findings
        if finding.code == fault.code
    )
    return replace(
        problem_of(fault, boards),
        bad_runs=gate.bad if gate is not None else 0,
        relapses=gate.relapses if gate is not None else 0,
        last_good=_last_good(status, fault, gate.good_at if gate is not None else ""),
        xids=sorted({int(word) for text in evidence for word in text.split(", ") if word.isdecimal()}),
    )


def _last_good(status: ReportStatus, fault: Fault, good_at: str) -> str:
    """The last run of its probe before the fault that is known to be good: as its gate knows it, else one
    that turned the verdict to a good one, else the first health run that passed; empty if none is known."""
    good = Verdict.PASS.value  # a first bad run turns it to a warning
    turned = [
        each.at
        for each in status.transitions
        if each.what == "verdict" and each.to == good and each.probe == fault.probe
    ]
    passed = status.passed_at if fault.probe == names.PROBE_HEALTH else ""
    times = [at for at in (good_at, passed, *turned) if at]
    known = [at for at in times if not fault.since or unstamp(at) < unstamp(fault.since)]
    return max(known, key=unstamp, default="")


def _observed(probe: ProbeStatus) -> Observed:
    last = probe.last_run
    why = f": {last.reason}. {last.message}" if last is not None and last.outcome is not Outcome.READ else ""
    return Observed(
        probe=probe.name,
        runs=last.number if last is not None else 0,
        read_at=probe.read_at,
        verdict=probe.verdict.value,
        streak=probe.streak,
        since=probe.since,
        coverage=probe.coverage,
        failing=f"since {probe.failing_since}{why}".rstrip() if probe.failing_since else "",
    )


def _changes(sources: Sources, *, since: str) -> Iterator[Changed]:
    """Versions and transitions since then; all of them if no good run is known."""
    status, start = sources.reported.report.status, unstamp(since)
    changes = [each for each in transitions_of(status.transitions) if unstamp(each.at) > start]
    versions = versions_of(all_days(sources.history, status.days), since=since)
    yield from sorted([*changes, *versions], key=lambda change: change.at)


def _tried(sources: Sources, fault: Problem | None) -> Iterator[str]:
    status = sources.reported.report.status
    gate = next((gate for gate in status.gates if fault is not None and gate.code == fault.code), None)
    if gate is not None and gate.relapses:
        times = "once" if gate.relapses == 1 else f"{gate.relapses} times"
        yield f"The fault came back {times} after its taint was lifted, last lifted at {gate.left_at}."
    info = mapping(mapping((sources.body or {}).get("status")).get("nodeInfo"))
    read, now = status.probe[names.PROBE_HEALTH].boot_id, word(info.get("bootID"))
    if read and now:
        since = "was booted again after" if read != now else "has not been rebooted since"
        yield f"The node {since} the last health reading."


class Answers(Struct, frozen=True, kw_only=True):
    """What a new look at the last readings says of every finding with a gate."""

    answers: dict[str, Answer] = {}
    gaps: tuple[str, ...] = ()


def _judgements(sources: Sources) -> Answers:
    """The readings judged again, each alone: a counter's growth needs two, and stays open."""
    answers: dict[str, Answer] = {}
    gaps = list(sources.reported.unreadable)
    for probe, result in sources.reported.results.items():
        if probe == names.PROBE_PULL:
            continue
        try:
            judgement = judged(result, sources.criteria)
        except Unusable as error:
            gaps.append(f"{probe}: {error}")
            continue
        answers |= getattr(judgement, "answers", {})
        if isinstance(judgement, Judgement) and judgement.coverage is not None:
            gaps += judgement.coverage.gaps
    status = sources.reported.report.status
    if names.PROBE_NCCL not in sources.reported.results and status.probe[names.PROBE_NCCL].history:
        answers |= regraded(sources.reported, sources.criteria).answers
    if sources.chassis is not None and sources.chassis.reading is not None:
        answers |= judge_chassis(sources.chassis.reading, thresholds=sources.criteria.thresholds).answers
    return Answers(answers=answers, gaps=tuple(gaps))


def _excluded(judgements: Answers, faulty: set[str]) -> list[Excluded]:
    return [
        Excluded(code=code, title=CATALOGUE[code].title)
        for code, answer in judgements.answers.items()
        if answer is Answer.GOOD and code not in faulty
    ]


def _numbers(sources: Sources, health: Result | None, known: Sequence[Fault]) -> Iterator[Number]:
    status = sources.reported.report.status
    if status.psu:
        yield Number(what="power supplies", value=supplies(status, known) or status.psu)
    hot = [(gpu.celsius, gpu.index) for gpu in status.gpus.items if gpu.celsius is not None]
    if hot:
        celsius, index = max(hot)
        yield Number(what="hottest GPU", value=f"{celsius} °C (GPU {index})")
    links = [gpu.pcie for gpu in health.gpus if isinstance(gpu.pcie.width, int)] if health is not None else []
    if links:
        full = [link for link in links if link.width == link.max_width]
        value = f"{len(full)} of {len(links)} GPUs at full width"
        widths = sorted({link.width for link in links if isinstance(link.width, int)})
        yield Number(what="PCIe", value=f"{value} (x{', x'.join(map(str, widths))})")
    if status.interconnect.message:
        yield Number(what="interconnect", value=status.interconnect.message)
    if status.throttle_judged_at:
        yield Number(what="throttling", value=f"none under load, judged at {status.throttle_judged_at}")
    if status.bandwidth.message:
        yield Number(what="collectives", value=bandwidth(status, known))
    if sources.chassis is not None and sources.chassis.reading is not None:
        bmc = judge_chassis(sources.chassis.reading, thresholds=sources.criteria.thresholds)
        covered = f" ({bmc.coverage})" if bmc.coverage else ""
        yield Number(what="BMC", value=f"{bmc.summary}{covered}")


def _gaps(sources: Sources, judgements: Answers, faulty: set[str]) -> Iterator[str]:
    """What a reader might take for good because nothing is said of it."""
    status, results = sources.reported.report.status, sources.reported.results
    yield from sources.unread
    yield from judgements.gaps
    if names.PROBE_HEALTH not in results:
        yield "No health reading: counters, Xids and firmware of each board are unknown."
    for probe, part in ((names.PROBE_NCCL, status.bandwidth), (names.PROBE_LOAD, status.load)):
        if not status.probe[probe].read_at:
            why = f" {part.detail.rstrip('.')}." if part.detail else ""
            yield f"The {probe} probe never ran here.{why}"
    if sources.chassis is None and not status.psu:
        yield "No power supply and no BMC was read."
    for answer, why in (
        (Answer.NO_LOAD, "Not judged, the GPUs were idle"),
        (Answer.UNSURE, "Not judged by the last reading alone"),
    ):
        codes = [code for code, each in judgements.answers.items() if each is answer and code not in faulty]
        if codes:
            yield f"{why}: {', '.join(codes)}."
