"""The rules: each one complete, all of them consistent, and the reference page generated from them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nodegauge_judge import CATALOGUE, Answer, Effect, Gate, Judged, Rule, Severity, Thresholds
from nodegauge_judge.chassis.judge import CHASSIS_RULES
from nodegauge_judge.load_rules.judge import LOAD_RULES
from nodegauge_judge.model import Cause, GateKind
from nodegauge_judge.nccl.judge import NCCL_RULES
from nodegauge_judge.reference import findings_page
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules import HEALTH_RULES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
HISTORY_BITS = {
    "hot": 0,
    "memory-hot": 1,
    "sw-thermal-slowdown": 2,
    "hw-slowdown": 3,
    "slow-clock": 4,
    "pcie-narrow": 5,
}
"""Reports in a cluster store these numbers."""


def test_the_committed_page_is_generated_from_the_rules() -> None:
    """Run `make reference` after a change."""
    assert PAGE.read_text(encoding="utf-8") == findings_page()


@pytest.mark.parametrize("rule", CATALOGUE.values(), ids=lambda rule: rule.code)
def test_a_rule_says_what_it_means_when_it_applies_and_what_to_do(rule: Rule[Any]) -> None:
    """Title, meaning, at least one severity, a next step that reads well after "Next: ", and a way out."""
    assert rule.when
    assert rule.title[0].islower() or rule.title.startswith(("NVLink", "GPU", "PCIe", "NCCL", "12 V"))
    assert not rule.title.endswith(".")
    assert rule.meaning.endswith(".")
    assert rule.next_step.endswith(".")
    assert rule.way_out
    assert all(not text.endswith(".") for text in rule.when.values())
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.code)
    assert "  " not in rule.meaning + rule.next_step + "".join(rule.way_out)
    if rule.effect is Effect.UNJUDGED:
        assert set(rule.when) == {Severity.WARN}
    else:
        # whether a machine that leaks goes on working is its owner's decision
        assert Severity.FAIL not in rule.when or rule.gate is not None or rule.code == "leak"


def test_every_code_has_one_rule() -> None:
    """Two rules with one code would hide each other in the catalogue."""
    codes = [rule.code for rule in (*HEALTH_RULES, *NCCL_RULES, *CHASSIS_RULES, *LOAD_RULES)]
    assert len(codes) == len(set(codes))
    assert codes == list(CATALOGUE)


def test_a_rule_makes_one_finding_per_severity_that_describes_the_worst_location() -> None:
    """The others are named, sixteen of them at most, so that a large node fits into a report."""

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

    rule = Rule(
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
    bits = {rule.code: rule.history_bit for rule in HEALTH_RULES if rule.history_bit is not None}
    assert bits == HISTORY_BITS


def test_a_rule_whose_gate_cannot_be_left_is_refused() -> None:
    """Without a way to answer good, a taint would leave only by probation."""
    rule = next(rule for rule in HEALTH_RULES if rule.code == "hot")
    gate = Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=Judged.UNDER_LOAD)
    for broken in (
        {"answer_per_gpu": None},
        {"gate": None},
        {"gate": replace(gate, judged=Judged.ALWAYS)},
        {"gate": replace(gate, judged=Judged.UNREAD)},
        {"history_bit": None},
        {"answer": lambda _: Answer.GOOD},
        {"gate": None, "answer_per_gpu": None},
    ):
        with pytest.raises(ValueError, match="hot: a gate"):
            replace(rule, **broken)


def test_a_rule_that_leaves_a_node_unjudged_has_no_gate() -> None:
    """Missing data never changes a verdict, so it cannot taint a node."""
    rule = next(rule for rule in HEALTH_RULES if rule.code == "ecc")
    with pytest.raises(ValueError, match="no gate"):
        replace(rule, effect=Effect.UNJUDGED)


def test_thresholds_in_the_sentences_exist_with_the_defaults_that_they_give() -> None:
    """A renamed field or a changed default must change the sentence too."""
    fields = {field.encode_name: field.default for field in msgspec.structs.fields(Thresholds)}
    text = " ".join(text for rule in CATALOGUE.values() for text in (rule.meaning, *rule.when.values()))
    named = re.findall(r"`([a-z]+[A-Z]\w*)` \((?:default )?([\d.]+)\)", text)
    assert set(re.findall(r"`([a-z]+[A-Z]\w*)`", text)) <= set(fields)
    assert len(named) > 30
    assert all(float(number) == fields[name] for name, number in named)


def test_the_judge_uses_every_threshold_and_the_page_explains_it() -> None:
    """A number of the policy that no rule compares with would be a broken promise."""
    source = Path(inspect.getfile(Thresholds)).parent
    code = " ".join(
        path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.name != "thresholds.py"
    )
    for field in msgspec.structs.fields(Thresholds):
        assert re.search(rf"\.{field.name}\b", code), field.name
        row = re.search(
            rf"^\| `{field.encode_name}` \| {field.default:g} \| (.+) \|$", findings_page(), re.MULTILINE
        )
        assert row is not None
        assert f"Default {field.default:g}." in row[1]
        assert re.search(r"Chosen by this project[.:]|Source: ", row[1])
