"""From the objects of a node to the facts of a ticket.  Pure: no cluster, no clock, no terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_cli.judging import Criteria, judged, regraded
from nodegauge_cli.reported import Reported, Unusable
from nodegauge_cli.ticket.facts import (
    Board,
    Changed,
    Excluded,
    Fleet,
    Machine,
    Number,
    Observed,
    Peer,
    Problem,
    TicketFacts,
    Xid,
    cleaned,
)
from nodegauge_cli.ticket.logs import asks_for, logs_for
from nodegauge_contract import Gpu, Result, Unavailable
from nodegauge_judge import CATALOGUE, Answer, GpuIdentity, Judgement, Severity, Verdict
from nodegauge_judge.chassis.judge import judge_chassis
from nodegauge_operator import names
from nodegauge_operator.api.chassis import Chassis
from nodegauge_operator.api.node_history import NodeHistory
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus, stamp, unstamp
from nodegauge_operator.core import override
from nodegauge_operator.core.faults import Fault, faults

COUNTERS = {
    "ecc.mode": "ECC (1 is on)",
    "ecc.volatile_uncorrected": "uncorrectable ECC errors since driver load",
    "ecc.volatile_corrected": "correctable ECC errors since driver load",
    "ecc.aggregate_uncorrected": "uncorrectable ECC errors of its life",
    "ecc.aggregate_sram": "of these in SRAM",
    "ecc.aggregate_dram": "of these in DRAM",
    "ecc.aggregate_corrected": "correctable ECC errors of its life",
    "ecc.sram_threshold": "SRAM errors above their limit (1 is yes)",
    "repair.rows_uncorrected": "rows remapped, uncorrectable",
    "repair.rows_corrected": "rows remapped, correctable",
    "repair.rows_pending": "row remap pending (1 is yes)",
    "repair.rows_failed": "row remap failed (1 is yes)",
    "repair.pages_double_bit": "pages retired, double bit",
    "repair.pages_single_bit": "pages retired, single bit",
    "repair.pages_pending": "page retirement pending (1 is yes)",
    "repair.unrepairable": "memory beyond repair (1 is yes)",
    "repair.action": "recovery action (0 is none)",
    "pcie.replays": "PCIe replays",
    "pcie.replay_rollovers": "PCIe replay rollovers",
    "pcie.correctable": "PCIe correctable errors",
    "pcie.recoveries": "PCIe link recoveries",
    "link_errors.replay": "NVLink replays",
    "link_errors.recovery": "NVLink recoveries",
    "link_errors.crc_flit": "NVLink CRC errors, flits",
    "link_errors.crc_data": "NVLink CRC errors, data",
    "link_errors.recovery_failed": "NVLink recoveries that failed",
    "link_errors.effective": "NVLink errors let through",
    "link_errors.symbol": "NVLink symbol errors",
    "link_errors.received": "NVLink packets received in error",
    "link_errors.integrity": "NVLink integrity errors",
}
"""Paths into `nodegauge_contract.Gpu`, and what they are called in a ticket."""
_GETTERS = {path: attrgetter(path) for path in COUNTERS}
MOST_NODES = 10
"""Nodes that a ticket names; further ones are a number.  Chosen by this project."""
_IN_SUBJECT = re.compile(r"GPU (\d{1,4}) \(([0-9a-f:.]{7,16})\)")
REQUESTS = ("recovery-action", "reset-required")
"""Findings that say what the driver wants, not what is broken: a ticket is about another one if it can be."""
_TOLD = "override"
"""A transition that says what a person decided: none of the vendor's business."""
_PEERS = (
    ("bandwidth", "allReduce", "all_reduce bus bandwidth at 1 GiB", "GB/s"),
    ("load", "tflops", "computing speed of the median GPU", "TFLOPS"),
    ("clock", "smMhz", "SM clock at work", "MHz"),
)
"""Parts of a report with a fingerprint, and the number in each that can be compared."""


