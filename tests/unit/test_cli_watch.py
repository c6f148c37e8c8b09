"""`nodegauge watch`: a line per change; streams that end, break or are too old lose no change."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli.__main__ import main
from nodegauge_cli.cluster import POLICIES, REPORTS, Cluster
from nodegauge_cli.watch import Watch, line
from support import explained
from support.kubectl import FakeKubectl, body_of, policy_body
from support.objects import NOW, AReport


def event(kind: str, report: AReport, version: int = 8) -> dict[str, Any]:
    body = body_of(report)
    body["metadata"]["resourceVersion"] = str(version)
    return {"type": kind, "object": body}


CORRUPTING = event("MODIFIED", explained.corrupting())
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
BROKEN = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}}
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}}
FAILS = [
    "gpu-7  health: pass -> fail  GPU 3 (0000:12:00.0), serial 1654922000003: 135 wrong results",
    "gpu-7  taint: none -> unhealthy=corruption:NoSchedule  GPU 3 (0000:12:00.0), serial",
]


class Clock:
    """Held: only a rest moves it."""

    def __init__(self) -> None:
        self.now, self.rested, self.lines = NOW + 120, list[float](), list[str]()

    def rest(self, seconds: float) -> None:
        self.rested.append(seconds)
        self.now += seconds


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """Of a cluster with one node, which is healthy."""
    fake = FakeKubectl(tmp_path, monkeypatch)
    fake.serve(POLICIES, [policy_body()])
    fake.serve(REPORTS, [body_of(explained.healthy())])
    return fake


def begun(clock: Clock) -> Watch:
    watch = Watch(Cluster(), clock=lambda: clock.now, rest=clock.rest, tell=clock.lines.append)
    assert watch.begin() == 1
    return watch


@pytest.mark.parametrize(
    ("streams", "says", "lines"),
    [
        ([[CORRUPTING], []], FAILS, ""),
        ([[CORRUPTING], [CORRUPTING]], FAILS, ""),
        ([[event("DELETED", explained.healthy())], []], ["gpu-7  report: none -> gone"], ""),
        ([[BOOKMARK, GONE], []], [], ""),
        ([[BROKEN], [CORRUPTING]], FAILS, "etcd is away"),
    ],
)
def test_each_change_is_told_once(
    kubectl: FakeKubectl, streams: list[list[dict[str, Any]]], says: list[str], lines: str
) -> None:
    clock = Clock()
    kubectl.watches(*streams)
    shown = [line(change) for change in begun(clock).changes(until=NOW + 122)]
    assert [text[10 : 10 + len(want)] for text, want in zip(shown, says, strict=False)] == says
    assert len(shown) >= len(says)
    assert lines in " ".join(clock.lines)


def test_after_a_gap_it_tells_what_changed_meanwhile(kubectl: FakeKubectl) -> None:
    kubectl.watches([GONE], [])
    watched = begun(Clock())
    kubectl.serve(REPORTS, [body_of(explained.corrupting())])
    assert [change.what for change in watched.changes(until=NOW + 121)] == ["health", "taint"]


def test_a_reading_that_nobody_renews_is_told_by_the_clock(kubectl: FakeKubectl) -> None:
    clock = Clock()
    kubectl.watches([], [])
    watched = begun(clock)
    clock.now += 5 * 3600
    (change,) = watched.changes(until=clock.now + 1)
    assert (change.before, change.to) == ("pass", "unread")
    assert "Nobody has looked since" in change.why


@pytest.mark.parametrize(("path", "code"), [(REPORTS, 1), ("none", 0)])
def test_it_ends_after_its_time_and_says_why_it_cannot_begin(
    kubectl: FakeKubectl, path: str, code: int
) -> None:
    kubectl.refuse(path, "Error from server (Forbidden): no")
    result = CliRunner().invoke(main, ["watch", "--for", "0s"])
    assert result.exit_code == code
    assert ("nodegauge-view" if code else "Watching 1 nodes") in result.stderr
