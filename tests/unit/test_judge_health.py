"""The judgement as a whole, what is true of all rules, and of the judge over many documents."""

import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import nodegauge_judge
import support.nccl_results as nccl
import support.results as made
from fuzz.mutation import ODD
from nodegauge_contract import Bus, Fan, Gpu, Power, Problem, Repair, Result, Temperature, Unavailable
from nodegauge_contract.matrix import render
from nodegauge_contract.model import Nics, System
from nodegauge_contract.nvlink import lanes
from nodegauge_judge import (
    CATALOGUE,
    Answer,
    Finding,
    GpuIdentity,
    History,
    Judged,
    Severity,
    Thresholds,
    ThresholdsInvalid,
    Verdict,
    judge_health,
    topology,
)
from nodegauge_judge.case import identity, lower_watts
from nodegauge_judge.chassis.judge import CHASSIS_RULES
from nodegauge_judge.feed.rules import FEED_RULES
from nodegauge_judge.interconnect.p2p import examine
from nodegauge_judge.loadtest_rules.judge import LOAD_RULES
from nodegauge_judge.nccl.judge import NCCL_RULES, judge_nccl, regrade
from nodegauge_judge.rule import (
    DRAIN,
    OUT_OF_SERVICE,
    PLACEHOLDERS,
    SAVE,
    SAVE_FIRST,
    VENDOR,
    Observation,
    filled,
)
from nodegauge_judge.rules import HEALTH_RULES, stated
from support.api_server import copied
from support.judge_results import LOST, every, judge, node, only, resting, working
from support.objects import paths_of


def test_nothing_readable_is_unknown() -> None:
    judgement = judge_health(Result(probe="health", gpus=[Gpu(index=0), Gpu(index=1)]))
    assert (judgement.verdict, judgement.readable) == (Verdict.UNKNOWN, False)
    assert "nothing was readable" in judgement.summary


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (made.h100(), "8x NVIDIA H100 80GB HBM3: healthy; NVLink joins all GPUs, 450 GB/s per GPU one way."),
        (
            made.with_gpu(made.phb(), 0, name="NVIDIA A10"),
            "2x NVIDIA A10 + NVIDIA GeForce RTX 4090: healthy; no NVLink, GPUs talk over PCIe.",
        ),
        (
            made.mesh([[0]], name="Tesla T4", mbps=0),
            "1x Tesla T4: healthy; one GPU: there is nothing to join.",
        ),
        (
            made.with_gpu(made.titan(), 1, error=LOST),
            "2x NVIDIA TITAN RTX: a GPU is lost: GPU 1 (0000:10:00.0) [gpu-lost].",
        ),
        (
            Result(probe="health", problem=Problem(kind="driver-mismatch", message="550.54 and 550.90")),
            "Could not be judged: driver library and kernel module differ: 550.54 and 550.90 "
            "[driver-mismatch].",
        ),
        (
            made.with_gpu(made.titan(), 1, error=Problem(kind="call-hung", call="nvmlDeviceGetUUID")),
            "2x NVIDIA TITAN RTX: could not be judged: GPU 1 (0000:10:00.0): an NVML call did not return: "
            "problem call-hung (in nvmlDeviceGetUUID) [call-hung].",
        ),
    ],
)
def test_the_summary_is_one_sentence(result: Result, text: str) -> None:
    assert judge_health(result).summary == text


def test_the_summary_counts_other_findings_without_info() -> None:
    hot = made.every_gpu(made.titan(), temperature=Temperature(gpu=84, gpu_max=85), window=None)
    two = made.with_gpu(made.with_pair(hot, 0, 1, read=5), 0, vbios="1")
    assert judge_health(two).summary.endswith("[p2p-refused]; 1 more finding.")
    three = made.with_gpu(two, 1, power=replace(two.gpus[1].power, enforced_limit_mw=100_000))
    assert judge_health(three).summary.endswith("[p2p-refused]; 2 more findings.")


def test_foreign_text_is_clipped_and_kept_on_one_line() -> None:
    result = Result(probe="health", problem=Problem(kind="crashed", message="line\n" * 100))
    message = only(judge_health(result)).message
    assert ("\n" in message, len(message) < 400) == (False, True)


