"""What no order of health, pull, NCCL and load runs may end in, on a node that boots, drains and changes.

Runs that are good, bad, lost, preempted, pending or garbage; deaths between any two writes; another image,
other expectations, NCCL runs off and on; cordons, boots, GPUs withdrawn.  `PlannerLoop` checks each write.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.load_results as load
import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NcclResult, Problem, ProblemKind, Result, Skip
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.override import Annotations
from nodegauge_operator.core.probes.registry import label_keys
from support.nccl_nodes import DAY, FAST, SLOW, STRICT, WRONG, skipping
from support.objects import NOW, APod, make_policy
from support.planner_loop import PlannerLoop
from support.properties import tried

pytestmark = pytest.mark.slow

HUNG = nccl.swapped(FAST, "default", outcome="hung", phase="load", cells=[])
NO_ENGINE = Problem(kind=ProblemKind.NO_ENGINE, call="nccl4py", message="no libnccl")
GOOD: dict[str, Result] = {
    names.PROBE_HEALTH: made.h100(),
    names.PROBE_PULL: Result(probe="pull", nccl=NcclResult(engine="nccl4py", nccl="2.32.3")),
    names.PROBE_NCCL: FAST,
    names.PROBE_LOAD: load.loaded(),
}
BAD: dict[str, tuple[Result, ...]] = {
    names.PROBE_HEALTH: (made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4),),
    names.PROBE_PULL: (Result(probe="pull", problem=NO_ENGINE),),
    names.PROBE_NCCL: (SLOW, WRONG, HUNG, skipping(Skip.BUSY, "a job"), skipping(Skip.VGPU)),
    names.PROBE_LOAD: (
        load.spoilt(reasons=load.reason(0x40, samples=100)),
        load.spoilt(mismatches=4),
        load.loaded(skipped=Skip.BUSY, gpus=[]),
    ),
}


OVERRIDDEN = Annotations(kind="healthy", until=stamp(NOW + DAY), by="ann", reason="fan replaced")
POLICIES: list[dict[str, Any]] = [
    {},
    STRICT,
    {"probes": {"nccl": {"enabled": False}}},
    {"probes": {"load": {"enabled": False}}},
    {"podTemplate": {"ncclImage": "nccl:2"}},
    {"mode": "Observe"},
    {"mode": "Paused"},
    {"hysteresis": {"leaveRuns": 1, "dwell": "0s"}},
    {"taints": {"effect": "None"}},
]
NODES = {
    "cordon": lambda n: n if n.unschedulable else n.cordoned(),
    "uncordon": lambda n: replace(
        n, unschedulable=False, taints=tuple(t for t in n.taints if "unschedulable" not in t.key)
    ),
    "seven": lambda n: n.offering(7, of=8),
    "eight": lambda n: n.offering(8),
    "none": lambda n: n.offering(0, of=8),
    "divided": lambda n: n.bearing({"nvidia.com/gpu.replicas": "4"}),
    "whole": lambda n: n.bearing({"nvidia.com/gpu.replicas": "1"}),
    "left alone": lambda n: replace(n, override=replace(OVERRIDDEN, kind="leave-alone")),
    "taken as healthy": lambda n: replace(n, override=OVERRIDDEN),
    "not overridden": lambda n: replace(n, override=None),
}
KINDS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {
    "good": (10, ()),
    "bad": (8, (st.integers(0, 4),)),
    "lost": (3, (st.sampled_from(["oom", "garbage", "gone", "preempted", "preempted late"]),)),
    "linger": (3, ()),
    "wait": (4, (st.sampled_from([30, 90, 700, 4000, 90_000]),)),
    "woken": (12, ()),
    "die": (4, (st.integers(1, 5),)),
    "node": (3, (st.sampled_from(sorted(NODES)),)),
    "boot": (1, (st.integers(2, 4),)),
    "policy": (2, (st.integers(0, len(POLICIES) - 1),)),
    "ask": (1, (st.integers(1, 5),)),
    "room": (1, (st.booleans(),)),
}
"""What may happen, how often, and with what."""
ACTIONS = st.sampled_from([kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]).flatmap(
    lambda kind: st.tuples(st.just(kind), *KINDS[kind][1])
)


def ended(pod: APod, how: str, *, at: float) -> APod:
    """A pod that brings nothing."""
    running = pod.running(at)
    match how:
        case "oom":
            return running.finished_with("", code=137, reason="OOMKilled")
        case "garbage":
            return replace(running.leaving('{"schema": "no'), wrote_at=at)
        case "gone":
            return running.deleting(at).vanished()
        case "preempted":
            return running.preempted().deleting(at).vanished()
    problem = Problem(kind=ProblemKind.TERMINATED, call="nccl", message="SIGTERM")
    return replace(running.preempted().with_result(replace(GOOD[pod.probe], problem=problem)), wrote_at=at)


def brings(scene: PlannerLoop, result: Result) -> None:
    pod = scene.pod()
    scene.changed(pod, replace(pod.running(scene.now).with_result(result), wrote_at=scene.now))


def act(scene: PlannerLoop, action: tuple[Any, ...]) -> None:
    pod = scene.pod()
    match action:
        case ("good",) if pod:
            brings(scene, GOOD[pod.probe])
        case ("bad", which) if pod:
            brings(scene, BAD[pod.probe][which % len(BAD[pod.probe])])
        case ("lost", how) if pod:
            scene.changed(pod, ended(pod, how, at=scene.now))
        case ("linger",) if pod:
            scene.wait(61)
        case ("wait", seconds):
            scene.wait(seconds)
        case ("woken",):
            scene.until_woken()
        case ("die", count):
            scene.go(count)
            scene.restart()
        case ("node", how):
            scene.node = NODES[how](scene.node)
        case ("boot", number):
            scene.node = scene.node.booted(f"boot-{number}")
        case ("policy", which):
            scene.policy = make_policy().of(POLICIES[which])
        case ("ask", number) if scene.report:
            scene.asked(f"2027-02-0{number}T00:00:00Z")
        case ("room", room):
            scene.slot = room


def played(actions: list[tuple[Any, ...]]) -> PlannerLoop:
    """A node after all that.  It is brought to rest before each thing that happens, so that what a run
    changes is the run's doing, and not that of the time before it."""
    scene = PlannerLoop()
    for action in actions:
        if action[0] != "die":
            scene.go()
        act(scene, action)
    scene.go()
    return scene


