"""Properties of rules and of the judge over many documents, and what it computes once for each wiring."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import nodegauge_judge as judge
import support.results as made
from nodegauge_contract import Result, Unavailable
from nodegauge_contract.matrix import render
from nodegauge_contract.model import Nics, System
from nodegauge_contract.nvlink import lanes
from nodegauge_judge import CATALOGUE, Answer, History, Severity, Verdict, judge_health
from nodegauge_judge.chassis.judge import CHASSIS_RULES
from nodegauge_judge.interconnect.p2p import examine
from nodegauge_judge.loadtest_rules.judge import LOAD_RULES
from nodegauge_judge.model import Cause, GateKind
from nodegauge_judge.nccl.judge import NCCL_RULES
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules import HEALTH_RULES, stated
from support.disturbing import disturbed
from support.judge_results import LOST, every, node, resting, working

MACHINES = [
    made.h100(),
    made.dgx1(),
    made.dgx1([0, 1, 2, 3]),
    made.titan(),
    made.rtx3090(),
    made.phb(),
    made.a100_bridged_pairs(),
    made.ncv4(),
    made.hgx_a100_4(),
    node(4),
    every(node(), **resting()),
    every(node(), **working(bits={0x8: 12, 0x20: 3, 0x80: 1})),
]
SWITCHED = [
    made.h100(2),
    made.switched(2, name="NVIDIA Z100", links=18, mbps=25_000),
    made.switched(4, name="NVIDIA B200", links=18, mbps=53_125),
    made.switched(3, name="NVIDIA H800", links=8, mbps=26_562),
    made.switched(2, name="NVIDIA A100-SXM4-80GB", links=12, mbps=25_000, virtualization=1),
]
"""Few GPUs behind switches, whose links a test can take nearly all; a model without a source among them."""
machines = st.sampled_from(MACHINES)
GATED = {
    rule.code
    for rule in HEALTH_RULES
    if rule.gate is not None and rule.gate.judged is not judge.Judged.UNREAD
}
quickly = settings(max_examples=60, derandomize=True)


@quickly
@given(machines, st.integers(0, 2**32), st.integers(1, 60), machines, st.integers(0, 64))
def test_no_document_makes_the_judge_raise(
    machine: Result, seed: int, times: int, past: Result, capacity: int
) -> None:
    result = disturbed(machine, seed=seed, times=times)
    history = judge_health(disturbed(past, seed=seed + 1, times=times // 4)).history
    facts = judge.NodeFacts(gpu_capacity=capacity, sharing=judge.Sharing.EXCLUSIVE)
    judgement = judge_health(result, history=history, node=facts)
    msgspec.json.encode(judgement)
    assert {finding.code for finding in judgement.findings} <= set(CATALOGUE)
    assert all(finding.severity in CATALOGUE[finding.code].when for finding in judgement.findings)
    assert judgement.readable == (judgement.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL))
    assert len(judgement.history.encode()) <= 2048
    assert (judgement.interconnect.nvlink_gbps is None) or judgement.interconnect.klass == "nvlink"
    assert judgement.summary
    assert judgement.interconnect.reason
    assert set(judgement.answers) == (GATED if judgement.readable else set())
    failed = {f.code for f in judgement.findings if f.severity is Severity.FAIL} & GATED
    bad = {code for code, answer in judgement.answers.items() if answer is Answer.BAD}
    assert bad == (failed if judgement.readable else set())
    assert History.decode(judgement.history.encode()) == judgement.history


@quickly
@given(machines, st.randoms(use_true_random=False), st.integers(0, 2**32))
def test_the_order_of_gpus_does_not_matter(machine: Result, chance: random.Random, seed: int) -> None:
    """NVML's index is not stable over reboots: class, bandwidth, verdict and memory must be."""
    size = len(machine.gpus)
    worn = made.without_links(machine, seed % size, count=seed % 3)
    order = list(range(size))
    chance.shuffle(order)
    turned = made.shuffled(worn, order)
    one, other = judge_health(worn), judge_health(turned)
    assert one.interconnect.klass == other.interconnect.klass
    assert one.interconnect.nvlink_gbps == other.interconnect.nvlink_gbps
    assert one.verdict == other.verdict
    assert one.history == other.history
    pair, again = lanes(worn).pair, lanes(turned).pair
    assert all(again[i][j] == pair[order[i]][order[j]] for i in range(size) for j in range(size))