def test_invalid_thresholds_are_refused_by_name() -> None:
    assert Thresholds.from_spec({"hotWarn": 75, "nvlinkSumRatio": 0.5}).nvlink_sum_ratio == 0.5
    assert Thresholds.from_spec({}) == Thresholds()
    for spec, named in [
        ({"hotWarn": 900}, "spec.thresholds.hotWarn"),
        ({"hotWam": 75}, "hotWam"),
        ({"railLow": 7}, "railLow"),
        ({"powerCapRatio": "x"}, "powerCapRatio"),
        ({"peersWarn": 0.08}, "peersWarn"),
    ]:
        with pytest.raises(ThresholdsInvalid, match=named):
            Thresholds.from_spec(spec)


def disturbed(whole: Result, *, seed: int, times: int) -> Result:
    """The document with so many values replaced by strange ones that its types allow: what a newer probe, a
    broken driver or a hostile pod might send."""
    chance, document = random.Random(seed), msgspec.json.decode(msgspec.json.encode(whole))
    paths = paths_of(document)
    for _ in range(times):
        *path, last = chance.choice(paths)
        target = document
        for key in path:
            target = target[key]
        before, target[last] = target[last], copied(chance.choice(ODD))
        try:
            msgspec.convert(document, Result)
            paths = paths_of(document)
        except msgspec.ValidationError:
            target[last] = before
    return msgspec.convert(document, Result)


quickly = settings(max_examples=60, derandomize=True)
COMMANDS = re.compile(r"`([^`]+)`")
PLACEHOLDER = re.compile(r"\b(?:" + "|".join(PLACEHOLDERS) + r"|NAMESPACE|PROBE-POD|COUNT|INTERFACE)\b")
SPOKEN_BY_TOOLS = {
    *("CLOCK", "PERFORMANCE", "POWER", "TEMPERATURE", "ECC", "ROW_REMAPPER", "NVRM", "NCCL_DEBUG", "INFO"),
    *("NCCL_DEBUG_SUBSYS", "INIT", "NCCL_NVLS_ENABLE"),
}
"""Words in capitals that a command really contains."""


def serial(gpu_index: int) -> str:
    return f"165492200{gpu_index:04d}"


def with_serials(result: Result) -> Result:
    return replace(result, gpus=[replace(gpu, serial=serial(gpu.index)) for gpu in result.gpus])


def of(gpu_index: int) -> GpuIdentity:
    return GpuIdentity(
        index=gpu_index, uuid=made.uuid(gpu_index), serial=serial(gpu_index), pci=made.pci(gpu_index)
    )


def finding_of(code: str, **more: Any) -> Finding:
    return Finding(code=code, severity=Severity.FAIL, subject="", message="", **more)


def fourth(**changes: Any) -> Result:
    return with_serials(made.with_gpu(made.h100(), 3, **changes))


fewer = made.without_links(made.h100(), 3, count=6)


@pytest.mark.parametrize(
    ("result", "code", "command"),
    [
        (fourth(fans=[Fan(rpm=0, target=60)]), "fan-stopped", ""),
        (fourth(repair=Repair(rows_pending=1)), "row-remap", "`nvidia-smi --gpu-reset -i 3`"),
        (with_serials(fewer), "nvlink-degraded", "`nvidia-smi nvlink -s -i 3`"),
    ],
)
def test_a_finding_about_a_gpu_has_its_identity(result: Result, code: str, command: str) -> None:
    finding = next(finding for finding in judge_health(result).findings if finding.code == code)
    assert finding.gpus == [of(3)]
    assert finding.subject.startswith("GPU 3 (")
    assert command in finding.message


def test_every_other_location_has_its_own_measurement_and_identity() -> None:
    result = with_serials(made.h100())
    for gpu_index in (1, 4, 6):
        result = made.with_gpu(result, gpu_index, repair=Repair(action=1))
    judgement = judge_health(result)
    matches = [finding for finding in judgement.locations if finding.code == "recovery-action"]
    assert [finding.gpus for finding in matches] == [[of(1)], [of(4)], [of(6)]]
    assert all("reset" in finding.message and finding.evidence for finding in matches)
    assert len([finding for finding in judgement.findings if finding.code == "recovery-action"]) == 1


