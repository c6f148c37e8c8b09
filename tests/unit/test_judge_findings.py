"""Findings about heat, power and inventory, and the judgement as a whole, on otherwise healthy machines."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, Gpu, Power, Problem, Result, Span, Temperature, Window
from nodegauge_judge import History, Judgement, Severity, Thresholds, ThresholdsInvalid, Verdict, judge_health
from nodegauge_judge.health import MATRIX_LIMIT
from support.judge_results import LOST, codes, cool, only

HOT = Temperature(gpu=84, gpu_max=85)

# -- temperature


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gpu": 79, "gpu_max": 85}, []),
        ({"gpu": 80, "gpu_max": 85}, ["hot/warn"]),
        ({"gpu": 95, "gpu_max": 85}, ["hot/warn"]),
        ({"gpu": 87, "gpu_max": 93}, []),
        ({"gpu": 60, "margin": 6}, []),
        ({"gpu": 60, "margin": 5}, ["hot/warn"]),
        ({"gpu": 60, "margin": 4, "tlimit_gpu_max": -2}, []),
        ({"gpu": 60, "margin": 3, "tlimit_gpu_max": -2}, ["hot/warn"]),
        ({"gpu": 40, "margin": 0}, []),
        ({"gpu": 40, "margin": -3}, []),
        ({"gpu": 82, "margin": -3}, ["hot/warn"]),
        ({"margin": 3}, ["hot/warn"]),
        ({"gpu": 89, "margin": 30}, []),
        ({"gpu": 79}, []),
        ({"gpu": 80}, ["hot/warn"]),
        ({"gpu": 89}, ["hot/warn"]),
        ({"gpu": 90}, ["hot/warn"]),
        ({"gpu": 89, "gpu_max": 0}, ["hot/warn"]),
        ({"gpu": 0, "gpu_max": 85}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 89, "memory_max": 95}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 90, "memory_max": 95}, ["memory-hot/warn"]),
        ({"gpu": 30, "gpu_max": 85, "memory": 99}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 0, "memory_max": 95}, []),
    ],
)
def test_heat_is_judged_by_the_vendor_and_else_by_the_policy(
    values: dict[str, int], expected: list[str]
) -> None:
    """Within 5 °C of the vendor's limit warns, else from 80 on; nothing fails without load or sensor."""
    assert codes(judge_health(cool(**values))) == expected


def test_the_hottest_sample_of_the_window_counts() -> None:
    """A window's maximum stands for the GPU, and only the first reading where there was no window."""
    temperature = Temperature(gpu=40, gpu_max=85)
    window = Window(seconds=3.0, samples=12, temperature=Span(min=60, median=70, max=81))
    hot = made.with_gpu(made.phb(), 0, temperature=temperature, window=window)
    assert only(judge_health(hot)).evidence == {"celsius": 81, "limit_celsius": 85}


def test_temperature_thresholds_come_from_the_policy() -> None:
    """Margin and warning are two numbers of the policy, memory's margin a third."""
    assert codes(judge_health(cool(gpu=78, gpu_max=85), thresholds=Thresholds(hot_margin=7))) == ["hot/warn"]
    assert codes(judge_health(cool(gpu=78), thresholds=Thresholds(hot_warn=78))) == ["hot/warn"]
    memory = cool(gpu=30, gpu_max=85, memory=80, memory_max=95)
    assert codes(judge_health(memory, thresholds=Thresholds(memory_hot_margin=15))) == ["memory-hot/warn"]


def test_heat_without_a_vendor_limit_names_the_policys_number() -> None:
    """Which number, and whose."""
    warned, failed = only(judge_health(cool(gpu=85))), only(judge_health(cool(gpu=95)))
    assert warned.message.startswith("85 °C; the driver gives no limit, the policy's hotWarn is 80 °C.")
    assert failed.message.startswith("95 °C; the driver gives no limit, the policy's hotFail is 90 °C.")
    assert failed.evidence == {"celsius": 95, "limit_celsius": 90}


# -- power


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (Power(enforced_limit_mw=359_999, default_limit_mw=400_000), ["power-cap-low/warn"]),
        (Power(enforced_limit_mw=360_000, default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=500_000, default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=0, default_limit_mw=400_000), []),
        (Power(default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=100_000), []),
    ],
)
def test_a_cap_below_nine_tenths_of_the_default_is_said(power: Power, expected: list[str]) -> None:
    """Below 0.9 warns, exactly 0.9 does not; a missing or zero reading is no cap."""
    result = replace(made.phb(), gpus=[replace(gpu, power=power) for gpu in made.phb().gpus])
    assert codes(judge_health(result)) == expected


def test_the_share_of_power_is_a_threshold() -> None:
    """A policy that wants caps may have them."""
    capped = Power(enforced_limit_mw=250_000, default_limit_mw=400_000)
    result = replace(made.phb(), gpus=[replace(gpu, power=capped) for gpu in made.phb().gpus])
    assert codes(judge_health(result, thresholds=Thresholds(power_cap_ratio=0.6))) == []
    finding = only(judge_health(result))
    assert finding.message.startswith("Capped at 250 W of 400 W by default (62%, warns below 90%).")
    assert finding.evidence["enforced_watts"] == 250


# -- inventory


