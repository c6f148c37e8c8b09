"""Outcomes of the arms, what a comparison of arms explains, and NVLS that NCCL leaves unused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NOT_READ, ArmName, ArmOutcome, Phase, Problem, Result
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import Agreement
from support.nccl_results import GIB, MIB, SHM, codes, finding

DEFAULT, NVLS_OFF, P2P_OFF = ArmName.DEFAULT, ArmName.NVLS_OFF, ArmName.P2P_OFF
BAD, GOOD, UNSURE = Answer.BAD, Answer.GOOD, Answer.UNSURE
START = (Phase.SPAWN, Phase.INIT)
AFTER_START = [phase.value for phase in Phase if phase not in START]


def ended(result: Result, name: ArmName, outcome: str, *, phase: str = Phase.LOAD, **more: Any) -> Result:
    """The NCCL run in which that arm ended differently, without any measurement."""
    return nccl.swapped(result, name, outcome=outcome, phase=phase, **({"cells": []} | more))


def wrong(result: Result, *names: ArmName) -> Result:
    """The NCCL run in which 64 MiB and 1 GiB of those arms returned wrong data."""
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
    """The NCCL run without that arm."""
    return nccl.changed(result, arms=[arm for arm in result.nccl.arms if arm.name != name])


# -- hangs


@pytest.mark.parametrize("phase", AFTER_START)
@pytest.mark.parametrize("name", [DEFAULT, P2P_OFF])
def test_a_hang_in_any_phase_fails_and_names_arm_and_phase(name: ArmName, phase: str) -> None:
    """Both arms of two TITAN hang, so nothing explains it."""
    both = ended(ended(nccl.titan(), DEFAULT, "hung", phase=phase), P2P_OFF, "hung", phase=phase)
    judgement = judge_nccl(both)
    assert (judgement.verdict, judgement.again) == (Verdict.FAIL, True)
    assert judgement.answers["nccl-hang"] is BAD
    assert codes(judgement) == {"nccl-hang/fail"}
    assert finding(judgement, "nccl-hang").evidence["phase"] == phase
    one = judge_nccl(ended(nccl.titan(), name, "hung", phase=phase))
    assert (one.verdict, one.answers["nccl-hang"]) == (Verdict.FAIL, BAD)


@pytest.mark.parametrize("phase", AFTER_START)
def test_a_hang_only_with_p2p_is_broken_p2p(phase: str) -> None:
    """The message names the causes: ACS and the IOMMU."""
    judgement = judge_nccl(ended(nccl.titan(), DEFAULT, "hung", phase=phase))
    assert codes(judgement) == {"p2p-broken/fail"}
    assert (judgement.answers["p2p-broken"], judgement.answers["nccl-hang"]) == (BAD, BAD)
    assert (judgement.again, judgement.agreement, judgement.busbw) == (True, Agreement.UNSURE, {})
    message = finding(judgement, "p2p-broken").message
    assert "ACS" in message
    assert "IOMMU" in message


def test_measurements_before_a_hang_count() -> None:
    """The pair matrix comes after the sizes that labels use."""
    judgement = judge_nccl(nccl.swapped(nccl.h100(), DEFAULT, outcome="hung", phase=Phase.PAIRS))
    assert judgement.busbw["all_reduce"] == 462
    assert codes(judgement) == {"nccl-hang/fail"}


def test_the_second_hang_asks_for_no_third_run() -> None:
    """The gate needs two runs."""
    hung = ended(nccl.titan(), DEFAULT, "hung")
    assert judge_nccl(hung, previous=judge_nccl(hung).record).again is False


# -- NVLS


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        *(
            (outcome, phase)
            for outcome in ("failed", "out-of-memory", "crashed")
            for phase in ("init", "load")
        ),
        ("hung", "load"),
    ],
)
def test_a_failure_only_with_nvls_is_broken_nvls(outcome: str, phase: str) -> None:
    """It only warns, and all_reduce comes from the arm that works."""
    judgement = judge_nccl(ended(nccl.h100(), DEFAULT, outcome, phase=phase, message="out of memory"))
    assert (codes(judgement), judgement.verdict) == ({"nvls-broken/warn"}, Verdict.WARN)
    assert judgement.busbw == {"all_reduce": 352}
    assert judgement.agreement is Agreement.CONFIRMED
    assert judgement.answers["busbw-low"] is judgement.answers["p2p-broken"] is GOOD
    assert judgement.answers["nccl-hang"] is (UNSURE if outcome == "hung" else GOOD)


# -- wrong data


def test_wrong_data_in_every_arm_fails_at_once_and_gets_no_label() -> None:
    """There is no label, no agreement, and no other run is needed."""
    judgement = judge_nccl(wrong(nccl.titan(), DEFAULT, P2P_OFF))
    assert (codes(judgement), judgement.verdict) == ({"nccl-wrong-data/fail"}, Verdict.FAIL)
    assert (judgement.busbw, judgement.p2p_off, judgement.agreement) == ({}, None, Agreement.UNSURE)
    assert (judgement.answers["nccl-wrong-data"], judgement.answers["p2p-broken"]) == (BAD, UNSURE)
    assert judgement.again is False


def test_wrong_data_is_listed_by_collective_size_and_arm() -> None:
    """Each location is listed once."""
    evidence = finding(judge_nccl(wrong(nccl.titan(), DEFAULT, P2P_OFF)), "nccl-wrong-data").evidence
    locations = str(evidence["also"]).split("), ")
    assert len(locations) == len(set(locations)) > 1
    assert any("all_reduce at 64 MiB (P2P disabled" in location for location in locations)


def test_unchecked_data_is_neither_good_nor_bad() -> None:
    """Missing data never changes a verdict."""
    judgement = judge_nccl(unchecked(nccl.titan(), DEFAULT))
    assert (judgement.answers["nccl-wrong-data"], judgement.answers["p2p-broken"]) == (UNSURE, UNSURE)
    assert judgement.verdict is Verdict.PASS


# -- failures that prove nothing


@pytest.mark.parametrize("outcome", ["failed", "crashed", "garbage", "partial", "out-of-memory", "tomorrow"])
def test_a_failed_tool_does_not_fail_the_node(outcome: str) -> None:
    """Image, driver and limits are as likely: it is a warning, and decides nothing."""
    judgement = judge_nccl(ended(ended(nccl.titan(), DEFAULT, outcome), P2P_OFF, outcome))
    assert (codes(judgement), judgement.verdict) == ({"nccl-failed/warn"}, Verdict.UNKNOWN)
    assert (judgement.readable, judgement.reason, judgement.answers) == (False, "NothingMeasured", {})
    assert judgement.again is True


@pytest.mark.parametrize("outcome", ["crashed", "partial", "garbage", "out-of-memory"])
def test_measurements_before_a_failure_count(outcome: str) -> None:
    """Labels and floors use the cells that exist."""
    judgement = judge_nccl(nccl.swapped(nccl.h100(), DEFAULT, outcome=outcome, phase=Phase.PAIRS))
    assert (codes(judgement), judgement.verdict) == ({"nccl-failed/warn"}, Verdict.WARN)
    assert judgement.busbw["all_reduce"] == 462
    assert (judgement.answers["busbw-low"], judgement.answers["nccl-hang"]) == (GOOD, UNSURE)


def test_a_failed_comparison_arm_leaves_the_node_judged() -> None:
    """The default arm gives the bandwidth; the failure only warns."""
    judgement = judge_nccl(ended(nccl.h100(), P2P_OFF, "crashed", message="SIGSEGV"))
    assert (codes(judgement), judgement.p2p_off) == ({"nccl-failed/warn"}, None)
    assert "SIGSEGV" in finding(judgement, "nccl-failed").message
    assert judgement.answers["busbw-low"] is GOOD


def test_a_terminated_run_is_graded_by_its_measurements() -> None:
    """The arm that was cut is named."""
    cut = nccl.swapped(nccl.h100(), P2P_OFF, outcome=ArmOutcome.CUT, cells=[])
    judgement = judge_nccl(replace(cut, problem=Problem(kind="terminated", message="SIGTERM")))
    assert codes(judgement) == {"nccl-failed/warn", "nccl-incomplete/info"}
    assert judgement.busbw["all_reduce"] == 462
    assert judgement.answers["nccl-hang"] is UNSURE


def test_a_run_that_ended_early_clears_no_hang() -> None:
    """The missing arms might have hung."""
    early = replace(without(nccl.titan(), P2P_OFF), problem=Problem(kind="deadline"))
    assert judge_nccl(early).answers["nccl-hang"] is UNSURE
    assert judge_nccl(replace(early, problem=None)).answers["nccl-hang"] is GOOD


def test_missing_arms_explain_nothing() -> None:
    """There is nothing to compare P2P or NVLS with."""
    hung = ended(nccl.h100(), DEFAULT, "hung")
    assert codes(judge_nccl(without(without(hung, P2P_OFF), NVLS_OFF))) == {"nccl-hang/fail"}
    assert judge_nccl(without(nccl.h100(), P2P_OFF)).agreement is Agreement.CONFIRMED


# -- slow starts, stalled launches


def slow(result: Result, *names: ArmName, phase: str = Phase.INIT, starts: int = 1) -> Result:
    """The NCCL run in which these arms did not start in time."""
    for name in names:
        result = ended(result, name, "start-slow", phase=phase, starts=starts, message="not started")
    return result


EVERY = (DEFAULT, P2P_OFF, NVLS_OFF)
NVLS_TOO = ended(nccl.h100(), P2P_OFF, "failed", phase=Phase.INIT)
STARTS = {
    "8 GPUs, every start is slow": (slow(nccl.h100(), *EVERY), {"nccl-start-slow/warn"}),
    "slow twice, but only with NVLS": (slow(nccl.h100(), DEFAULT, starts=2), {"nvls-broken/warn"}),
    "a cold first start, and no time for another": (slow(nccl.h100(), DEFAULT), {"nccl-start-slow/warn"}),
    "slow twice before NCCL was loaded": (
        slow(nccl.h100(), DEFAULT, phase=Phase.SPAWN, starts=2),
        {"nccl-start-slow/warn"},
    ),
    "slow twice, with P2P disabled too": (
        slow(nccl.h100(), DEFAULT, P2P_OFF, starts=2),
        {"nccl-start-slow/warn"},
    ),
    "2 GPUs, slow twice, but only with P2P": (
        slow(nccl.titan(), DEFAULT, starts=2),
        {"nccl-start-slow/warn"},
    ),
    "two cards behind a host bridge": (slow(nccl.phb(), DEFAULT, P2P_OFF), {"nccl-start-slow/warn"}),
    "4 GPUs, a hang in init by contract 1.2": (
        ended(nccl.h100(count=4), DEFAULT, "hung", phase=Phase.INIT),
        {"nccl-start-slow/warn"},
    ),
    "an error in init with NVLS, and with P2P disabled": (
        ended(NVLS_TOO, DEFAULT, "failed", phase=Phase.INIT),
        {"nccl-failed/warn"},
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_slow_start_is_no_hang_and_sets_no_taint(name: str) -> None:
    """NVLS is blamed only if the arms without it started and the one with it did not, twice."""
    result, expected = STARTS[name]
    judgement = judge_nccl(result)
    assert codes(judgement) == expected
    assert judgement.verdict is (Verdict.WARN if "nvls-broken/warn" in expected else Verdict.UNKNOWN)
    assert BAD not in judgement.answers.values()
    assert judgement.answers.get("nccl-hang") in (None, UNSURE)
    if expected == {"nccl-start-slow/warn"}:
        assert judgement.reason == "NcclStartSlow"


def test_a_slow_start_of_a_comparison_keeps_the_measurement() -> None:
    """The default configuration was measured: its bandwidth is graded, and no hang is cleared."""
    judgement = judge_nccl(slow(nccl.h100(), P2P_OFF, starts=2))
    assert (codes(judgement), judgement.verdict) == ({"nccl-start-slow/warn"}, Verdict.WARN)
    assert (judgement.busbw["all_reduce"], judgement.answers["nccl-hang"]) == (462, UNSURE)
    assert "P2P disabled" in finding(judgement, "nccl-start-slow").message


@pytest.mark.parametrize(
    ("first", "later", "severities"), [(15, 3, set()), (52, 3, {"info"}), (52, 40, {"warn"})]
)
def test_a_slow_start_warns_unless_a_later_arm_was_fast(first: int, later: int, severities: set[str]) -> None:
    """52 s of kernel loading from a cold image have been reported."""
    cold = nccl.swapped(nccl.titan(), DEFAULT, init_ms=1000, load_ms=first * 1000 - 1000)
    judgement = judge_nccl(nccl.swapped(cold, P2P_OFF, init_ms=later * 1000, load_ms=0))
    assert codes(judgement) == {f"slow-init/{severity}" for severity in severities}
    assert judgement.verdict is (Verdict.WARN if "warn" in severities else Verdict.PASS)


def test_latencies_of_a_throttled_pod_are_discarded() -> None:
    """Bandwidths of large messages are kept, and the finding says so."""
    judgement = judge_nccl(nccl.changed(nccl.h100(), throttled_periods=7))
    assert codes(judgement) == {"nccl-incomplete/info"}
    assert judgement.busbw["all_reduce"] == 462
    assert "4096" not in judgement.record


@pytest.mark.parametrize(
    ("us", "launch_us", "bound"),
    [(100.0, 95.0, True), (20.0, 16.0, True), (20.0, 15.0, False), (8.0, 30.0, True)],
)
def test_latencies_that_the_launch_makes_are_called_launch_bound(
    us: int, launch_us: int, bound: bool
) -> None:
    """They show the host; nothing else of the judgement changes."""
    small = [
        replace(cell, us=us, launch_us=launch_us) if cell.bytes == 8 else cell
        for cell in nccl.arm_of(nccl.h100(), DEFAULT).cells
    ]
    judgement = judge_nccl(nccl.with_cells(nccl.h100(), DEFAULT, *small))
    assert codes(judgement) == ({"nccl-incomplete/info"} if bound else set())
    assert judgement.verdict is Verdict.PASS
    if bound:
        assert "launch-bound" in finding(judgement, "nccl-incomplete").message


@pytest.mark.parametrize(("periods", "answer"), [(44, BAD), (45, UNSURE)])
def test_a_low_number_counts_unless_the_pod_was_throttled_half_of_the_time(
    periods: int, answer: Answer
) -> None:
    """45 periods of 100 ms are half of 9 s, so the CPU limit may have set the median."""
    judgement = judge_nccl(nccl.changed(nccl.h100(100), throttled_periods=periods))
    assert judgement.answers["busbw-low"] is answer
    low = finding(judgement, "busbw-low")
    assert low.severity is Severity.WARN
    again = judge_nccl(
        nccl.changed(nccl.h100(100), throttled_periods=periods), previous=judge_nccl(nccl.h100(100)).record
    )
    assert finding(again, "busbw-low").severity is (Severity.WARN if answer is UNSURE else Severity.FAIL)
    assert ("CPU limit" in low.message) is (answer is UNSURE)


# -- which setting is to blame


def all_hung(result: Result) -> Result:
    """The NCCL run in which every arm hung in its first calls."""
    for name in (DEFAULT, NVLS_OFF, P2P_OFF):
        result = ended(result, name, "hung")
    return result


def unchecked(result: Result, name: ArmName) -> Result:
    """The NCCL run without checked data in that arm."""
    cells = [replace(cell, wrong=NOT_READ) for cell in nccl.arm_of(result, name).cells]
    return nccl.with_cells(result, name, *cells)


@pytest.mark.parametrize(
    ("result", "expected", "p2p", "hint"),
    [
        (ended(nccl.phb(), DEFAULT, "hung", transport=SHM), {"nccl-hang/fail"}, UNSURE, "hung"),
        (all_hung(nccl.h100()), {"nccl-hang/fail"}, UNSURE, "hung"),
        (
            ended(nccl.h100(), DEFAULT, "failed", phase=Phase.LOAD, nvls=False),
            {"nccl-failed/warn"},
            None,
            "failed",
        ),
        (ended(nccl.h100(), DEFAULT, "hung", phase=Phase.MEASURE), {"nccl-hang/fail"}, GOOD, "NVLS disabled"),
        (wrong(nccl.titan(), DEFAULT), {"nccl-wrong-data/fail", "p2p-broken/fail"}, BAD, "P2P disabled"),
        (wrong(nccl.h100(), DEFAULT), {"nccl-wrong-data/fail"}, GOOD, "NVLS disabled"),
        (unchecked(wrong(nccl.titan(), DEFAULT), P2P_OFF), {"nccl-wrong-data/fail"}, UNSURE, "wrong"),
    ],
    ids=[
        "a hang without P2P",
        "every arm hangs",
        "NCCL did not use NVLS",
        "a hang after the start with NVLS",
        "wrong data only with P2P",
        "wrong data only with NVLS",
        "wrong data with P2P, unchecked without",
    ],
)
def test_p2p_and_nvls_are_blamed_only_if_another_arm_proves_it(
    result: Result, expected: set[str], p2p: Answer | None, hint: str
) -> None:
    """Otherwise the finding names the arms that worked."""
    judgement = judge_nccl(result)
    assert codes(judgement) == expected
    assert hint in judgement.findings[0].message
    assert judgement.answers.get("p2p-broken") is p2p


OFF = {"NCCL_NVLS_ENABLE": "0"}


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


@pytest.mark.parametrize(
    ("result", "message"),
    [
        pytest.param(ring(multicast=False), "NVLS multicast support is not available", id="nccl-892"),
        pytest.param(ring(gbps=367), "did not log multicast support, and made no NVLS channels", id="silent"),
        pytest.param(ring(multicast=True), "available, and made no NVLS channels", id="no-channels"),
        pytest.param(
            ring("NVIDIA B200", gbps=655, capability="10.0", nvls=True, multicast=True),
            "NCCL chose RING",
            id="b200-with-channels",
        ),
        pytest.param(
            ring("NVIDIA H100 80GB HBM3", algorithm="TREE", nvls=True), "NCCL chose TREE", id="h100-tree"
        ),
        pytest.param(
            ring(algorithm="", nvls=None, multicast=False), "not available", id="algorithm-not-logged"
        ),
        pytest.param(ring(virtualization=1, multicast=True), "made no NVLS channels", id="multicast-in-a-vm"),
        pytest.param(
            ring("NVIDIA B300 SXM6 AC", gbps=640, capability="10.3", multicast=False),
            "not available",
            id="b300",
        ),
    ],
)
def test_a_ring_where_nvls_is_possible_warns_with_what_nccl_said(result: Result, message: str) -> None:
    """Nothing fails, and the ring confirms NVLink; the finding says why NVLS is missing."""
    judgement = judge_nccl(result)
    assert codes(judgement) == {"nvls-unused/warn"}
    assert message in finding(judgement, "nvls-unused").message
    assert judgement.agreement is Agreement.CONFIRMED
    assert codes(regrade(judgement.record)) == {"nvls-unused/warn"}


@pytest.mark.parametrize(
    ("result", "environment", "message"),
    [
        pytest.param(ring(), OFF, "policy's environment", id="nvls-enable-0"),
        pytest.param(
            ring(), {"NCCL_ALGO": "Ring,Tree"}, "policy's environment", id="algorithms-without-nvls"
        ),
        pytest.param(
            ring(), {"NCCL_ALGO": "^NVLS,NVLSTree"}, "policy's environment", id="algorithms-avoided"
        ),
        pytest.param(ring(driver="525.105.17", multicast=False), {}, "driver 525", id="old-driver"),
        pytest.param(ring(virtualization=1, multicast=False), {}, "hypervisor", id="virtual-machine"),
    ],
)
def test_a_choice_and_a_platform_without_multicast_are_an_info(
    result: Result, environment: dict[str, str], message: str
) -> None:
    """Somebody decided it, or the node cannot have it: the node is healthy."""
    judgement = judge_nccl(result, environment=environment)
    assert (codes(judgement), judgement.verdict) == ({"nvls-unused/info"}, "pass")
    assert message in finding(judgement, "nvls-unused").message


@pytest.mark.parametrize(
    ("result", "environment"),
    [
        pytest.param(nccl.h100(), {}, id="nvls-ran"),
        pytest.param(ring(algorithm="NVLS_TREE", gbps=460), {"NCCL_ALGO": "NVLSTree"}, id="nvls-tree-ran"),
        pytest.param(ring(algorithm="", nvls=None), {}, id="nothing-logged"),
        pytest.param(ring(count=4), {}, id="four-gpus"),
        pytest.param(ring(count=5, multicast=False), {}, id="five-gpus"),
        pytest.param(ring("NVIDIA A100-SXM4-80GB", gbps=229, capability="8.0"), {}, id="before-hopper"),
        pytest.param(nccl.titan(), {}, id="no-switch"),
        pytest.param(ring(), {"NCCL_P2P_DISABLE": "1"}, id="p2p-disabled-by-the-policy"),
    ],
)
def test_nothing_is_said_where_nvls_ran_or_cannot_be_expected(
    result: Result, environment: dict[str, str]
) -> None:
    """Few GPUs, older GPUs, no switch, and no word from NCCL prove nothing."""
    listed = codes(judge_nccl(result, environment=environment))
    assert not [code for code in listed if code.startswith("nvls-unused")]


def test_nvls_that_is_broken_is_named_once() -> None:
    """A default arm that failed at its start has its own finding."""
    broken = nccl.swapped(nccl.h100(), ArmName.DEFAULT, outcome="failed", phase="init", cells=[], nvls=True)
    assert codes(judge_nccl(broken)) == {"nvls-broken/warn"}
