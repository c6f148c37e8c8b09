"""What a person says about one node: in force as written, ended by the clock, named where it is wrong."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.load_results as load
import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import override, wording
from nodegauge_operator.core.actions import CreateReport
from nodegauge_operator.core.model import node_view
from nodegauge_operator.core.planner import next_step, wake_at
from support.nccl_nodes import FAST
from support.objects import INTERVAL, NOW, ANode, make_node, make_policy, make_snapshot
from support.planner_loop import PlannerLoop
from support.properties import tried

DAY = override.DAY
GOOD: dict[str, Result] = {
    names.PROBE_HEALTH: made.h100(),
    names.PROBE_PULL: Result(probe="pull", nccl=None),
    names.PROBE_NCCL: FAST,
    names.PROBE_LOAD: load.loaded(),
}
BROKEN = made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4)


def written(kind: str, *, days: float = 1.0, **changed: str) -> dict[str, str]:
    """The annotations of an override that is right, but for what is `changed`."""
    texts = {"override": kind, "override-until": stamp(NOW + days * DAY), "override-by": "ann"}
    texts |= {"override-reason": "fan replaced"} | {k.replace("_", "-"): v for k, v in changed.items()}
    return {names.PREFIX + key: text for key, text in texts.items()}


def annotated(node: ANode, annotations: dict[str, str] | None) -> ANode:
    """The node with these annotations, as the operator reads them."""
    return replace(node, override=override.annotations_of(annotations or {}))


class Story(PlannerLoop):
    """A node whose health runs are good until `broken`; NCCL and load runs are off."""

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        off = {"nccl": {"enabled": False}, "load": {"enabled": False}}
        self.policy = make_policy().of({"probes": off, **spec})
        self.broken = False

    def run(self, times: int = 1) -> None:
        for _ in range(times):
            self.go()
            pod = self.pod()
            assert pod is not None, "a run is due"
            self.end(pod)
            self.wait(INTERVAL)

    def end(self, pod: Any) -> None:
        result = BROKEN if self.broken else GOOD[pod.probe]
        self.changed(pod, replace(pod.running(self.now - 5).with_result(result), wrote_at=self.now))
        self.go()

    def say(self, annotations: dict[str, str] | None) -> None:
        """Somebody annotates the node, and the operator looks."""
        self.node = annotated(self.node, annotations)
        self.go()

    def faulty(self) -> None:
        """The node is read, breaks, and is tainted."""
        self.run()
        self.broken = True
        self.run(3)
        assert self.taints() == [names.TAINT_UNHEALTHY]

    def taints(self) -> list[str]:
        return [taint.key for taint in self.node.taints if taint.key in names.NODE_TAINTS]

    def reasons(self) -> list[str]:
        return [reason for _, reason in self.events]

    def quiet(self) -> bool:
        """Whether no run was made and nothing written to the node since `written` was cleared."""
        return not self.written.keys() & {"CreatePod", "PatchNode", "SetCondition"}


WRONG = [
    (written("ignore"), names.OVERRIDE, "leave-alone or healthy"),
    (written(""), names.OVERRIDE, "leave-alone or healthy"),
    (written("healthy", override_by=" "), names.OVERRIDE_BY, "who"),
    (written("healthy", override_reason="\n"), names.OVERRIDE_REASON, "why"),
    (written("healthy", override_until=""), names.OVERRIDE_UNTIL, "YYYY-MM-DD"),
    (written("healthy", override_until="2027-01-15T08:00:00"), names.OVERRIDE_UNTIL, "YYYY-MM-DD"),
    (written("healthy", override_until="2027-02-31T08:00:00Z"), names.OVERRIDE_UNTIL, "YYYY-MM-DD"),
    (written("healthy", days=31), names.OVERRIDE_UNTIL, "30 days"),
    (written("leave-alone", days=-1), names.OVERRIDE_UNTIL, "over since"),
    ({names.OVERRIDE: "healthy"}, names.OVERRIDE_BY, "who"),
]
"""Annotations, the one that is wrong, and what the way out says."""


@pytest.mark.parametrize(("annotations", "key", "way_out"), WRONG)
def test_a_wrong_value_is_named_once_and_not_in_force(
    annotations: dict[str, str], key: str, way_out: str
) -> None:
    story = Story()
    story.faulty()
    story.say(annotations)
    story.run(2)
    assert story.taints() == [names.TAINT_UNHEALTHY]
    stands = story.status.override
    assert key in stands.problem
    assert way_out in stands.problem
    assert story.reasons().count("OverrideInvalid") == 1
    assert "OverrideSet" not in story.reasons()


@pytest.mark.parametrize("zone", ["Z", "+00:00", "+02:00", ".25Z"])
def test_any_time_with_a_zone_is_right(zone: str) -> None:
    text = stamp(NOW + DAY).removesuffix("Z") + zone
    known = override.override_at(override.annotations_of(written("healthy", override_until=text)), now=NOW)
    assert known
    assert known.problem == ""


def test_what_a_person_writes_is_one_bounded_line() -> None:
    hostile = written("healthy", override_reason="a\x1b[31m\n" + "x" * 5000, override_by="é" * 500)
    body = {"metadata": {"name": "n", "annotations": hostile}}
    known = override.override_at(node_view(body).override, now=NOW)
    assert wording.in_words(known).isprintable()
    assert len(known.reason.encode()) <= override.MAX_REASON
    assert len(known.by.encode()) <= override.MAX_BY


@pytest.mark.parametrize("moved", [False, True])
def test_a_node_taken_as_healthy_loses_its_taint_until_then(moved: bool) -> None:
    story = Story()
    story.faulty()
    assert story.node.labels[names.LABEL_HEALTH] == "fail"
    story.say(written("healthy"))
    assert story.taints() == []
    assert story.node.labels[names.LABEL_HEALTH] == "warn"
    condition = story.node.condition
    assert (condition.status, condition.reason) == ("True", "TakenAsHealthy")
    assert f"taken as healthy by ann until {stamp(NOW + DAY)}" in condition.message
    assert (story.status.verdict, story.status.raw_verdict) == (Verdict.WARN, Verdict.FAIL)
    assert story.reasons()[-1] == "OverrideSet"
    story.run(2)
    assert story.taints() == [], "runs go on and change nothing"
    assert wake_at(story.snapshot()) <= NOW + DAY
    story.slot = False
    if moved:
        story.say(written("healthy", days=-1))
    else:
        story.now = NOW + DAY
        story.go()
    assert story.taints() == [], "it needs a slot like any other"
    assert "OverrideEnded" in story.reasons()
    story.slot = True
    story.run()
    assert story.taints() == [names.TAINT_UNHEALTHY]
    assert (story.reasons().count("OverrideEnded"), story.reasons().count("OverrideInvalid")) == (1, 0)
    history = [(past.before, past.to) for past in story.status.transitions if past.what == "override"]
    assert history == [("", "healthy by ann"), ("healthy by ann", "")]


def test_taken_as_healthy_invents_nothing() -> None:
    story = Story(taints={"unvalidated": "Set"})
    story.go()
    assert story.taints() == [names.TAINT_UNVALIDATED]
    story.say(written("healthy"))
    assert story.taints() == []
    assert story.status.verdict is Verdict.UNKNOWN
    assert story.node.labels == {}
    story.say(None)
    assert story.taints() == [names.TAINT_UNVALIDATED]


@pytest.mark.parametrize("paused", ["override", "policy"])
def test_a_node_left_alone_stays_as_it_is(paused: str) -> None:
    story = Story()
    story.faulty()
    before, policy = story.node, story.policy
    if paused == "override":
        story.say(written("leave-alone", days=20))
    else:
        story.policy = replace(policy, spec=replace(policy.spec, mode=Mode.PAUSED))
    story.written.clear()
    for _ in range(40):
        story.wait(DAY / 4)
        story.go()
    assert story.quiet()
    story.node = replace(story.node, taints=(), labels={})
    story.wait(DAY)
    story.go()
    assert story.quiet()
    assert story.node.taints == ()
    story.policy, story._since = policy, story.now
    story.say(None)
    assert story.node.labels[names.LABEL_HEALTH] == before.labels[names.LABEL_HEALTH]
    story.run()
    assert story.taints() == [names.TAINT_UNHEALTHY]


def test_a_run_under_way_ends_and_writes_nothing_to_a_node_left_alone() -> None:
    story = Story(hysteresis={"enterRuns": 1})
    story.run()
    story.broken = True
    story.go()
    pod = story.pod()
    story.say(written("leave-alone"))
    story.written.clear()
    before = story.status.desired
    story.end(pod)
    assert story.status.raw_verdict is Verdict.FAIL
    assert story.status.desired == before, "no slot is taken for a taint that is not set"
    assert story.quiet()
    story.say(None)
    assert story.node.labels[names.LABEL_HEALTH] != "pass"


@pytest.mark.parametrize("kind", ["leave-alone", "healthy", "nonsense"])
def test_a_node_that_was_never_read_shows_its_override(kind: str) -> None:
    story = Story()
    story.node = annotated(story.node, written(kind))
    story.go()
    assert story.status.override.kind == kind
    assert (story.pod() is None) == (kind == "leave-alone")
    assert story.reasons()[0] == ("OverrideInvalid" if kind == "nonsense" else "OverrideSet")


@given(
    days=st.lists(
        st.tuples(st.sampled_from([None, "healthy", "leave-alone", "x"]), st.integers(-3, 40)), max_size=8
    ),
    broken=st.booleans(),
)
@tried(40)
def test_every_change_of_an_override_is_one_event(days: list[tuple[str | None, int]], broken: bool) -> None:
    story = Story()
    story.run()
    story.broken = broken
    for kind, ahead in days:
        begin = (story.now - NOW) / DAY
        story.say(written(kind, days=begin + ahead) if kind else None)
        events = len(story.events)
        for _ in range(3):
            story.go()
        assert len(story.events) == events
        stands = story.status.override
        assert (stands is not None and not stands.problem) == (
            kind in ("healthy", "leave-alone") and 0 < ahead <= override.MAX_AHEAD_DAYS
        )
        story.until_woken()
        story.go()


@pytest.mark.parametrize("labels", [{}, {names.LABEL_HEALTH: "pass"}])
def test_a_node_without_a_report_gets_one_for_its_override(labels: dict[str, str]) -> None:
    """Nobody asks for a run there; while it is left alone, marks of ours stay that no report explains."""
    node = annotated(make_node().bearing(labels), written("leave-alone"))
    step = next_step(make_snapshot(node=node, granted=frozenset()))
    assert isinstance(step, CreateReport)
