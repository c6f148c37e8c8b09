"""The real benchmark on simulated machines: what comes home is what the machine gives, whatever breaks.

Everything but GPUs and NCCL is real here: the probe, its children, their environment and end, the document
and the judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from nodegauge_contract import Arm, ArmName, ArmOutcome, Result, Skip, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_judge import Thresholds
from nodegauge_judge.nccl.judge import judge_nccl
from support.nccl_probe import simulated as run
from testbed import profiles
from testbed.hardware import FAULTS, plug

pytestmark = pytest.mark.slow

GIB = 1 << 30
LIMITS = {"NODEGAUGE_NCCL_LIMITS": "4,3,2"}
"""Seconds for starting, measuring and ending, where something is meant to hang."""
MEASURABLE = [
    name
    for name in profiles.names()
    if (machine := profiles.load(name)).nccl and len(machine.gpus) > 1 and not machine.model.mig_enabled
]
SHOWN = {"h100-runtime-hides-8": 2}
"""GPUs that a pod sees, where that is not all of them."""


def arm(result: Result, name: str) -> Arm:
    """One arm of a result."""
    assert result.nccl is not None
    return next(arm for arm in result.nccl.arms if arm.name == name)


def busbw(result: Result, name: str, *, collective: str = "all_reduce", size: int = GIB) -> float:
    """GB/s of one cell, by the formula of nccl-tests' doc/PERFORMANCE.md."""
    assert result.nccl is not None
    ranks = result.nccl.ranks
    [us] = [c.us for c in arm(result, name).cells if (c.collective, c.bytes) == (collective, size)]
    assert isinstance(us, (int, float))
    return size / us / 1000 * (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


@pytest.mark.parametrize("profile", MEASURABLE)
def test_every_machine_is_measured_as_what_it_is(tmp_path: Path, profile: str) -> None:
    """All arms end well, no cell is cut, the numbers are the profile's within noise, the judge sees no fault
    and confirms the interconnect, its part has room for it, and no process is left."""
    hardware = plug(profile, tmp_path / "hardware")
    ran = run(hardware)
    nccl, known = ran.nccl, hardware.profile.nccl
    assert nccl is not None
    assert known is not None

    ranks = SHOWN.get(profile, hardware.gpu_count)
    assert (nccl.engine, nccl.ranks, nccl.skipped) == ("simulated", ranks, "")
    assert set(nccl.cut) <= {f"pairs/{GIB // 4}"}  # of 240 pairs: copied in smaller pieces
    assert {one.outcome for one in nccl.arms} == {ArmOutcome.DONE}
    assert nccl.uuids == hardware.uuids[:ranks]
    nvls = 0 < known.nvls_from <= ranks
    way = known.ways["nvls" if nvls else "p2p" if "p2p" in known.ways else "host"]
    wanted = way.busbw["all_reduce"]
    best = wanted[max(n for n in wanted if n <= ranks)]
    assert busbw(ran, ArmName.DEFAULT) == pytest.approx(best, rel=0.02)
    assert arm(ran, ArmName.DEFAULT).nvls is nvls
    off = arm(ran, ArmName.P2P_OFF)
    assert (off.transport, off.nvls, off.host_buffers) == ("SHM/direct/direct", False, "/dev/shm")
    assert [row[n] for n, row in enumerate(arm(ran, ArmName.DEFAULT).pairs)] == [-1] * ranks
    judged = judge_nccl(ran)
    assert judged.verdict in ("pass", "unknown"), judged.summary
    assert judged.agreement in ("confirmed", "unsure"), judged.message
    assert len(text(ran)) <= 0.8 * PART_BYTES["nccl"]
    assert ran.problem is None


TITAN, H100, OOM, AGAINST = "titan-rtx-nv2", "h100-sxm-8", "out-of-memory", "contradicted"
PCIE_SPEED, NO_START = "busbw-low interconnect-contradicted pair-slow", "nccl-start-slow"
Parameters = dict[str, str | int]
DEFAULT: Parameters = {"arm": "default"}
KILLED: Parameters = {"kind": "killed", **DEFAULT}
P2P_OFF: Parameters = {"arm": "p2p-off"}
NVLS_OFF: Parameters = {"arm": "nvls-off"}


class Ends(NamedTuple):
    """How a run ends: outcome of each arm, phase in which the first did, codes of the judge, verdict."""

    fault: str
    parameters: Parameters
    profile: str
    arms: str
    phase: str
    codes: str
    verdict: str
    agreement: str = ""


def at(phase: str, parameters: Parameters = DEFAULT) -> Parameters:
    """In a phase of the default arm alone: peer access is what makes the difference."""
    return {"phase": phase, **parameters}


ENDS = [
    *(
        Ends("nccl-hang", at(phase), TITAN, "hung done", phase, "p2p-broken", "fail")
        for phase in ("load", "measure", "check", "pairs", "teardown")
    ),
    Ends("nccl-hang", {"phase": "load"}, TITAN, "hung hung", "load", "nccl-hang", "fail"),
    Ends("nccl-hang", {"phase": "init"}, TITAN, "start-slow start-slow", "init", NO_START, "unknown"),
    Ends("nccl-hang", at("init"), TITAN, "start-slow done", "init", NO_START, "unknown"),
    Ends("nccl-hang", at("init", P2P_OFF), TITAN, "done start-slow", "", NO_START, "warn"),
    Ends("nccl-hang", P2P_OFF, TITAN, "done hung", "", "nccl-hang", "fail"),
    Ends("nccl-hang", NVLS_OFF, H100, "done done hung", "", "nccl-hang", "fail"),
    Ends("nccl-crash", {}, TITAN, "crashed crashed", "measure", "nccl-failed", "unknown"),
    Ends("nccl-crash", at("init"), TITAN, "crashed done", "init", "nccl-failed", "unknown"),
    Ends("nccl-crash", KILLED, TITAN, f"{OOM} done", "measure", "nccl-failed", "unknown"),
    Ends("nccl-error", DEFAULT, TITAN, "failed done", "init", "nccl-failed", "unknown"),
    Ends("nccl-out-of-memory", DEFAULT, TITAN, f"{OOM} done", "load", "nccl-failed", "unknown"),
    Ends("nccl-garbage", DEFAULT, TITAN, "garbage done", "measure", "nccl-failed", "warn"),
    Ends("nccl-partial", DEFAULT, TITAN, "partial done", "measure", "nccl-failed", "warn"),
    Ends("nccl-wrong-data", {}, TITAN, "done done", "", "nccl-wrong-data", "fail"),
    Ends("nccl-wrong-data", DEFAULT, TITAN, "done done", "", "nccl-wrong-data p2p-broken", "fail"),
    Ends("nccl-nvls-broken", {}, H100, "failed done done", "init", "nvls-broken", "warn"),
    Ends("nccl-nvls-broken", {"kind": OOM}, H100, f"{OOM} done done", "init", "nvls-broken", "warn"),
    Ends("slow-link", {"gpu": 2, "peer": 5}, H100, "done done done", "", "busbw-low pair-slow", "warn"),
    Ends("nccl-slow", {}, H100, "done done done", "", "busbw-low", "warn"),
    Ends("nvlink-down-in-fact", {}, H100, "done done done", "", f"{PCIE_SPEED} nvls-unused", "warn", AGAINST),
    Ends("nvlink-down-in-fact", {}, TITAN, "done done", "", PCIE_SPEED, "warn", AGAINST),
    Ends("p2p-refused", {}, TITAN, "failed done", "init", "nccl-failed", "unknown"),
]


@pytest.mark.parametrize("ends", ENDS, ids=lambda ends: " ".join((ends.fault, *ends[2:5])))
def test_a_fault_ends_in_its_verdict_and_leaves_no_process(tmp_path: Path, ends: Ends) -> None:
    """Each arm by itself, with the phase that it was in; the judge names what is wrong; nothing lives on."""
    hardware = plug(ends.profile, tmp_path / "hardware")
    hardware.fault(ends.fault, **ends.parameters)
    ran = run(hardware, more=LIMITS if ends.fault == "nccl-hang" else {})
    assert ran.nccl is not None
    assert [one.outcome for one in ran.nccl.arms] == ends.arms.split()
    assert arm(ran, ArmName.DEFAULT).phase == ends.phase
    judged = judge_nccl(ran)
    assert [finding.code for finding in judged.findings] == ends.codes.split()
    assert (judged.verdict, ends.agreement in ("", judged.agreement)) == (ends.verdict, True), judged.message


def test_every_fault_of_the_child_has_its_end() -> None:
    """Those that show in another way have tests of their own, here and of devices and load."""
    own = {"nccl-no-engine", "nccl-cold-init", "nccl-unsteady", "nccl-in-real-time", "gpu-in-use"}
    own |= {"device-unhealthy", "bit-flips", "shared-uplink", "slow-gpu"}
    ours = {name for name, fault in FAULTS.items() if fault.module == "faults_runs"}
    assert {ends.fault for ends in ENDS} - {"p2p-refused"} == ours - own


def test_a_cold_start_is_told_apart_from_measuring(tmp_path: Path) -> None:
    """Communicators take two seconds more, in the arm that they take them in."""
    hardware = plug(TITAN, tmp_path / "hardware")
    hardware.fault("nccl-cold-init", seconds=2, arm="default")
    ran = run(hardware)
    cold = arm(ran, ArmName.DEFAULT).init_ms
    assert isinstance(cold, int)
    assert cold >= 2000
    assert judge_nccl(ran, thresholds=Thresholds(slow_init_seconds=1)).findings[0].code == "slow-init"


def test_runs_that_disagree_ask_for_a_third(tmp_path: Path) -> None:
    """Two runs of which one reaches 80 per cent: the judge wants another; the same names give the same."""
    hardware = plug(TITAN, tmp_path / "hardware")
    hardware.fault("nccl-unsteady")
    machine_file = {name: run(hardware, name=name) for name in "1234"}
    by_speed = {name: busbw(result, ArmName.DEFAULT) for name, result in machine_file.items()}
    fast, slow = max(by_speed, key=lambda n: by_speed[n]), min(by_speed, key=lambda n: by_speed[n])
    assert by_speed[slow] == pytest.approx(0.8 * by_speed[fast], rel=0.03)
    assert busbw(run(hardware, name=slow), ArmName.DEFAULT) == by_speed[slow]
    first = judge_nccl(machine_file[fast])
    assert not first.again
    assert judge_nccl(machine_file[slow], previous=first.record).again


@pytest.mark.parametrize(
    ("fault", "parameters", "reason"),
    [
        ("gpu-in-use", {"gpu": 1}, Skip.BUSY),
        ("gpu-lost", {"gpu": 1}, Skip.SINGLE_GPU),
        ("nccl-no-engine", {}, Skip.NO_ENGINE),
    ],
)
def test_what_cannot_be_measured_is_skipped(
    tmp_path: Path, fault: str, parameters: dict[str, int], reason: Skip
) -> None:
    """With the reason, without a child, and without a finding."""
    hardware = plug(TITAN, tmp_path / "hardware")
    hardware.fault(fault, **parameters)
    ran = run(hardware)
    assert ran.nccl is not None
    assert (ran.nccl.skipped, ran.nccl.arms) == (reason, [])
    assert judge_nccl(ran).verdict == "skipped"
