"""Nodes at work and at rest, run after run, for tests of what the judge makes of counters."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import nodegauge_contract as contract
import support.results as made
from nodegauge_judge import Finding, History, Judgement, Severity, Verdict, judge_health

every = made.every_gpu
SAMPLES = 12
"""Samples of a window: 3 seconds at 4 Hz."""
ALL_BITS = 0x1FF
GAP = "values-unread/warn"
NO_COUNTERS = contract.Counters(trio=contract.Unavailable("driver 570.124.04 has no such counters"))
IDLE_WATTS, LIMIT_WATTS = 70, 700
NANOSECONDS = 1_000_000_000
LOST = contract.Problem(
    kind=contract.ProblemKind.GPU_LOST, call="nvmlDeviceGetHandleByIndex", code=15, message="GPU is lost"
)


def span(low: float, high: float | None = None) -> contract.Span:
    top = low if high is None else high
    return contract.Span(min=low, median=(low + top) / 2, max=top)


def events(
    bits: Mapping[int, int], *, read: int = SAMPLES, supported: int = ALL_BITS
) -> contract.ClocksEvents:
    seen = [contract.ReasonSeen(bit=bit, samples=count, longest=count) for bit, count in sorted(bits.items())]
    return contract.ClocksEvents(supported=supported, read=read, seen=seen)


def working(*, bits: Mapping[int, int] | None = None, seconds: float = 3.0, **window: Any) -> dict[str, Any]:
    spans = {"utilization": span(98, 100), "temperature": span(64, 66), "power_mw": span(600_000)}
    spans |= {"sm_mhz": span(1755), "pstate": span(0)}
    seen = contract.Window(seconds=seconds, samples=SAMPLES, **(spans | window))
    return {"events": events(bits or {}), "window": seen}


def resting(*, bits: Mapping[int, int] | None = None, **window: Any) -> dict[str, Any]:
    spans = {"utilization": span(0), "temperature": span(31), "power_mw": span(IDLE_WATTS * 1000)}
    spans |= {"sm_mhz": span(210), "pstate": span(8)}
    return working(bits={0x1: SAMPLES} if bits is None else bits, **(spans | window))


def node(gpus: int = 2, **fields: Any) -> contract.Result:
    result = made.h100(gpus)
    known: dict[str, Any] = {
        "temperature": contract.Temperature(gpu=65, gpu_max=87, memory=70, memory_max=95),
        "power": contract.Power(
            usage_mw=600_000,
            enforced_limit_mw=LIMIT_WATTS * 1000,
            default_limit_mw=LIMIT_WATTS * 1000,
            energy_mj=10**9,
        ),
        "clocks": contract.Clocks(sm_mhz=1755, max_sm_mhz=1980, pstate=0),
        "counters": contract.Counters(
            trio="251-253",
            sw_power_cap_ns=NANOSECONDS,
            sync_boost_ns=0,
            sw_thermal_ns=NANOSECONDS,
            hw_thermal_ns=NANOSECONDS,
            power_brake_ns=NANOSECONDS,
            thermal_violation_ns=2 * NANOSECONDS,
            low_utilization_ns=NANOSECONDS,
        ),
    }
    for gpu_index in range(gpus):
        result = made.with_gpu(result, gpu_index, **(known | working() | fields))
    return replace(result, host=replace(result.host, boottime_ms=3_600_000))


def later(
    result: contract.Result, seconds: float, *, watts: float = 600, gpu: int | None = None, **grown: float
) -> contract.Result:
    """The machine `seconds` on: `grown` in seconds for counters of time (`sw_thermal=90`), on one GPU or on
    all; thermal violation grows with both kinds of heat unless it is given; `watts` drawn on average."""
    heat = grown.get("sw_thermal", 0) + grown.get("hw_thermal", 0)
    for gpu_index, each in enumerate(result.gpus):
        more = {"thermal_violation": heat} | grown
        if gpu is not None and gpu_index != gpu:
            more = {"low_utilization": grown.get("low_utilization", 0)}
        counters = {
            name: value + round(more.get(name.removesuffix("_ns"), 0) * NANOSECONDS)
            for name in contract.Counters.__struct_fields__
            if name != "trio" and isinstance(value := getattr(each.counters, name), int)
        }
        power = each.power
        if isinstance(power.energy_mj, int):
            power = replace(power, energy_mj=power.energy_mj + round(watts * seconds * 1000))
        result = made.with_gpu(result, gpu_index, counters=replace(each.counters, **counters), power=power)
    return made.later(result, seconds=seconds)


def grew(seconds: float = 3.0, **by: float) -> contract.Growth:
    return contract.Growth(
        elapsed_ms=round(seconds * 1000), **{f"{n}_ns": round(v * NANOSECONDS) for n, v in by.items()}
    )


def judge(*results: contract.Result, history: History | None = None, **how: Any) -> Judgement:
    """The judgement of the last of these runs, after the ones before it; `how`: for the judge."""
    past = history or History()
    for result in results:
        judgement = judge_health(result, history=past, **how)
        past = History.decode(judgement.history.encode()) or History()
    return of_what_was_asked(judgement)


def of_what_was_asked(judgement: Judgement) -> Judgement:
    """The judgement without the gaps of a document that holds only what a test is about."""
    findings = [
        finding
        for finding in judgement.findings
        if finding.code != "values-unread" or finding.evidence["answer"] != contract.NOT_READ.unavailable
    ]
    serious = any(finding.severity is not Severity.INFO for finding in findings)
    passes = judgement.verdict is Verdict.WARN and not serious
    return replace(judgement, findings=findings, verdict=Verdict.PASS if passes else judgement.verdict)


def cool(**values: int) -> contract.Result:
    """Two PCIe GPUs, the first with these temperatures and no sampling window."""
    return made.with_gpu(made.phb(), 0, temperature=contract.Temperature(**values), window=None)


def codes(judgement: Judgement) -> list[str]:
    return [f"{finding.code}/{finding.severity}" for finding in judgement.findings]


def only(judgement: Judgement) -> Finding:
    assert len(judgement.findings) == 1, codes(judgement)
    return judgement.findings[0]


Row = tuple[Any, ...]
Table = Mapping[str, Row | list[Row]]
"""A row, or some, by the property that they show."""


def rows(table: Table) -> list[Any]:
    """A parameter for each row, its property as its id."""
    groups = {name: group if isinstance(group, list) else [group] for name, group in table.items()}
    return [pytest.param(row, id=name) for name, group in groups.items() for row in group]


Runs = Judgement | contract.Result | tuple[contract.Result, ...]


def judge_all(runs: Runs) -> Judgement:
    """The judgement of the last of these runs, or this one."""
    if isinstance(runs, Judgement):
        return runs
    return judge(*(runs if isinstance(runs, tuple) else (runs,)))


def check(runs: Runs, expected: str, *facts: str | Mapping[str, object]) -> Judgement:
    """The last of these runs has these findings (`code/severity`, the worst first) and no other, and the
    verdict that is among the facts, or else follows from them.  A text stands in one of them or is what
    the interconnect says, a mapping is part of the class (`klass`), the answers, and the first finding's
    evidence."""
    judgement = judge_all(runs)
    assert " ".join(codes(judgement)) == expected
    worst = expected.partition(" ")[0].partition("/")[2].replace("info", "") or "pass"
    assert [judgement.verdict] == ([fact for fact in facts if isinstance(fact, Verdict)] or [worst])
    messages = "\n".join(f"{one.subject}: {one.message}" for one in judgement.findings)
    messages += f"\n{judgement.interconnect.message}"
    known: dict[str, object] = {"klass": judgement.interconnect.klass, **judgement.answers}
    if judgement.findings:
        known |= judgement.findings[0].evidence
    for fact in facts:
        if isinstance(fact, Mapping):
            assert {name: known.get(name) for name in fact} == fact
        elif not isinstance(fact, Verdict):
            assert fact in messages
    return judgement