class Sources(Struct, frozen=True, kw_only=True):
    """What was found of one node."""

    node: str
    """Its name."""
    reported: Reported
    """Its report, with its reading."""
    body: Mapping[str, Any] | None = None
    """The Node; None if it was not read."""
    chassis: Chassis | None = None
    """What its BMC said; None if it was not read."""
    history: NodeHistory | None = None
    """Its history; None if it was not read."""
    policy: Policy
    """The policy that it follows, or one with the defaults."""
    criteria: Criteria
    """What that policy judges by."""
    others: Sequence[Mapping[str, Any]] | None = None
    """NodeReports of the other nodes; None if they were not read."""
    unread: tuple[str, ...] = ()
    """Objects that could not be read, and why."""
    chosen: str = ""
    """Code of the fault that the ticket is about; empty for the worst."""


def collect(sources: Sources) -> TicketFacts:
    """The facts of a node that has a report."""
    status, results = sources.reported.report.status, sources.reported.results
    health = results.get(names.PROBE_HEALTH)
    known = _for_a_vendor(
        faults(status, policy=override.applied(sources.policy, status.override), node=sources.node),
        chosen=sources.chosen,
    )
    boards = _boards(status, health, accused=_gpus(known[0]) if known else [])
    problems = [_problem(fault, status, boards) for fault in known]
    first = problems[0] if problems else None
    machine = _machine(sources, health)
    nvswitch = health is not None and any(_positive(gpu.switch_links) for gpu in health.gpus)
    judgements, faulty = _judgements(sources), {fault.code for fault in known}
    facts = cleaned(
        TicketFacts(
            node=sources.node,
            source=list(_source(sources)),
            verdict=status.verdict.value,
            summary=status.summary,
            machine=machine,
            product=status.gpus.product,
            count=status.gpus.count,
            driver=status.gpus.driver or status.versions.driver,
            cuda=_cuda(health),
            vbios=status.versions.vbios,
            boards=boards,
            faults=problems,
            xids=_xids(sources, health),
            observed=[_observed(probe) for probe in status.probes if probe.name != names.PROBE_PULL],
            fleet=_fleet(sources.others, ("versions", "class"), status.versions.klass, first),
            peers=list(_peers(status, sources.others or ())),
            changes=list(_changes(sources, since=first.last_good if first else "")),
            tried=list(_tried(sources, first)),
            excluded=_excluded(judgements, faulty),
            numbers=list(_numbers(sources, health)),
            gaps=list(_gaps(sources, judgements, faulty)),
        )
    )
    return _with_commands(facts, nvswitch=nvswitch)


def _with_commands(facts: TicketFacts, *, nvswitch: bool) -> TicketFacts:
    """With what only commands on the node can tell; they are our own words, and are not cleaned."""
    return replace(
        facts,
        ask=asks_for(facts.machine, facts.boards, nvswitch=nvswitch),
        logs=logs_for(facts.node, facts.fault, nvswitch=nvswitch),
    )


def _for_a_vendor(known: Sequence[Fault], *, chosen: str) -> list[Fault]:
    """The faults in their order, but first the chosen one, then what is broken."""
    return sorted(
        known,
        key=lambda fault: (
            fault.code != chosen,
            fault.severity is not Severity.FAIL,
            fault.code in REQUESTS,
        ),
    )


def _source(sources: Sources) -> Iterator[str]:
    yield names.REPORT_KIND
    if sources.reported.results:
        yield names.READING_KIND
    yield from ["Node"] if sources.body is not None else []
    yield from [names.CHASSIS_KIND] if sources.chassis is not None else []
    yield from ["NodeHistory"] if sources.history is not None else []


def _machine(sources: Sources, health: Result | None) -> Machine:
    body = sources.body or {}
    info = _dict(_dict(body.get("status")).get("nodeInfo"))
    labels = _dict(_dict(body.get("metadata")).get("labels"))
    chassis = sources.chassis.reading if sources.chassis is not None else None
    kernel = _text(health.host.kernel) if health is not None else ""
    status = sources.reported.report.status
    return Machine(
        provider_id=_word(_dict(body.get("spec")).get("providerID")),
        machine_id=_word(info.get("machineID")),
        system_uuid=_word(info.get("systemUUID")),
        boot_id=status.probe[names.PROBE_HEALTH].boot_id or _word(info.get("bootID")),
        instance_type=_word(labels.get("node.kubernetes.io/instance-type")),
        zone=_word(labels.get("topology.kubernetes.io/zone")),
        os_image=_word(info.get("osImage")),
        kernel=kernel or status.versions.kernel or _word(info.get("kernelVersion")),
        vendor=_text(chassis.vendor) if chassis is not None else "",
        product=_text(chassis.product) if chassis is not None else "",
        serial=_text(chassis.serial) if chassis is not None else "",
    )


