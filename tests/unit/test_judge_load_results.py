"""What a load run says of results and speed: wrong data, slow GPUs, slow nodes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import Unavailable
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.load_rules.judge import judge_load
from support.load_results import card, everywhere, gpu, loaded, reason, spoilt

UNREAD = Unavailable("NotSupported")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mismatches": 2}, "2 wrong results in 1000 checked launches"),
        ({"memory_mismatches": 1}, "1 pieces of memory (16 bytes) read back differently"),
        ({"checksum": "bad"}, "checksum is not the one that the CPU computed"),
    ],
)
def test_wrong_data_fails_after_one_run_with_the_gpu_named(wrong: dict[str, Any], message: str) -> None:
    """Index, address, UUID and serial number: whoever replaces the board needs them all."""
    judgement = judge_load(spoilt(**wrong))
    (finding,) = judgement.findings
    assert (finding.code, finding.severity, judgement.verdict) == (
        "load-corruption",
        Severity.FAIL,
        Verdict.FAIL,
    )
    assert message in finding.message.lower() or message in finding.message
    named = finding.gpus[0]
    assert (named.index, named.pci, named.serial) == (3, "0000:12:00.0", "1654922000003")
    assert named.uuid.startswith("GPU-00000003")
    assert judgement.answers["load-corruption"] is Answer.BAD


def test_wrong_data_counts_in_a_light_load() -> None:
    """Nothing excuses a wrong result."""
    judgement = judge_load(spoilt(mismatches=1, steady_mw=200_000))
    assert judgement.verdict is Verdict.FAIL


def test_one_gpu_alone_accuses_the_probe_unless_its_results_differ() -> None:
    """Hundreds of its warps agree with each other: a chip that errs does not err alike everywhere."""
    [warning] = judge_load(loaded(gpu(0, checksum="bad"))).findings
    assert (warning.code, warning.severity) == ("load-checksum-unexpected", Severity.WARN)
    assert judge_load(loaded(gpu(0, checksum="bad", mismatches=1))).verdict is Verdict.FAIL


def test_all_gpus_with_the_same_odd_checksum_accuse_the_probe() -> None:
    """Eight boards do not break alike; but one of them differing from the others does."""
    alike = judge_load(everywhere(checksum="odd"))
    assert [(f.code, f.severity) for f in alike.findings] == [("load-checksum-unexpected", Severity.WARN)]
    assert alike.answers["load-corruption"] is Answer.UNSURE
    one = judge_load(loaded(*(gpu(n, checksum="odd" if n else "odder") for n in range(8))))
    assert one.verdict is Verdict.FAIL


def test_results_that_were_not_checked_clear_nothing() -> None:
    """No launch compared, or no count of mismatches."""
    for unread in ({"checks": 0}, {"mismatches": UNREAD}):
        assert judge_load(spoilt(**unread)).answers["load-corruption"] is Answer.UNSURE


@pytest.mark.parametrize(
    ("tflops", "severity"), [(470.0, Severity.FAIL), (540.0, Severity.WARN), (570.0, None), (900.0, None)]
)
def test_a_slow_gpu_is_compared_with_its_siblings(tflops: float, severity: Severity | None) -> None:
    """610 TFLOPS everywhere else: below 80 % fails, below 92 % warns."""
    judgement = judge_load(spoilt(tflops=tflops))
    assert [(f.code, f.severity) for f in judgement.findings] == (
        [("load-slow-gpu", severity)] if severity else []
    )


def test_slow_memory_is_its_own_finding() -> None:
    """Of one GPU; computing is as fast as elsewhere."""
    judgement = judge_load(spoilt(memory_gbps=2_000.0))
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-slow-memory", Severity.FAIL)]


def test_a_slowdown_explains_a_slow_gpu() -> None:
    """Heat is the finding, not the speed that follows from it; and such a run does not clear the gate."""
    judgement = judge_load(spoilt(tflops=300.0, reasons=reason(0x20, samples=90)))
    assert [f.code for f in judgement.findings] == ["load-heat-slowdown"]
    assert judgement.answers["load-slow-gpu"] is Answer.UNSURE


def test_other_models_limits_and_kernels_are_not_compared() -> None:
    """Two cards of each kind, and the kinds differ by half."""
    for other in ({"limit_mw": 350_000, "steady_mw": 340_000}, {"kernel": "f32-fma"}):
        mixed = loaded(gpu(0), gpu(1), gpu(2, tflops=300.0, **other), gpu(3, tflops=300.0, **other))
        assert judge_load(mixed).findings == [], other
    mixed = loaded(gpu(0), gpu(1), gpu(2, tflops=300.0), gpu(3, tflops=300.0))
    cards = [card(n, "NVIDIA H100 80GB HBM3" if n < 2 else "NVIDIA L40S") for n in range(4)]
    judgement = judge_load(replace(mixed, gpus=cards))
    assert (judgement.findings, judgement.tflops, judgement.fingerprint) == ([], None, "")


@pytest.mark.parametrize("count", [1, 2])
def test_few_gpus(count: int) -> None:
    """One has nothing to compare with, so that its speed clears nothing; two have each other."""
    judgement = judge_load(everywhere(of=count))
    assert judgement.verdict is Verdict.PASS
    expected = Answer.GOOD if count > 1 else Answer.UNSURE
    assert judgement.answers["load-slow-gpu"] is expected


def test_a_node_is_compared_with_nodes_of_its_fingerprint() -> None:
    """Three nodes at least, this one included; 90 % of their median is the floor."""
    fast = [680.0, 690.0, 700.0]
    judgement = judge_load(loaded(), peers=lambda fingerprint: fast if "700 W" in fingerprint else ())
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-below-peers", Severity.WARN)]
    assert judge_load(loaded(), peers=lambda _: [700.0]).verdict is Verdict.PASS
    assert judge_load(everywhere(tflops=650.0), peers=lambda _: fast).verdict is Verdict.PASS


@pytest.mark.parametrize("key", ["tflops", "memory_gbps", "limit_mw", "kernel"])
def test_missing_values_accuse_nobody(key: str) -> None:
    """Of one GPU and of all: no finding about speed, and no gate cleared."""
    value = "" if key == "kernel" else UNREAD
    for result in (spoilt(**{key: value}), everywhere(**{key: value})):
        judgement = judge_load(result)
        assert not {"load-slow-gpu", "load-slow-memory"} & {f.code for f in judgement.findings}
        answers = {judgement.answers.get("load-slow-gpu"), judgement.answers.get("load-slow-memory")}
        assert answers != {Answer.GOOD}
