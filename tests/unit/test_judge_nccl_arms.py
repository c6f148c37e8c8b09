"""Outcomes of the arms, what a comparison of arms explains, and NVLS that NCCL leaves unused."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NOT_READ, ArmName, ArmOutcome, Phase, Problem, Result
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import Agreement, NcclJudgement
from support.judge_results import Row, Table, rows
from support.nccl_results import GIB, MIB, SHM, check, codes, finding

DEFAULT, NVLS_OFF, P2P_OFF = ArmName.DEFAULT, ArmName.NVLS_OFF, ArmName.P2P_OFF
BAD, GOOD, UNSURE = Answer.BAD, Answer.GOOD, Answer.UNSURE
START = (Phase.SPAWN, Phase.INIT)
AFTER_START = [phase.value for phase in Phase if phase not in START]


def ended(result: Result, name: ArmName, outcome: str, *, phase: str = Phase.LOAD, **more: Any) -> Result:
    """The NCCL run in which that arm ended differently, without any measurement."""
    return nccl.swapped(result, name, outcome=outcome, phase=phase, **({"cells": []} | more))


def wrong(result: Result, *names: ArmName) -> Result:
    for name in names:
        cells = [
            replace(cell, wrong=3)
            if cell.bytes in (64 * MIB, GIB) and cell.collective == "all_reduce"
            else cell
            for cell in nccl.arm_of(result, name).cells
        ]
        result = nccl.with_cells(result, name, *cells)
    return result


def without(result: Result, name: ArmName) -> Result:
    return nccl.changed(result, arms=[arm for arm in result.nccl.arms if arm.name != name])


def all_ended(result: Result, outcome: str, *names: ArmName, **how: Any) -> Result:
    for name in names or (DEFAULT, NVLS_OFF, P2P_OFF):
        result = ended(result, name, outcome, **how)
    return result


def slow(result: Result, *names: ArmName, phase: str = Phase.INIT, starts: int = 1) -> Result:
    return all_ended(result, "start-slow", *names, phase=phase, starts=starts, message="not started")


def unchecked(result: Result, name: ArmName) -> Result:
    cells = [replace(cell, wrong=NOT_READ) for cell in nccl.arm_of(result, name).cells]
    return nccl.with_cells(result, name, *cells)


def started(first: int, later: int) -> Result:
    cold = nccl.swapped(nccl.titan(), DEFAULT, init_ms=1000, load_ms=first * 1000 - 1000)
    return nccl.swapped(cold, P2P_OFF, init_ms=later * 1000, load_ms=0)


def launched(us: float, launch_us: float) -> Result:
    small = [
        replace(cell, us=us, launch_us=launch_us) if cell.bytes == 8 else cell
        for cell in nccl.arm_of(nccl.h100(), DEFAULT).cells
    ]
    return nccl.with_cells(nccl.h100(), DEFAULT, *small)


def ring(
    name: str = "NVIDIA H200",
    *,
    gbps: float = 355.0,
    count: int = 8,
    capability: str = "9.0",
    driver: str = "570.86.15",
    algorithm: str = "RING",
    virtualization: int = 0,
    **arm: Any,
) -> Result:
    """A machine behind NVSwitches whose default arm ran all_reduce with this algorithm."""
    links, mbps = (18, 53_125) if capability.startswith("10") else (18, 26_562)
    machine = made.switched(count, name=name, links=links, mbps=mbps, virtualization=virtualization)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability=capability)
    machine = replace(machine, system=replace(machine.system, driver=driver))
    arms = [nccl.default_arm(gbps, gather=gbps, ranks=count, algorithm=algorithm, **arm)]
    return nccl.node(machine, *arms, nccl.p2p_off_arm(28.0, ranks=count))


def by_policy(result: Result, **environment: str) -> NcclJudgement:
    return judge_nccl(result, environment=environment)


PASS, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN
RINGS = ("Ring,Tree", "^NVLS,NVLSTree")
HUNG = ended(nccl.titan(), DEFAULT, "hung")
HANGS = {"verdict": FAIL, "nccl-hang": BAD}
MEASURED = {"verdict": WARN, "nccl-hang": UNSURE}
CUT = replace(
    nccl.swapped(nccl.h100(), P2P_OFF, outcome=ArmOutcome.CUT, cells=[]),
    problem=Problem(kind="terminated", message="SIGTERM"),
)
EARLY = replace(without(nccl.titan(), P2P_OFF), problem=Problem(kind="deadline"))
NVLS_TOO = ended(nccl.h100(), P2P_OFF, "failed", phase=Phase.INIT)
START_SLOW = ("nccl-start-slow/warn", {"verdict": UNKNOWN, "reason": "NcclStartSlow", "answers": {}})
BROKEN_NVLS = nccl.swapped(nccl.h100(), DEFAULT, outcome="failed", phase="init", cells=[], nvls=True)
SLOW = nccl.h100(200)
ALL_WRONG = [replace(cell, wrong=3) for cell in nccl.arm_of(SLOW, DEFAULT).cells]
A100, B200, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA H100 80GB HBM3"
UNUSED = ("nvls-unused/warn", {"agreement": Agreement.CONFIRMED})
CHOSEN = ("nvls-unused/info", {"verdict": PASS})
TABLE: Table = {
    "both arms hang in any phase, so nothing explains it": [
        (
            all_ended(nccl.titan(), "hung", DEFAULT, P2P_OFF, phase=phase),
            "nccl-hang/fail",
            {"verdict": FAIL, "again": True, "nccl-hang": BAD, "phase": phase},
        )
        for phase in AFTER_START
    ],
    "the arm with P2P disabled hangs": [
        (ended(nccl.titan(), P2P_OFF, "hung", phase=phase), "nccl-hang/fail", HANGS) for phase in AFTER_START
    ],
    "a hang only with P2P is broken P2P, and the message names the causes": [
        (
            ended(nccl.titan(), DEFAULT, "hung", phase=phase),
            "p2p-broken/fail",
            {"p2p-broken": BAD, "nccl-hang": BAD, "verdict": FAIL},
            {"again": True, "agreement": Agreement.UNSURE, "busbw": {}},
            "ACS",
            "IOMMU",
        )
        for phase in AFTER_START
    ],
    "the pair matrix comes after the sizes that labels use": (
        nccl.swapped(nccl.h100(), DEFAULT, outcome="hung", phase=Phase.PAIRS),
        "nccl-hang/fail",
        {"all_reduce": 462},
    ),
    "the gate needs two runs, so the second hang asks for no third": [
        (judge_nccl(HUNG, previous=judge_nccl(HUNG).record), "p2p-broken/fail", {"again": False})
    ],
    "a failure only with NVLS warns, and all_reduce comes from the arm that works": [
        (
            ended(nccl.h100(), DEFAULT, outcome, phase=phase, message="out of memory"),
            "nvls-broken/warn",
            {"verdict": WARN, "busbw": {"all_reduce": 352}, "agreement": Agreement.CONFIRMED},
            {"busbw-low": GOOD, "p2p-broken": GOOD, "nccl-hang": UNSURE if outcome == "hung" else GOOD},
        )
        for outcome, phases in {
            **dict.fromkeys(("failed", "out-of-memory", "crashed"), ("init", "load")),
            "hung": ("load",),
        }.items()
        for phase in phases
    ],
    "wrong data in every arm fails at once and gets no label": (
        wrong(nccl.titan(), DEFAULT, P2P_OFF),
        "nccl-wrong-data/fail",
        {"verdict": FAIL, "busbw": {}, "p2p_off": None, "agreement": Agreement.UNSURE, "again": False},
        {"nccl-wrong-data": BAD, "p2p-broken": UNSURE},
    ),
    "how fast wrong data was says nothing": [
        (nccl.with_cells(SLOW, DEFAULT, *ALL_WRONG), "nccl-wrong-data/fail"),
        (SLOW, "busbw-low/warn"),
    ],
    "unchecked data is neither good nor bad": (
        unchecked(nccl.titan(), DEFAULT),
        "",
        {"nccl-wrong-data": UNSURE, "p2p-broken": UNSURE, "verdict": PASS},
    ),
    "a failed tool decides nothing: image, driver and limits are as likely": [
        (
            all_ended(nccl.titan(), outcome, DEFAULT, P2P_OFF),
            "nccl-failed/warn",
            {"verdict": UNKNOWN, "reason": "NothingMeasured", "answers": {}, "again": True},
            {"readable": False},
        )
        for outcome in ("failed", "crashed", "garbage", "partial", "out-of-memory", "tomorrow")
    ],
    "what was measured before a failure counts": [
        (
            nccl.swapped(nccl.h100(), DEFAULT, outcome=outcome, phase=Phase.PAIRS),
            "nccl-failed/warn",
            {"all_reduce": 462},
            MEASURED | {"busbw-low": GOOD},
        )
        for outcome in ("crashed", "partial", "garbage", "out-of-memory")
    ],
    "a failed comparison leaves the node judged": (
        ended(nccl.h100(), P2P_OFF, "crashed", message="SIGSEGV"),
        "nccl-failed/warn",
        "SIGSEGV",
        {"p2p_off": None, "busbw-low": GOOD},
    ),
    "a terminated run is graded by its measurements, and the arm that was cut is named": [
        (CUT, "nccl-failed/warn nccl-incomplete/info", {"all_reduce": 462}, {"nccl-hang": UNSURE})
    ],
    "the missing arms of a run that ended early might have hung": [
        (EARLY, "nccl-failed/warn", {"nccl-hang": UNSURE}),
        (replace(EARLY, problem=None), "", {"nccl-hang": GOOD}),
    ],
    "missing arms explain nothing": [
        (without(without(ended(nccl.h100(), DEFAULT, "hung"), P2P_OFF), NVLS_OFF), "nccl-hang/fail"),
        (without(nccl.h100(), P2P_OFF), "", {"agreement": Agreement.CONFIRMED}),
    ],
    "a slow start hangs not": [
        (slow(nccl.h100()), *START_SLOW),
        (slow(nccl.phb(), DEFAULT, P2P_OFF), *START_SLOW),
    ],
    "a cold first start, and no time for another": [(slow(nccl.h100(), DEFAULT), *START_SLOW)],
    "NVLS is blamed only if the start with it was slow twice, once NCCL was loaded, and there alone": [
        (slow(nccl.h100(), DEFAULT, starts=2), "nvls-broken/warn", MEASURED),
        (slow(nccl.h100(), DEFAULT, phase=Phase.SPAWN, starts=2), *START_SLOW),
        (slow(nccl.h100(), DEFAULT, P2P_OFF, starts=2), *START_SLOW),
    ],
    "P2P is not blamed for a slow start": [(slow(nccl.titan(), DEFAULT, starts=2), *START_SLOW)],
    "a hang in init by contract 1.2 is a slow start": [
        (ended(nccl.h100(count=4), DEFAULT, "hung", phase=Phase.INIT), *START_SLOW)
    ],
    "an error in init with NVLS, and with P2P disabled": [
        (ended(NVLS_TOO, DEFAULT, "failed", phase=Phase.INIT), "nccl-failed/warn", {"verdict": UNKNOWN})
    ],
    "a slow start of a comparison keeps the measurement, and clears no hang": (
        slow(nccl.h100(), P2P_OFF, starts=2),
        "nccl-start-slow/warn",
        "P2P disabled",
        {"all_reduce": 462},
        MEASURED,
    ),
    "52 s of kernel loading from a cold image have been reported": [
        (started(15, 3), "", {"verdict": PASS}),
        (started(52, 3), "slow-init/info", {"verdict": PASS}),
        (started(52, 40), "slow-init/warn", {"verdict": WARN}),
    ],
    "latencies that the launch makes show the host": [
        (launched(*times), "nccl-incomplete/info", "launch-bound", {"verdict": PASS})
        for times in ((100.0, 95.0), (20.0, 16.0), (8.0, 30.0))
    ],
    "a launch that is three quarters does not": [(launched(20.0, 15.0), "", {"verdict": PASS})],
    "a hang without P2P, or of every arm, is no broken P2P": [
        (ended(nccl.phb(), DEFAULT, "hung", transport=SHM), "nccl-hang/fail", {"p2p-broken": UNSURE}, "hung"),
        (all_ended(nccl.h100(), "hung"), "nccl-hang/fail", {"p2p-broken": UNSURE}, "hung"),
    ],
    "NCCL did not use NVLS": (
        ended(nccl.h100(), DEFAULT, "failed", phase=Phase.LOAD, nvls=False),
        "nccl-failed/warn",
        {"p2p-broken": None},
        "failed",
    ),
    "a hang after the start with NVLS": (
        ended(nccl.h100(), DEFAULT, "hung", phase=Phase.MEASURE),
        "nccl-hang/fail",
        {"p2p-broken": GOOD},
        "NVLS disabled",
    ),
    "wrong data only with P2P": (
        wrong(nccl.titan(), DEFAULT),
        "nccl-wrong-data/fail p2p-broken/fail",
        {"p2p-broken": BAD},
        "P2P disabled",
    ),
    "wrong data only with NVLS": [
        (wrong(nccl.h100(), DEFAULT), "nccl-wrong-data/fail", {"p2p-broken": GOOD}, "NVLS disabled")
    ],
    "wrong data with P2P, unchecked without": (
        unchecked(wrong(nccl.titan(), DEFAULT), P2P_OFF),
        "nccl-wrong-data/fail",
        {"p2p-broken": UNSURE},
        "wrong",
    ),
    "a ring where NVLS is possible warns with what NCCL said, and confirms NVLink": [
        (ring(multicast=False), *UNUSED, "NVLS multicast support is not available"),  # NCCL issue 892
        (ring(gbps=367), *UNUSED, "did not log multicast support, and made no NVLS channels"),
        (ring(multicast=True), *UNUSED, "available, and made no NVLS channels"),
        (ring(B200, gbps=655, capability="10.0", nvls=True, multicast=True), *UNUSED, "NCCL chose RING"),
        (ring(algorithm="", nvls=None, multicast=False), *UNUSED, "not available"),
        (ring(virtualization=1, multicast=True), *UNUSED, "made no NVLS channels"),
    ],
    "the policy's environment decided it": [
        (by_policy(ring(**logged), **environment), *CHOSEN, "policy's environment")
        for logged in ({}, {"algorithm": "", "nvls": None})
        for environment in ({"NCCL_NVLS_ENABLE": "0"}, *({"NCCL_ALGO": n} for n in RINGS))
    ],
    "a platform without multicast cannot have it": [
        (ring(driver="525.105.17", multicast=False), *CHOSEN, "driver 525"),
        (ring(virtualization=1, multicast=False), *CHOSEN, "hypervisor"),
    ],
    "NVLS ran": [
        (nccl.h100(), ""),
        (by_policy(ring(algorithm="NVLS_TREE", gbps=460), NCCL_ALGO="NVLSTree"), ""),
    ],
    "8 Hopper that are as fast as rings, without a word from NCCL": [
        (ring(algorithm="", nvls=None), *UNUSED, "as much as rings do"),
        (ring(algorithm="", nvls=None, gbps=370), *UNUSED, "NVLS exceeds 82% of the NVLinks' rate"),
        (ring(algorithm="", nvls=None, gbps=371), ""),
        (ring(B200, algorithm="", gbps=655, capability="10.0", nvls=None), ""),
        (ring(algorithm="", nvls=None, gbps=269), "busbw-low/warn"),
    ],
    "few GPUs, older GPUs and no switch prove nothing": [
        (ring(algorithm="", nvls=None, count=7), ""),
        (ring(count=5, multicast=False), ""),
        (ring(A100, gbps=229, capability="8.0"), "busbw-low/warn"),
        (nccl.titan(), ""),
        (by_policy(ring(), NCCL_P2P_DISABLE="1"), ""),
    ],
    "NVLS that is broken is named once": [(BROKEN_NVLS, "nvls-broken/warn")],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_arms_are_compared(row: Row) -> None:
    """P2P and NVLS are blamed only if another arm proves it, and the record says the same."""
    judgement = check(*row)
    if "nvls-unused/warn" in codes(judgement):
        assert codes(regrade(judgement.record)) == {"nvls-unused/warn"}


def test_latencies_of_a_throttled_pod_are_discarded() -> None:
    judgement = check(
        nccl.changed(nccl.h100(), throttled_periods=7), "nccl-incomplete/info", {"all_reduce": 462}
    )
    assert "4096" not in judgement.record


def test_wrong_data_is_listed_by_collective_size_and_arm() -> None:
    evidence = finding(judge_nccl(wrong(nccl.titan(), DEFAULT, P2P_OFF)), "nccl-wrong-data").evidence
    locations = str(evidence["also"]).split("), ")
    assert len(locations) == len(set(locations)) > 1
    assert any("all_reduce at 64 MiB (P2P disabled" in location for location in locations)


@pytest.mark.parametrize(("periods", "answer"), [(44, BAD), (45, UNSURE)])
def test_a_low_number_counts_unless_the_pod_was_throttled_half_the_time(periods: int, answer: Answer) -> None:
    """45 periods of 100 ms are half of 9 s, so the CPU limit may have set the median."""
    judgement = judge_nccl(nccl.changed(nccl.h100(100), throttled_periods=periods))
    assert judgement.answers["busbw-low"] is answer
    low = finding(judgement, "busbw-low")
    assert low.severity is Severity.WARN
    before = judge_nccl(nccl.h100(100)).record
    again = judge_nccl(nccl.changed(nccl.h100(100), throttled_periods=periods), previous=before)
    assert finding(again, "busbw-low").severity is (Severity.WARN if answer is UNSURE else Severity.FAIL)
    assert ("CPU limit" in low.message) is (answer is UNSURE)
