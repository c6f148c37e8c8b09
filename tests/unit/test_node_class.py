"""The label nodegauge.dev/class: what measures it, what changes it, and that nothing makes it flap."""

import random

import pytest

import support.nccl_results as nccl
import support.results as made
from fleet.machines import FAULTS, template
from nodegauge_contract import Result
from nodegauge_operator import names
from support.nccl_nodes import BUSY, DAY, FAST, NODE, SLOW, WRONG, NcclNode, nccl_node
from support.objects import LOST, NOW, make_node

HOUR = 3600.0
H100 = made.every_gpu(made.h100(8), pcie=nccl.GEN5, compute_capability="9.0")
RINGS = nccl.node(
    H100, nccl.default_arm(355.0, gather=355.0, ranks=8, algorithm="RING"), nccl.p2p_off_arm(28.0, ranks=8)
)
"""As fast as rings are, where NVLS is to be had."""
BELOW_RINGS = nccl.h100(250.0, gather=200.0)
FULL, RING = "nvlink-h100sxm-full", "nvlink-h100sxm-ring"
MEASURED = nccl_node().measured(FAST)
MIG = made.every_gpu(made.h100(), mig=1)
L40S = made.every_gpu(made.phb(), name="NVIDIA L40S", pcie=nccl.GEN4, compute_capability="8.9")


def klass(report: NcclNode) -> str:
    return report.status.desired.labels.get(names.LABEL_CLASS, "")


def of_machine(health: Result, run: Result) -> str:
    node = make_node().offering(len(health.gpus))
    return klass(nccl_node(node, result=health).measured(run, node))


def test_the_words_of_a_class() -> None:
    of_l40s = nccl.default_arm(11.0, gather=11.0, ranks=2, algorithm="RING", transport=nccl.SHM)
    assert klass(MEASURED) == FULL
    assert of_machine(made.h100(), RINGS) == RING
    assert of_machine(L40S, nccl.node(L40S, of_l40s, nccl.p2p_off_arm(11.0, ranks=2))) == "pcie-l40s-full"
    assert of_machine(made.titan(), nccl.titan()) == "nvlink-titanrtx-full"
    renamed = made.every_gpu(made.titan(), name="NVIDIA RTX of tomorrow")
    assert of_machine(renamed, nccl.titan()) == "", "no word for a model is no class"


@pytest.mark.parametrize("run", [BUSY, LOST, SLOW, WRONG, BELOW_RINGS])
def test_a_run_that_confirms_nothing_gives_no_class_and_takes_none(run: Result) -> None:
    assert klass(nccl_node()) == klass(nccl_node().measured(run)) == ""
    assert klass(MEASURED.measured(run, at=NOW + 60)) == FULL


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "power-brake"])
def test_a_faulty_node_keeps_its_class_and_has_a_taint(fault: str) -> None:
    report = MEASURED.healthy(result=template("8x H100", "", loaded=True), at=NOW + 60)
    for number in range(1, 5):
        bad = template("8x H100", fault, loaded=True)
        report = report.healthy(result=bad, at=NOW + number * 900)
    assert klass(report) == FULL
    assert report.status.gates
    assert report.status.desired.labels[names.LABEL_HEALTH] == "fail"


def test_another_class_takes_two_runs_and_a_day() -> None:
    once = MEASURED.measured(RINGS, at=NOW + 2 * DAY)
    assert [klass(once), klass(once.measured(RINGS, at=NOW + 2 * DAY + 600))] == [FULL, RING]
    assert klass(once.measured(FAST, at=NOW + 3 * DAY).measured(RINGS, at=NOW + 4 * DAY)) == FULL
    early = MEASURED.measured(RINGS, at=NOW + HOUR).measured(RINGS, at=NOW + 2 * HOUR)
    assert [klass(early), klass(early.measured(RINGS, at=NOW + DAY))] == [FULL, RING]


def test_a_reboot_takes_it_until_the_next_reading() -> None:
    booted = NODE.booted("boot-2")
    assert klass(MEASURED.seen(node=booted, at=NOW + 900)) == ""
    assert klass(MEASURED.healthy(booted, at=NOW + 900)) == FULL


def test_a_node_that_is_something_else_has_no_class_until_it_is_measured() -> None:
    other = MEASURED.healthy(result=made.every_gpu(made.h100(), name="NVIDIA H200"), at=NOW + 900)
    assert klass(other) == klass(other.healthy(at=NOW + 1800)) == "", "at once, and only a run brings it back"
    assert klass(other.healthy(at=NOW + 1800).measured(FAST, at=NOW + 2000)) == FULL
    divided = MEASURED.healthy(result=MIG, at=NOW + 900)
    assert [klass(divided), klass(divided.healthy(result=MIG, at=NOW + 1800))] == [FULL, ""]
    assert klass(MEASURED.measured(SLOW, at=NOW + 60).measured(SLOW, at=NOW + 660)) == ""


@pytest.mark.slow
def test_never_two_classes_within_a_day_whatever_happens() -> None:
    """Faults of the testbed, reboots, GPUs of another model and NCCL runs of all kinds, for 40 days."""
    chance, report, node = random.Random(7), nccl_node(), NODE
    healths = [made.h100(), MIG, made.every_gpu(made.h100(), name="NVIDIA H200")]
    healths += [template("8x H100", fault, loaded=True) for fault in FAULTS]
    runs = [FAST, RINGS, RINGS, SLOW, WRONG, BELOW_RINGS, BUSY, LOST]
    health, run, seen = healths[0], runs[0], [(NOW - DAY, "")]
    for step in range(40 * 6):
        at = NOW + step * 4 * HOUR
        health = chance.choice(healths) if chance.random() < 0.2 else health
        run = chance.choice(runs) if chance.random() < 0.4 else run
        node = node.booted(f"boot-{step}") if chance.random() < 0.03 else node
        report = report.healthy(node, result=health, at=at).measured(run, node, at=at + 60)
        if klass(report) not in ("", seen[-1][1]):
            assert at - seen[-1][0] >= DAY, f"{seen[-1]} -> {klass(report)}"
            seen.append((at, klass(report)))
    assert {value for _, value in seen} == {"", FULL, RING}
    assert len(seen) > 4