def _boards(status: ReportStatus, health: Result | None, *, accused: Sequence[GpuIdentity]) -> list[Board]:
    read = list(health.gpus) if health is not None else []
    known = [_of_reading(gpu) for gpu in read]
    for lost, gpus in ((False, status.gpus.items), (True, status.gpus.missing)):
        for gpu in gpus:
            at = next((i for i, board in enumerate(known) if _same(gpu, board)), None)
            if at is None:
                known.append(Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci, lost=lost))
            elif lost:
                known[at] = replace(known[at], lost=True)
    known += [
        Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci)
        for gpu in accused
        if not any(_same(gpu, board) for board in known)
    ]
    return [
        replace(
            board,
            accused=any(_same(gpu, board) for gpu in accused),
            product=board.product or status.gpus.product,
        )
        for board in known
    ]


def _of_reading(gpu: Gpu) -> Board:
    read = ((path, getter(gpu)) for path, getter in _GETTERS.items())
    return Board(
        index=gpu.index,
        serial=_text(gpu.serial),
        uuid=_text(gpu.uuid),
        pci=_text(gpu.pci),
        module=gpu.module_id if isinstance(gpu.module_id, int) else None,
        product=_text(gpu.name),
        vbios=_text(gpu.vbios),
        memory_mib=gpu.memory_mib if isinstance(gpu.memory_mib, int) else None,
        counters={path: value for path, value in read if isinstance(value, int)},
    )


def _same(gpu: GpuIdentity, board: Board) -> bool:
    """By the UUID, or its start, where both have one; else by the address; else by the index."""
    if gpu.uuid and board.uuid:
        return board.uuid.startswith(gpu.uuid)
    if gpu.pci and board.pci:
        return gpu.pci == board.pci
    return gpu.index is not None and gpu.index == board.index


def _problem(fault: Fault, status: ReportStatus, boards: Sequence[Board]) -> Problem:
    gate = next((gate for gate in status.gates if gate.code == fault.code), None)
    evidence = (
        str(finding.evidence.get("xids", ""))
        for probe in status.probes
        for finding in probe.findings
        if finding.code == fault.code
    )
    return Problem(
        code=fault.code,
        title=fault.title,
        severity=fault.severity.value,
        cause=fault.cause,
        state=fault.state,
        probe=fault.probe,
        bad_runs=gate.bad if gate is not None else 0,
        relapses=gate.relapses if gate is not None else 0,
        since=fault.since,
        last_seen=fault.last_seen,
        last_good=_last_good(status, fault, gate.good_at if gate is not None else ""),
        subject=fault.subject,
        gpus=[at for at, board in enumerate(boards) if any(_same(gpu, board) for gpu in _gpus(fault))],
        measured=fault.measured,
        also=fault.also,
        xids=sorted({int(word) for text in evidence for word in text.split(", ") if word.isdecimal()}),
        steps=fault.steps,
    )


def _gpus(fault: Fault) -> list[GpuIdentity]:
    """The GPUs of a fault; of a report that keeps none, as its subject names them."""
    named = _IN_SUBJECT.findall(fault.subject)
    return fault.gpus or [GpuIdentity(index=int(index), pci=pci) for index, pci in named]


