"""The runbook explains every taint and every reason of the budget condition; the README's times are right."""

from __future__ import annotations

import re
from pathlib import Path

from nodegauge_judge import Thresholds
from nodegauge_operator.api.policy import Hysteresis, seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.names import PaceReason
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


def test_runs_that_cannot_keep_up_are_explained() -> None:
    """By the reason that the policy shows."""
    assert f"The policy says {PaceReason.TOO_FEW_SLOTS.value}" in sections()


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