def test_a_lost_gpu_is_named_by_what_was_known_of_it() -> None:
    whole = with_serials(made.h100())
    bus = Bus(gpus=[made.pci(n) for n in range(7)])
    gone = replace(made.later(with_serials(made.h100(7))), bus=bus)
    past = judge_health(made.with_bus(whole)).history
    judgement = judge_health(gone, history=past, known=[identity(gpu) for gpu in whole.gpus])
    finding = next(f for f in judgement.findings if f.code == "gpu-lost")
    assert finding.gpus == [of(7)]
    assert f"GPU 7 ({made.pci(7)}), serial {serial(7)}" in judgement.summary
    unknown = next(f for f in judge_health(gone, history=past).findings if f.code == "gpu-lost")
    assert unknown.gpus == [GpuIdentity(uuid=made.uuid(7)[:12])]


def test_a_slow_pair_that_nccl_measured_names_both_boards() -> None:
    machine = with_serials(made.h100())
    arms = [nccl.default_arm(460.0, gather=450.0, ranks=8, algorithm="NVLS"), nccl.p2p_off_arm(20.0, ranks=8)]
    measured = nccl.with_pairs(nccl.node(machine, *arms), 300.0, slow={(2, 5): 40.0})
    judgement = judge_nccl(measured)
    finding = nccl.finding(judgement, "pair-slow")
    assert finding.gpus == [of(2), of(5)]
    assert "`nvidia-smi nvlink -e -i 2`" in finding.message
    assert "`nvidia-smi nvlink -e -i 5`" in finding.message
    again = nccl.finding(regrade(judgement.record, known=[of(n) for n in range(8)]), "pair-slow")
    assert again.gpus == [of(2), of(5)]


def test_steps_have_the_real_device_address_and_node() -> None:
    port = judge(
        made.with_ports(made.h100(), *["ACTIVE"] * 4), made.with_ports(made.h100(), "DOWN", *["ACTIVE"] * 3)
    )
    down = next(finding for finding in port.findings if finding.code == "nic-down")
    steps = " ".join(CATALOGUE["nic-down"].steps(down, node="gpu-7"))
    assert "`mlxlink -d mlx5_0 -m`" in steps
    assert "`kubectl delete nodereport gpu-7`" in steps
    steps = " ".join(CATALOGUE["pcie-narrow"].steps(finding_of("pcie-narrow", gpus=[of(3)])))
    assert f"`lspci -vv -s {made.pci(3)} |" in steps


@pytest.mark.parametrize(
    ("limit", "least", "advised"),
    [(700, 200, ["560 -i 3"]), (700, 600, ["600 -i 3"]), (700, 700, []), (None, 200, [])],
)
def test_a_hot_gpu_s_power_limit_has_its_number(limit: int | None, least: int, advised: list[str]) -> None:
    """Four fifths of the limit in force, and no less than the driver takes; unknown, the step is left out."""
    known = Unavailable("TIMEOUT") if limit is None else limit * 1000
    power = Power(enforced_limit_mw=known, min_limit_mw=least * 1000)
    evidence = dict(lower_watts(replace(made.h100().gpus[3], power=power)))
    steps = " ".join(CATALOGUE["hot"].steps(finding_of("hot", gpus=[of(3)], evidence=evidence)))
    assert re.findall("`nvidia-smi -pl ([^`]*)`", steps) == advised


def test_no_command_has_a_placeholder_that_nothing_fills() -> None:
    for rule in CATALOGUE.values():
        step = filled(rule.next_step, gpus=[], evidence={"advice": "read the log"})
        assert not PLACEHOLDER.search(step), rule.code
        for command in COMMANDS.findall(rule.next_step):
            capitals = set(re.findall(r"\b[A-Z][A-Z_]+\b", command))
            assert capitals <= SPOKEN_BY_TOOLS | set(PLACEHOLDERS), (rule.code, command)


