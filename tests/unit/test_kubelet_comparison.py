"""How the simulated kubelet is compared with the record of a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.kubelet_comparison import facts, recorded
from testbed.kubelet_comparison.declared import DECLARED, EVERYTHING, Difference, complaints
from testbed.kubelet_comparison.perform import EVERY_POD
from testbed.kubelet_comparison.samples import SAMPLES, Act, Sample
from testbed.kubelet_comparison.watching import Event

README = Path(__file__).resolve().parents[1] / "testbed" / "README.md"
RUNNING = {"running": {"startedAt": "2026-11-21T12:00:00Z"}}
ENDED = {"terminated": {"exitCode": 7, "reason": "Error", "message": "last words"}}


def event(kind: str, phase: str, *states: Any, at: float = 0.0, **metadata: str) -> Event:
    """An event of a watch with containers in these states."""
    containers = [{"state": state, "restartCount": 0} for state in states]
    pod = {"metadata": metadata, "status": {"phase": phase, "containerStatuses": containers}}
    return Event(kind=kind, pod=pod, at=at)


def test_the_record_holds_the_samples_and_says_of_which_programs() -> None:
    """A sample that was added without a recording has nothing to be compared with."""
    assert set(recorded.read()) == {sample.name for sample in SAMPLES} | {EVERY_POD}
    assert recorded.versions()["kubelet"].startswith("v1.")


def test_the_readme_says_every_declared_difference() -> None:
    """One table, and the page that people read."""
    page = " ".join(README.read_text(encoding="utf-8").split())
    assert [one.why for one in DECLARED if one.why not in page] == []


def test_a_difference_that_nobody_declared_is_complained_about() -> None:
    """Also another aspect of a pod that is known to differ."""
    declared = [Difference(pod="a", aspects=("phase",), why="so")]
    assert complaints({("a", "phase")}, declared=declared) == []
    assert complaints({("a", "phase"), ("a", "reason")}, declared=declared) == [
        ("a", "reason differs, and is not declared")
    ]


@pytest.mark.parametrize("aspect", ["phase", EVERYTHING])
def test_a_declared_difference_that_is_none_any_more_is_complained_about(aspect: str) -> None:
    """Else the table would grow old."""
    [(_, message)] = complaints(set(), declared=[Difference(pod="a", aspects=(aspect,), why="so")])
    assert "does not differ any more" in message


def test_what_is_missing_on_one_side_differs() -> None:
    """A pod, or an aspect, that only one of them has."""
    assert recorded.differences({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}, "b": {"x": 1}}) == {
        ("a", "y"): (None, 2),
        ("b", "x"): (None, 1),
    }


def test_steps_are_each_change_once_and_the_end() -> None:
    """Events that change neither phase nor a container's state are no steps."""
    deleting = {"deletionTimestamp": "2026-11-21T12:00:00Z"}
    seen = [
        event("ADDED", "Pending"),
        event("MODIFIED", "Running", RUNNING),
        event("MODIFIED", "Running", RUNNING),
        event("MODIFIED", "Running", RUNNING, **deleting),
        event("MODIFIED", "Failed", ENDED, **deleting),
        event("DELETED", "Failed", ENDED, **deleting),
    ]
    assert facts.steps(seen) == [
        "Running: running",
        "Running deleting: running",
        "Failed deleting: terminated Error 7",
        "gone",
    ]


@pytest.mark.parametrize(("after", "message"), [(2.9, "before"), (3.1, "after")])
def test_the_end_is_timed_against_the_grace_period(after: float, message: str) -> None:
    """Before it: the container ended by itself; after it: it was killed."""
    sample = Sample(name="a", act=Act.DELETE, grace=3)
    seen = [event("MODIFIED", "Running", RUNNING), event("DELETED", "Failed", ENDED, at=10.0 + after)]
    assert facts.of_pod(sample, seen, acted=10.0)["end"] == f"{message} the grace period's end"


def test_texts_are_compared_without_what_changes_every_time() -> None:
    """Ids and numbers of the moment, but not the words."""
    assert facts.without_ids(f"pod main-run-0123abcd of {'a' * 64}: no") == "pod main of ID: no"
    assert facts.without_ids("b" * 4096).startswith("4096 bytes: bbb")
