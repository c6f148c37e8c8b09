"""The runbook has a section for every taint and for every reason of the budget condition."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodegauge_judge import CATALOGUE
from nodegauge_operator import names
from nodegauge_operator.reasons import BudgetReason

RUNBOOK = (Path(__file__).resolve().parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")


def sections() -> dict[str, dict[str, str]]:
    """Texts by second-level and third-level heading; text before the first third-level heading under ""."""
    chapters: dict[str, dict[str, str]] = {}
    for chapter in re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)[1:]:
        title, _, text = chapter.partition("\n")
        first, *parts = re.split(r"^### ", text, flags=re.MULTILINE)
        chapters[title] = {"": first, **{p.partition("\n")[0]: p.partition("\n")[2] for p in parts}}
    return chapters


def test_every_cause_has_its_section() -> None:
    """Under its own taint, no section of an unknown cause, and each says how the taint clears."""
    gates = {(f"{names.PREFIX}{e.gate.kind.value}", e.gate.cause.value) for e in CATALOGUE.values() if e.gate}
    written = {(key, cause) for key in names.TAINTS_OF_FAULTS for cause in sections()[key] if cause}
    assert written == gates
    for key, cause in written:
        assert "- Clears: " in sections()[key][cause], cause
    assert "- Clears: " in sections()[names.TAINT_UNVALIDATED][""]


@pytest.mark.parametrize("reason", [r for r in BudgetReason if r is not BudgetReason.WITHIN_BUDGET])
def test_what_a_policy_says_of_its_budget_is_explained(reason: BudgetReason) -> None:
    """People search for the reason that the policy shows."""
    assert f"- `{reason.value}`: " in RUNBOOK