@quickly
@given(st.sampled_from([made.h100(), made.titan(), every(node(), **working(bits={0x8: 12, 0x40: 3}))]),
       st.integers(0, 2**32), st.integers(1, 40))  # fmt: skip
def test_what_is_found_names_its_gpus_and_has_no_placeholder(machine: Result, seed: int, times: int) -> None:
    machine = with_serials(machine)
    result = disturbed(machine, seed=seed, times=times)
    past = judge_health(machine).history
    for finding in judge_health(result, history=past).findings:
        assert not PLACEHOLDER.search(" ".join(COMMANDS.findall(finding.message))), finding
        for number in re.findall(r"\bGPU (\d+)\b", finding.subject):
            assert int(number) in [gpu.index for gpu in finding.gpus], finding


@pytest.mark.parametrize(
    "rule", [rule for rule in CATALOGUE.values() if rule.gate], ids=lambda rule: rule.code
)
def test_logs_are_saved_before_a_reset_or_a_reboot_clears_them(rule: nodegauge_judge.Rule[Any]) -> None:
    """One order: save, drain, reset or reboot, and then the vendor."""
    clears = re.compile(r"--gpu-reset|[Rr]eboot\b|[Rr]eset the GPU|power-cycle")
    steps = [step for step in rule.way_out if step != SAVE]
    late = [n for n, step in enumerate(steps) if clears.search(step) and rule.code != "compute-prohibited"]
    if late:
        first = rule.way_out.index(steps[late[0]])
        assert rule.way_out.index(SAVE) < first
        assert any("drain" in step.lower() for step in rule.way_out[: first + 1])
        assert not [step for step in rule.way_out[:first] if step == VENDOR]
    before, first_step, after = rule.next_step.partition(SAVE_FIRST)
    assert not clears.search(before)
    assert first_step or not clears.search(after)


@pytest.mark.parametrize(("others", "alone"), [([], True), (["fail"], False), (["warn"], False)])
def test_one_hot_gpu_has_another_first_step_than_a_hot_node(others: list[str], alone: bool) -> None:
    seen = [
        Observation(severity=Severity(severity), location=f"GPU {n}", message="97 °C.", evidence={})
        for n, severity in enumerate(["fail", *others])
    ]
    hot, *_ = CATALOGUE["hot"].summed_up(seen)
    assert ("one GPU alone" in hot.message, "of the node" in hot.message) == (alone, not alone)
    assert ("one GPU alone" in CATALOGUE["hot"].outside_cluster(hot).message) == alone


def test_steps_for_a_machine_without_a_cluster_take_it_out_of_service_by_hand() -> None:
    for rule in CATALOGUE.values():
        finding = finding_of(rule.code)
        for cluster in (True, False):
            steps = rule.steps(finding, node="" if cluster else "host-1", cluster=cluster)
            assert steps, rule.code
            assert "kubectl" not in " ".join(steps), rule.code
            assert cluster or "the node" not in " ".join(steps), rule.code
            assert (OUT_OF_SERVICE in steps) == (DRAIN in rule.way_out), rule.code
        message = rule.outside_cluster(finding).message + " ".join(steps)
        assert not re.search(r"kubectl|\bspec\.|\bdrain\b", message), rule.code


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
GATED = {rule.code for rule in HEALTH_RULES if rule.gate and rule.gate.judged.of_results}


