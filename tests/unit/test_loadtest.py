"""The load test's figures: what a latency is, and that its machines are at work."""

from __future__ import annotations

import pytest

from fleet.load.writes import Write, latencies


def write(name: str, at: float, *, done: bool = True) -> Write:
    return Write(user="operator", kind="patch nodes", name=name, done=done, at=at)


def test_latency_lasts_from_the_answer_to_the_first_write_of_a_reading() -> None:
    """A refused write wrote none, a second one comes later; patches before the reading, refused ones and
    later ones do not count; a node without one is missing."""
    written = [write("a", 11.8), write("a", 9.5, done=False), write("a", 10.0), write("b", 20.5)]
    refused = write("a", 10.1, done=False)
    labelled = [write("a", 10.9), write("a", 9.0), refused, write("a", 10.2), write("x", 10.3)]
    assert latencies(written, labelled) == {"a": pytest.approx(200.0)}