def test_gpus_that_are_not_alike_are_worth_knowing() -> None:
    """Model first; VBIOS and power limit within a model; info never changes the verdict."""
    judgement = judge_health(made.with_gpu(made.phb(), 0, name="NVIDIA A10"))
    assert (only(judgement).code, only(judgement).severity) == ("mixed-gpus", Severity.INFO)
    assert judgement.verdict is Verdict.PASS
    assert "1x NVIDIA A10, 1x NVIDIA GeForce RTX 4090" in only(judgement).message
    assert judgement.product == "NVIDIA A10 + NVIDIA GeForce RTX 4090"
    assert codes(judge_health(made.with_gpu(made.phb(), 0, vbios="94.02"))) == ["mixed-gpus/info"]
    power = Power(enforced_limit_mw=390_000, default_limit_mw=400_000)
    assert codes(judge_health(made.with_gpu(made.phb(), 0, power=power))) == ["mixed-gpus/info"]


# -- the judgement as a whole


def test_nothing_readable_is_unknown() -> None:
    """GPUs without any identity and without an error are no healthy GPUs."""
    judgement = judge_health(Result(probe="health", gpus=[Gpu(index=0), Gpu(index=1)]))
    assert (judgement.verdict, judgement.readable) == (Verdict.UNKNOWN, False)
    assert "nothing was readable" in judgement.summary


def test_findings_are_listed_worst_first_and_the_worst_is_the_verdict() -> None:
    """fail, warn, info."""
    result = made.with_pair(made.titan(), 0, 1, nvlink=5)
    result = made.with_gpu(result, 0, temperature=Temperature(gpu=84, gpu_max=85), window=None, vbios="1")
    judgement = judge_health(result)
    assert codes(judgement) == ["p2p-refused/fail", "hot/warn", "mixed-gpus/info"]
    assert judgement.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (made.h100(), "8x NVIDIA H100 80GB HBM3: healthy; NVLink joins all GPUs, 450 GB/s per GPU one way."),
        (made.phb(), "2x NVIDIA GeForce RTX 4090: healthy; no NVLink, GPUs talk over PCIe."),
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
def test_the_summary_is_one_sentence_for_a_person(result: Result, text: str) -> None:
    """What it is, what is wrong, where."""
    assert judge_health(result).summary == text


def test_the_summary_counts_what_else_there_is_without_what_is_only_worth_knowing() -> None:
    """One more finding, two more findings; info is none of them."""
    two = made.with_gpu(
        made.with_pair(made.titan(), 0, 1, read=5), 0, temperature=HOT, window=None, vbios="1"
    )
    assert judge_health(two).summary.endswith("[p2p-refused]; 1 more finding.")
    three = made.with_gpu(two, 1, power=Power(enforced_limit_mw=100_000, default_limit_mw=400_000))
    assert judge_health(three).summary.endswith("[p2p-refused]; 2 more findings.")


def test_the_matrix_is_part_of_the_judgement_while_it_is_of_sane_size() -> None:
    """With its legend for real machines, without for large ones, not at all for absurd ones; never cut."""
    assert "Legend:" in judge_health(made.h100(16)).matrix
    assert len(judge_health(made.h100(16)).matrix.encode()) <= MATRIX_LIMIT
    large = judge_health(made.h100(31)).matrix
    assert large.splitlines()[-1].startswith("GPU30")
    assert judge_health(made.h100(64)).matrix == ""
    assert judge_health(Result(probe="health")).matrix == ""


def test_a_judgement_is_json_as_it_is() -> None:
    """Encoding needs no help and decodes to the same."""
    judgement = judge_health(made.without_links(made.h100(), 3, count=5))
    assert msgspec.json.decode(msgspec.json.encode(judgement), type=Judgement) == judgement


def test_a_node_where_everything_is_wrong_fits_into_a_report() -> None:
    """Sixteen sick GPUs: findings under 4 KiB, each message under 600 characters."""
    result = made.h100(16)
    for i in range(16):
        result = made.with_gpu(
            result,
            i,
            fabric=Fabric(state=2),
            temperature=Temperature(gpu=99, gpu_max=85, memory=99, memory_max=95),
            power=Power(enforced_limit_mw=100_000 + i, default_limit_mw=700_000),
            vbios=f"{i}" * 20,
            window=None,
        )
    judgement = judge_health(result)
    assert len(judgement.findings) == 5
    assert len(msgspec.json.encode(judgement.findings)) < 4096
    assert max(len(finding.message) for finding in judgement.findings) < 600


def test_foreign_text_is_clipped_and_kept_on_one_line() -> None:
    """A driver's words of any length and shape cannot flood a message."""
    problem = Problem(kind="crashed", message="line\n" * 100)
    finding = only(judge_health(Result(probe="health", problem=problem)))
    assert "\n" not in finding.message
    assert len(finding.message) < 400


def test_thresholds_are_read_from_a_policy_and_refuse_nonsense_by_name() -> None:
    """camelCase names, defaults for what is absent, an error that names the field."""
    assert Thresholds.of({"hotWarn": 75, "nvlinkSumRatio": 0.5}).nvlink_sum_ratio == 0.5
    assert Thresholds.of({}) == Thresholds()
    for spec, named in [
        ({"hotWarn": 900}, "spec.thresholds.hotWarn"),
        ({"hotWam": 75}, "hotWam"),
        ({"powerCapRatio": "x"}, "powerCapRatio"),
    ]:
        with pytest.raises(ThresholdsInvalid, match=named):
            Thresholds.of(spec)


def test_history_is_an_input_that_is_never_required() -> None:
    """A first run and an empty history are the same."""
    assert judge_health(made.titan()) == judge_health(made.titan(), history=History())