@quickly
@given(st.sampled_from([*MACHINES, *SWITCHED]), st.lists(st.integers(0, 7), min_size=1, max_size=40))
@example(made.h100(2), [0] * 5 + [1])
@example(made.switched(2, name="NVIDIA Z100", links=18, mbps=25_000), [0] * 5 + [1])
@example(made.switched(2, name="NVIDIA A100-SXM4-80GB", links=12, mbps=25_000), [0, 1, 1, 1, 1, 0])
def test_taking_links_away_never_raises_the_bandwidth(machine: Result, taken: list[int]) -> None:
    """Link by link, on any GPU, with a history or without: nvlink-gbps falls, stays, or goes for good."""
    for past in (History(), judge_health(machine).history):
        result, lowest = machine, judge_health(machine, history=past).interconnect.nvlink_gbps
        gone = lowest is None
        for gpu_index in taken:
            result = _one_less(result, gpu_index % len(machine.gpus))
            after = judge_health(result, history=past).interconnect.nvlink_gbps
            assert after is None or (lowest is not None and after <= lowest)
            assert after is None or not gone
            lowest, gone = (lowest if after is None else after), after is None


def _one_less(result: Result, gpu_index: int) -> Result:
    """One active link of the GPU goes down, at both ends of the document's telling."""
    groups = list(result.gpus[gpu_index].links)
    for n, group in enumerate(groups):
        if group.state == 1:
            rest = [replace(group, links=group.links[1:])] if len(group.links) > 1 else []
            groups[n : n + 1] = [replace(group, links=group.links[:1], state=0), *rest]
            break
    return made.with_gpu(result, gpu_index, links=groups)


CARDS = Nics(names=["mlx5_0", "mlx5_1"], to_gpu=[["PIX"] * 8] * 2, to_nic=[["X", "SYS"], ["SYS", "X"]])
MACHINE = replace(made.with_gpu(made.dgx1(), 7, links=[]), nics=CARDS)
OF_A_GPU: dict[str, Any] = {"index": 9, "pci": "0000:ff:00.0", "compute_capability": "5.2", "mig": 1}
OF_A_GPU |= {"error": LOST, "cpus": "7-9", "memory_nodes": "3", "gpu_numa_id": 4}
UNREAD = [[Unavailable("x")] * 8] * 8
CHANGES = [
    *(made.with_gpu(MACHINE, 0, **{name: value}) for name, value in OF_A_GPU.items()),
    made.with_links(MACHINE, 0, state=0),
    made.every_gpu(MACHINE, switch_links=6),
    replace(MACHINE, system=System(driver="418.87.01")),
    replace(MACHINE, pairs=replace(MACHINE.pairs, ancestor=[])),
    *(
        replace(MACHINE, pairs=replace(MACHINE.pairs, **{name: UNREAD}))
        for name in ("read", "write", "nvlink")
    ),
    *(replace(MACHINE, nics=replace(CARDS, **{name: []})) for name in ("names", "to_gpu", "to_nic")),
]


@pytest.mark.parametrize("other", CHANGES, ids=range(len(CHANGES)))
def test_another_wiring_is_computed_anew(other: Result) -> None:
    known, joined, seen = (
        judge.topology.build_topology(MACHINE),
        lanes(other),
        judge.topology.build_topology(other),
    )
    assert seen != known
    assert (seen.lanes, seen.p2p) == (joined, tuple(examine(other, joined)))
    assert seen.matrix == render(other, joined=joined)


def test_the_same_wiring_is_computed_once() -> None:
    same = made.every_gpu(MACHINE, uuid="GPU-1", serial="7")
    assert judge.topology.build_topology(same) is judge.topology.build_topology(MACHINE)
    for n in range(2 * judge.topology.MOST):
        judge.topology.build_topology(made.with_gpu(made.h100(), 0, cpus=str(n)))
    assert len(judge.topology._known) <= judge.topology.MOST


