"""The judgement as a whole: verdict, summary, matrix, and findings that name their GPUs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import Bus, Fan, Gpu, Problem, Repair, Result, Temperature
from nodegauge_judge import (
    CATALOGUE,
    Finding,
    GpuIdentity,
    Severity,
    Thresholds,
    ThresholdsInvalid,
    Verdict,
    judge_health,
)
from nodegauge_judge.case import identity
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.rule import DRAIN, OUT_OF_SERVICE, PLACEHOLDERS, filled
from support.disturbing import disturbed
from support.judge_results import LOST, every, judge, node, only, working

HOT = Temperature(gpu=84, gpu_max=85)


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
    hot = made.every_gpu(made.titan(), temperature=HOT, window=None)
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
    ]:
        with pytest.raises(ThresholdsInvalid, match=named):
            Thresholds.from_spec(spec)


quickly = settings(max_examples=60, derandomize=True)
COMMANDS = re.compile(r"`([^`]+)`")
PLACEHOLDER = re.compile(r"\b(?:" + "|".join(PLACEHOLDERS) + r"|NAMESPACE|PROBE-POD|COUNT|WATTS|INTERFACE)\b")
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


def fourth(**changes: Any) -> Result:
    return with_serials(made.with_gpu(made.h100(), 3, **changes))


@pytest.mark.parametrize(
    ("result", "code", "command"),
    [
        (fourth(fans=[Fan(rpm=0, target=60)]), "fan-stopped", ""),
        (fourth(repair=Repair(rows_pending=1)), "row-remap", "`nvidia-smi --gpu-reset -i 3`"),
        (
            with_serials(made.without_links(made.h100(), 3, count=6)),
            "nvlink-degraded",
            "`nvidia-smi nvlink -s -i 3`",
        ),
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
    assert f"GPU 7, {made.pci(7)}, serial {serial(7)}" in judgement.summary
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
    narrow = Finding(code="pcie-narrow", severity=down.severity, subject="", message="", gpus=[of(3)])
    steps = " ".join(CATALOGUE["pcie-narrow"].steps(narrow))
    assert f"`lspci -vv -s {made.pci(3)} |" in steps


def test_a_next_step_without_known_values_is_still_a_command() -> None:
    """A GPU that NVML does not list has no index: the command then shows every GPU."""
    for rule in CATALOGUE.values():
        step = filled(rule.next_step, gpus=[], evidence={"advice": "read the log"})
        assert not PLACEHOLDER.search(step), rule.code


def test_no_command_has_a_placeholder_that_nothing_fills() -> None:
    """A new word in capitals is a placeholder of `rule.py`, or a word that the tool knows."""
    for rule in CATALOGUE.values():
        for command in COMMANDS.findall(rule.next_step):
            capitals = set(re.findall(r"\b[A-Z][A-Z_]+\b", command))
            assert capitals <= SPOKEN_BY_TOOLS | set(PLACEHOLDERS), (rule.code, command)


@quickly
@given(st.sampled_from([made.h100(), made.titan(), every(node(), **working(bits={0x8: 12, 0x40: 3}))]),
       st.integers(0, 2**32), st.integers(1, 40))  # fmt: skip
def test_whatever_is_found_names_its_gpus_and_has_no_placeholder(
    machine: Result, seed: int, times: int
) -> None:
    machine = with_serials(machine)
    result = disturbed(machine, seed=seed, times=times)
    past = judge_health(machine).history
    for finding in judge_health(result, history=past).findings:
        assert not PLACEHOLDER.search(" ".join(COMMANDS.findall(finding.message))), finding
        for number in re.findall(r"\bGPU (\d+)\b", finding.subject):
            assert int(number) in [gpu.index for gpu in finding.gpus], finding


def test_steps_for_a_machine_without_a_cluster_take_it_out_of_service_by_hand() -> None:
    """A log or a paste names no node, and a host of Ansible is none yet."""
    for rule in CATALOGUE.values():
        finding = Finding(code=rule.code, severity=Severity.FAIL, subject="", message="")
        for steps in (rule.steps(finding), rule.steps(finding, node="host-1", cluster=False)):
            assert steps, rule.code
            assert "kubectl" not in " ".join(steps), rule.code
            assert (OUT_OF_SERVICE in steps) == (DRAIN in rule.way_out), rule.code
        message = rule.outside_cluster(finding).message + " ".join(steps)
        assert not re.search(r"kubectl|\bspec\.|\bdrain\b", message), rule.code