@quickly
@given(machines, st.integers(0, 2**32), st.integers(1, 60), machines, st.integers(0, 64))
def test_the_judge_never_raises(machine: Result, seed: int, times: int, past: Result, capacity: int) -> None:
    result = disturbed(machine, seed=seed, times=times)
    history = judge_health(disturbed(past, seed=seed + 1, times=times // 4)).history
    facts = nodegauge_judge.NodeFacts(gpu_capacity=capacity, sharing=nodegauge_judge.Sharing.EXCLUSIVE)
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
        lowest = judge_health(machine, history=past).interconnect.nvlink_gbps
        gone, down = lowest is None, [0] * len(machine.gpus)
        for gpu_index in taken:
            down[gpu_index % len(down)] += 1
            result = machine
            for position, count in enumerate(down):
                result = made.without_links(result, position, count=count)
            after = judge_health(result, history=past).interconnect.nvlink_gbps
            assert after is None or (lowest is not None and after <= lowest)
            assert after is None or not gone
            lowest, gone = (lowest if after is None else after), after is None


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
    known, joined, seen = topology.build_topology(MACHINE), lanes(other), topology.build_topology(other)
    assert seen != known
    assert (seen.lanes, seen.p2p) == (joined, tuple(examine(other, joined)))
    assert seen.matrix == render(other, joined=joined)


def test_the_same_wiring_is_computed_once() -> None:
    same = made.every_gpu(MACHINE, uuid="GPU-1", serial="7")
    assert topology.build_topology(same) is topology.build_topology(MACHINE)
    for n in range(2 * topology.MOST):
        topology.build_topology(made.with_gpu(made.h100(), 0, cpus=str(n)))
    assert len(topology._known) <= topology.MOST


@pytest.mark.parametrize("rule", CATALOGUE.values(), ids=lambda rule: rule.code)
def test_a_rule_says_what_it_means_when_it_applies_and_what_to_do(rule: nodegauge_judge.Rule[Any]) -> None:
    assert rule.when
    assert rule.title[0].islower() or rule.title.startswith(("NVLink", "GPU", "PCIe", "NCCL", "12 V"))
    assert not rule.title.endswith(".")
    assert rule.meaning.endswith(".")
    assert rule.next_step.endswith(".")
    assert rule.way_out
    assert all(not text.endswith(".") for text in rule.when.values())
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.code)
    assert "  " not in rule.meaning + rule.next_step + "".join(rule.way_out)
    if rule.effect is nodegauge_judge.Effect.UNJUDGED:
        assert set(rule.when) == {Severity.WARN}
    else:
        # whether a machine that leaks goes on working is its owner's decision, and a paste taints no node
        ungated = rule.code == "leak" or rule in stated.RULES
        assert Severity.FAIL not in rule.when or rule.gate is not None or ungated


def test_every_code_has_one_rule() -> None:
    codes = [rule.code for rule in (*HEALTH_RULES, *NCCL_RULES, *CHASSIS_RULES, *LOAD_RULES, *FEED_RULES)]
    assert len(codes) == len(set(codes))
    assert codes == list(CATALOGUE)


def test_the_number_of_a_rule_in_a_stored_history_never_changes() -> None:
    """A report that an earlier version wrote must keep its meaning."""
    bits = {rule.history_bit: rule.code for rule in HEALTH_RULES if rule.history_bit is not None}
    codes = ("hot", "memory-hot", "sw-thermal-slowdown", "hw-slowdown", "slow-clock", "pcie-narrow")
    assert bits == dict(enumerate(codes))


def test_a_rule_whose_gate_cannot_be_left_is_refused() -> None:
    """Without a way to answer good, a taint would leave only by probation."""
    rule = CATALOGUE["hot"]
    for broken in (
        *({"answer_per_gpu": None}, {"gate": None}, {"history_bit": None}, {"answer": lambda _: Answer.GOOD}),
        *({"gate": replace(rule.gate, judged=judged)} for judged in (Judged.ALWAYS, Judged.UNREAD)),
        {"gate": None, "answer_per_gpu": None},
    ):
        with pytest.raises(ValueError, match="hot: a gate"):
            replace(rule, **broken)
    with pytest.raises(ValueError, match="no gate"):  # missing data never changes a verdict
        replace(CATALOGUE["ecc"], effect=nodegauge_judge.Effect.UNJUDGED)


def test_thresholds_in_the_sentences_exist_with_the_defaults_that_they_give() -> None:
    fields = {field.encode_name: field.default for field in msgspec.structs.fields(Thresholds)}
    text = " ".join(text for rule in CATALOGUE.values() for text in (rule.meaning, *rule.when.values()))
    named = re.findall(r"`([a-z]+[A-Z]\w*)` \((?:default )?([\d.]+)\)", text)
    assert set(re.findall(r"`([a-z]+[A-Z]\w*)`", text)) <= set(fields)
    assert len(named) > 30
    assert all(float(number) == fields[name] for name, number in named)