def _last_good(status: ReportStatus, fault: Fault, good_at: str) -> str:
    """The last run of its probe before the fault that is known to be good: as its gate knows it, else one
    that turned the verdict to a good one, else the first health run that passed; empty if none is known."""
    good = (Verdict.PASS.value, Verdict.WARN.value)
    turned = [
        each.at
        for each in status.transitions
        if each.what == "verdict" and each.to in good and each.probe == fault.probe
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


def _xids(sources: Sources, health: Result | None) -> list[Xid]:
    """Those of the last health reading.  Its times are seconds since boot; the report knows when it was."""
    if health is None:
        return []
    read_at = unstamp(sources.reported.report.status.probe[names.PROBE_HEALTH].read_at)
    uptime = health.host.boottime_ms
    booted = read_at - uptime / 1000 if read_at and isinstance(uptime, int) else 0.0

    def at(seconds: int) -> str:
        return stamp(booted + seconds) if booted else ""

    found = []
    addresses = {gpu.index: _text(gpu.pci) for gpu in health.gpus}
    for gpu in health.gpus:
        counts = [*gpu.xids.counts, *[None] * (len(gpu.xids.seen) - len(gpu.xids.counts))]
        for code, seen in zip(gpu.xids.seen, counts, strict=False):
            times = {"count": seen.count, "first": at(seen.first), "last": at(seen.last)} if seen else {}
            found.append(Xid(code=code, gpu=gpu.index, pci=addresses[gpu.index], source="driver", **times))
    for again in health.watch.repeated if health.watch is not None else ():
        known = {"count": again.count, "first": at(again.first), "last": at(again.last)}
        found.append(
            Xid(code=again.code, gpu=again.gpu, pci=addresses.get(again.gpu, ""), source="driver", **known)
        )
    for event in health.kernel_log.events if health.kernel_log is not None else ():
        if event.code is not None:
            known = {"count": event.count, "first": at(event.first), "last": at(event.last)}
            found.append(Xid(code=event.code, pci=event.subject, source="kernel log", **known))
    return sorted(found, key=lambda xid: xid.last, reverse=True)


def _fleet(
    others: Sequence[Mapping[str, Any]] | None, path: tuple[str, str], klass: str, fault: Problem | None
) -> Fleet | None:
    """The other nodes that have this class at this path of their status, and those with the same finding."""
    if others is None:
        return None
    alike = [each for each in others if klass and _at(each, *path) == klass]
    same = [each for each in alike if fault is not None and _has(each, fault.code)]
    known = sorted(_word(_dict(each.get("metadata")).get("name")) for each in same)
    drivers = Counter(_word(_at(each, "versions", "driver")) or "unknown" for each in alike)
    return Fleet(
        klass=klass,
        nodes=len(alike),
        same=known[:MOST_NODES],
        same_count=len(known),
        drivers=dict(drivers.most_common()),
    )


def _has(report: Mapping[str, Any], code: str) -> bool:
    """Whether the finding stands in another node's report: its gate is bad or entered, or a probe has it."""
    gates = [_dict(gate) for gate in _list(_at(report, "gates"))]
    if any(
        gate.get("code") == code and (gate.get("bad") or gate.get("state") in ("gated", "held-back"))
        for gate in gates
    ):
        return True
    findings = (
        _dict(each) for probe in _list(_at(report, "probes")) for each in _list(_dict(probe).get("findings"))
    )
    return any(each.get("code") == code and each.get("severity") != Severity.INFO for each in findings)


def _peers(status: ReportStatus, others: Sequence[Mapping[str, Any]]) -> Iterator[Peer]:
    mine = {
        "bandwidth": (status.bandwidth.fingerprint, status.bandwidth.all_reduce),
        "load": (status.load.fingerprint, status.load.tflops),
        "clock": (status.clock.fingerprint, status.clock.sm_mhz or None),
    }
    for part, field, what, unit in _PEERS:
        fingerprint, own = mine[part]
        if not fingerprint or own is None:
            continue
        alike = (_at(each, part, field) for each in others if _at(each, part, "fingerprint") == fingerprint)
        values = [value for value in alike if isinstance(value, int | float) and value > 0]
        if values:
            yield Peer(
                what=what,
                unit=unit,
                own=own,
                median=median(values),
                lowest=min(values),
                highest=max(values),
                nodes=len(values),
            )


def _changes(sources: Sources, *, since: str) -> Iterator[Changed]:
    """Versions and transitions since then; all of them if no good run is known."""
    status, start = sources.reported.report.status, unstamp(since)
    found = [
        Changed(at=each.at, what=each.what, before=each.before, after=each.to)
        for each in status.transitions
        if each.what != _TOLD and unstamp(each.at) > start
    ]
    if unstamp(status.versions.since) > start:
        found += [
            Changed(at=status.versions.since, what=what, after=value)
            for what, value in (
                ("driver", status.versions.driver),
                ("vbios", status.versions.vbios),
                ("kernel", status.versions.kernel),
            )
            if value
        ]
    yield from sorted([*found, *_of_days(sources.history, since=since)], key=lambda change: change.at)


def _of_days(history: NodeHistory | None, *, since: str) -> Iterator[Changed]:
    """Versions that the history saw change, by day."""
    known: dict[str, str] = {}
    for date, day in (history.days if history is not None else {}).items():
        for what in ("driver", "vbios", "kernel"):
            value = getattr(day, what)
            if value and known.get(what) not in (None, value) and date >= since[:10]:
                yield Changed(at=date, what=what, before=known[what], after=value)
            known |= {what: value} if value else {}


def _tried(sources: Sources, fault: Problem | None) -> Iterator[str]:
    status = sources.reported.report.status
    gate = next((gate for gate in status.gates if fault is not None and gate.code == fault.code), None)
    if gate is not None and gate.relapses:
        times = "once" if gate.relapses == 1 else f"{gate.relapses} times"
        yield f"The fault came back {times} after its taint was lifted, last lifted at {gate.left_at}."
    info = _dict(_dict((sources.body or {}).get("status")).get("nodeInfo"))
    read, now = status.probe[names.PROBE_HEALTH].boot_id, _word(info.get("bootID"))
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


def _numbers(sources: Sources, health: Result | None) -> Iterator[Number]:
    status = sources.reported.report.status
    if status.psu:
        yield Number(what="power supplies", value=status.psu)
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
        yield Number(what="collectives", value=status.bandwidth.message)
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
            yield f"The {probe} probe never ran here. {part.detail}".rstrip()
    if sources.chassis is None and not status.psu:
        yield "No power supply and no BMC was read."
    for answer, why in (
        (Answer.NO_LOAD, "Not judged, the GPUs were idle"),
        (Answer.UNSURE, "Not judged by the last reading alone"),
    ):
        codes = [code for code, each in judgements.answers.items() if each is answer and code not in faulty]
        if codes:
            yield f"{why}: {', '.join(codes)}."


def recorded(history: NodeHistory, *, others: Sequence[Mapping[str, Any]] | None = None) -> TicketFacts:
    """The facts of a node that is gone, from the record that its history kept.  It has one."""
    record = history.record
    assert record is not None, "the caller has looked"
    accused = record.faults[0].gpus if record.faults else []
    boards = [
        Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci, product=record.product)
        for gpu in record.gpus
    ]
    boards = [replace(board, accused=any(_same(gpu, board) for gpu in accused)) for board in boards]
    problems = [
        Problem(
            code=fault.code,
            title=fault.title,
            severity=Severity.FAIL.value if fault.cause else Severity.WARN.value,
            cause=fault.cause,
            state=fault.state,
            since=fault.since,
            last_seen=record.written_at,
            subject=fault.subject,
            gpus=[at for at, board in enumerate(boards) if any(_same(gpu, board) for gpu in fault.gpus)],
            measured=fault.measured,
            steps=fault.steps,
        )
        for fault in record.faults
    ]
    machine = Machine(boot_id=record.boot_id, kernel=record.kernel)
    changes = [
        Changed(at=each.at, what=each.what, before=each.before, after=each.to)
        for each in record.transitions
        if each.what != _TOLD
    ]
    facts = cleaned(
        TicketFacts(
            node=history.name,
            source=["NodeHistory"],
            gone_at=history.gone_at,
            verdict=record.verdict.value,
            machine=machine,
            product=record.product,
            count=len(record.gpus),
            driver=record.driver,
            vbios=record.vbios,
            boards=boards,
            faults=problems,
            xids=[
                Xid(code=int(code), last=at, source="record")
                for code, at in record.xids.items()
                if code.isdecimal()
            ],
            fleet=_fleet(others, ("gpus", "product"), record.product, problems[0] if problems else None),
            changes=[*changes, *_of_days(history, since="")],
            gaps=[
                f"The node is gone: this is its record of {record.written_at or 'an unknown time'}. "
                "Counters, machine, runs and peers are not in it. Logs can be saved only while the machine "
                "still runs."
            ],
        )
    )
    return _with_commands(facts, nvswitch=False)


def _cuda(health: Result | None) -> str:
    number = health.system.cuda if health is not None else None
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else ""


def _positive(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _text(value: str | Unavailable) -> str:
    return "" if isinstance(value, Unavailable) else value


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _at(report: Mapping[str, Any], *path: str) -> Any:
    """A value of another node's status; None if it is not there."""
    value: Any = report.get("status")
    for name in path:
        value = _dict(value).get(name)
    return value