@pytest.mark.parametrize("rule", CATALOGUE.values(), ids=lambda rule: rule.code)
def test_a_rule_says_what_it_means_when_it_applies_and_what_to_do(rule: judge.Rule[Any]) -> None:
    assert rule.when
    assert rule.title[0].islower() or rule.title.startswith(("NVLink", "GPU", "PCIe", "NCCL", "12 V"))
    assert not rule.title.endswith(".")
    assert rule.meaning.endswith(".")
    assert rule.next_step.endswith(".")
    assert rule.way_out
    assert all(not text.endswith(".") for text in rule.when.values())
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.code)
    assert "  " not in rule.meaning + rule.next_step + "".join(rule.way_out)
    if rule.effect is judge.Effect.UNJUDGED:
        assert set(rule.when) == {Severity.WARN}
    else:
        # whether a machine that leaks goes on working is its owner's decision, and a paste taints no node
        ungated = rule.code == "leak" or rule in stated.RULES
        assert Severity.FAIL not in rule.when or rule.gate is not None or ungated


def test_every_code_has_one_rule() -> None:
    """Two rules with one code would hide each other in the catalogue."""
    codes = [rule.code for rule in (*HEALTH_RULES, *NCCL_RULES, *CHASSIS_RULES, *LOAD_RULES)]
    assert len(codes) == len(set(codes))
    assert codes == list(CATALOGUE)


def test_a_rule_makes_one_finding_per_severity_that_describes_the_worst_location() -> None:
    def check(weights: list[float]) -> list[Observation]:
        return [
            Observation(
                severity=Severity.WARN if weight < 5 else Severity.FAIL,
                location=f"GPU {number} (here)",
                short=f"GPU {number}",
                message="Too much.",
                evidence={"weight": weight},
                weight=weight,
            )
            for number, weight in enumerate(weights)
        ]

    rule = judge.Rule(
        code="x", title="x", meaning="x.", when={}, next_step="look.", way_out=("Look.",), check=check
    )
    fail, warn = rule.findings([1, 7, 9, 4, 7])
    assert (fail.severity, fail.subject) == (Severity.FAIL, "GPU 2 (here) and 2 more")
    assert (fail.message, fail.evidence) == ("Too much. Next: look.", {"weight": 9, "also": "GPU 1, GPU 4"})
    assert (warn.subject, warn.evidence) == ("GPU 3 (here) and 1 more", {"weight": 4, "also": "GPU 0"})
    (many,) = rule.findings([1] * 20)
    assert str(many.evidence["also"]).endswith("GPU 16 and 3 more")
    assert list(rule.findings([])) == []


def test_the_number_of_a_rule_in_a_stored_history_never_changes() -> None:
    """A report that an earlier version wrote must keep its meaning."""
    bits = {rule.history_bit: rule.code for rule in HEALTH_RULES if rule.history_bit is not None}
    codes = ("hot", "memory-hot", "sw-thermal-slowdown", "hw-slowdown", "slow-clock", "pcie-narrow")
    assert bits == dict(enumerate(codes))


def test_a_rule_whose_gate_cannot_be_left_is_refused() -> None:
    """Without a way to answer good, a taint would leave only by probation."""
    rule = next(rule for rule in HEALTH_RULES if rule.code == "hot")
    gate = judge.Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=judge.Judged.UNDER_LOAD)
    for broken in (
        {"answer_per_gpu": None},
        {"gate": None},
        {"gate": replace(gate, judged=judge.Judged.ALWAYS)},
        {"gate": replace(gate, judged=judge.Judged.UNREAD)},
        {"history_bit": None},
        {"answer": lambda _: Answer.GOOD},
        {"gate": None, "answer_per_gpu": None},
    ):
        with pytest.raises(ValueError, match="hot: a gate"):
            replace(rule, **broken)
    with pytest.raises(ValueError, match="no gate"):  # missing data never changes a verdict
        replace(next(rule for rule in HEALTH_RULES if rule.code == "ecc"), effect=judge.Effect.UNJUDGED)


def test_thresholds_in_the_sentences_exist_with_the_defaults_that_they_give() -> None:
    fields = {field.encode_name: field.default for field in msgspec.structs.fields(judge.Thresholds)}
    text = " ".join(text for rule in CATALOGUE.values() for text in (rule.meaning, *rule.when.values()))
    named = re.findall(r"`([a-z]+[A-Z]\w*)` \((?:default )?([\d.]+)\)", text)
    assert set(re.findall(r"`([a-z]+[A-Z]\w*)`", text)) <= set(fields)
    assert len(named) > 30
    assert all(float(number) == fields[name] for name, number in named)