def well(scene: PlannerLoop) -> bool:
    """Measured, confirmed, and tainted for nothing."""
    evidence = scene.node.labels.get("nodegauge.dev/interconnect-evidence")
    tainted = [taint.key for taint in scene.node.taints if taint.key in names.NODE_TAINTS]
    return evidence == "measured" and not tainted and scene.status.verdict is Verdict.PASS


@given(actions=st.lists(ACTIONS, min_size=20, max_size=70))
@tried(150)
def test_no_order_of_runs_breaks_a_promise_or_traps_a_node(actions: list[tuple[Any, ...]]) -> None:
    """Checked at every write; and at rest the node carries what its report holds, and nothing besides."""
    scene = played(actions)
    carried, desired = (
        (
            {key: value for key, value in node.labels.items() if key in label_keys()},
            {(taint.key, taint.value) for taint in node.taints if taint.key in names.TAINTS_OF_FAULTS},
        )
        for node in (scene.node, scene.status.desired)
    )
    assert carried == desired
    scene.policy, scene.slot = make_policy(), True
    scene.node = NODES["whole"](NODES["eight"](NODES["uncordon"](scene.node))).booted("boot-9")
    for _ in range(600):
        scene.go()
        if well(scene):
            break
        if scene.pod() is None:
            scene.until_woken()
        act(scene, ("good",))
    assert well(scene), (scene.status.gates, scene.status.bandwidth, scene.status.desired)
