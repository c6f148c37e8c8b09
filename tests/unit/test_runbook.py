"""The runbook explains every taint and every reason of the budget condition; the README's times are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodegauge_judge import CATALOGUE, Cause, Thresholds
from nodegauge_operator import names
from nodegauge_operator.api.policy import Hysteresis, seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.core.gpu_eligibility import Why
from nodegauge_operator.names import BudgetReason, PaceReason
from nodegauge_probes.watch_options import CONFIRM

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BACK_OFF = 5
"""Minutes: the kubelet's longest, before it starts a container again."""


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


def test_every_cause_says_whether_to_act_now() -> None:
    """Each stands in the table once; `nccl` twice, for wrong data and for hangs."""
    table = [line.split("|")[1] for line in sections()["Must I act now?"][""].splitlines() if "| `" in line]
    named = re.findall(r"`([a-z0-9-]+)`", " ".join(table))
    assert sorted(named) == sorted([*Cause, Cause.NCCL])


@pytest.mark.parametrize("reason", [r for r in BudgetReason if r is not BudgetReason.WITHIN_BUDGET])
def test_what_a_policy_says_of_its_budget_is_explained(reason: BudgetReason) -> None:
    """People search for the reason that the policy shows."""
    assert f"- `{reason.value}`: " in RUNBOOK


def test_runs_that_cannot_keep_up_are_explained() -> None:
    """By the reason that the policy shows."""
    assert f"The policy says {PaceReason.TOO_FEW_SLOTS.value}" in sections()


@pytest.mark.parametrize("reason", [*Why])
def test_every_reason_for_no_nccl_run_is_explained(reason: Why) -> None:
    """`status.bandwidth.reason` shows these."""
    assert f"`{reason.value}`" in sections()["No NCCL run happens"][""]


def test_the_readme_has_the_times_that_follow_from_the_defaults() -> None:
    """To the taint: the kubelet's longest back-off, and one more reading.  Back: three good runs."""
    hysteresis, probes = Hysteresis(), Probes()
    interval, soon = seconds(probes.health.interval) / 60, seconds(probes.health.recheck) / 60
    enter, leave = hysteresis.enter_runs, hysteresis.leave_runs
    judged = max(soon, Thresholds().interval_floor / 60)
    day, recheck = seconds(probes.nccl.interval) / 3600, seconds(probes.nccl.recheck) / 60
    assert f"up to `probes.health.interval` ({interval:g} min)" in README
    first, *later = map(int, CONFIRM.split(","))
    confirmed = f"after {first} s, " + " and ".join(f"{wait / 60:g} min" for wait in later)
    assert f"reports a change again {confirmed}." in README
    assert README.count(f", {BACK_OFF + (enter - 1) * soon:g} min | {leave} good runs") == 2
    assert f"{leave} good runs: {(leave - 1) * soon:g} min or less" in README
    assert f"{leave} good runs under load: {leave * judged:g} to " in README
    assert f"| {enter} | {recheck + 1:g} min, {day / 2:g} h, {day:g} h |" in README
    first, *relapses = hysteresis.probation_after
    assert f"on trial {first.replace('h', ' h')} after the taint was set" in README
    assert " and ".join(after.replace("h", " h") for after in relapses) + " for relapses" in README
    assert f"A taint stays at least {hysteresis.dwell.replace('m', ' min')}" in README
