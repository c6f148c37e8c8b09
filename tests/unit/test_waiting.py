"""Pods that wait for GPUs: who they are, where they could go, which runs end for them, that none starts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.core.waiting import (
    ALL,
    Demand,
    HoldingRun,
    Placement,
    WaitingPod,
    claimed_gpus,
    demand,
    runs_to_end,
    waiting_pod,
)
from nodegauge_operator.kube import waiting as kube
from nodegauge_operator.kube.decoding import decoded_pod_event
from nodegauge_operator.kube.errors import Forbidden
from nodegauge_operator.reconcile.waiting import RETRY_SECONDS
from support.api_server import NODES, PODS, Body
from support.objects import NOW, make_node, make_pod
from support.operator import MEASURING
from support.virtual_operator import RUN_SECONDS, on_virtual_time
from support.virtual_operator import VirtualTimeOperator as Operator

GPU_NAMES = ("nvidia.com/gpu", "gpu.nvidia.com")
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
EIGHT = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
CLAIM = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}]}


def body(spec: Body = EIGHT, uid: str = "job", **metadata: Any) -> Body:
    named = {"name": uid, "namespace": "team", "uid": uid, **metadata}
    return {"metadata": named, "spec": spec, "status": {"conditions": [UNSCHEDULABLE]}}


def demanded(pod: Body) -> Demand | None:
    """By a pod as it arrives by the watch."""
    event = msgspec.json.encode({"type": "ADDED", "object": pod})
    view = waiting_pod(decoded_pod_event(event)[1], gpu_names=GPU_NAMES)
    assert view == waiting_pod(pod, gpu_names=GPU_NAMES), "all that is read is decoded"
    return demand(view, {}) if view else None


def test_a_mark_that_nothing_changed_is_no_pod() -> None:
    """As kube-apiserver 1.36.3 sends it."""
    line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"552"},"spec":{"containers":null}}}'
    assert decoded_pod_event(line)[1]["metadata"] == {"resourceVersion": "552"}


def of_class(count: int) -> Body:
    limits = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": count}
    return {"containers": [{"resources": {"limits": limits}}] * 2}


def unschedulable(reasons: str, spec: Body = EIGHT) -> Body:
    """As kube-scheduler 1.37.2 says why no node would do."""
    text = f"0/2 nodes are available: {reasons}. preemption: 0/2 nodes are available: 2 Insufficient cpu."
    return body(spec) | {"status": {"conditions": [UNSCHEDULABLE | {"message": text}]}}


VOLUME = "2 node(s) didn't find available persistent volumes to bind"


@pytest.mark.parametrize(
    ("pod", "gpus"),
    [
        (body(), 8),
        (unschedulable("2 Insufficient memory"), 8),
        (unschedulable("1 cannot allocate all claims, 1 node(s) were unschedulable", CLAIM), 1),
        (unschedulable("1 node(s) had untolerated taint(s), 1 node(s) were unschedulable"), None),
        (unschedulable('persistentvolumeclaim "gone" not found'), None),
        (unschedulable("pod has unbound immediate PersistentVolumeClaims"), None),
        (unschedulable("request g: device class nope.example.com does not exist", CLAIM), None),
        (unschedulable("2 node(s) didn't match pod anti-affinity rules"), 8),
        (body(of_class(3) | {"initContainers": EIGHT["containers"]}), 8),
        (body(of_class(5) | {"initContainers": EIGHT["containers"]}), 10),
        (body(CLAIM), 1),
        (body({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}), None),
        (body(labels={names.POD_PROBE: "nccl"}), None),
        (body(deletionTimestamp="2026-11-28T00:00:00Z"), None),
        (body() | {"status": {"conditions": [UNSCHEDULABLE | {"reason": "SchedulingGated"}]}}, None),
        (body() | {"status": {}}, None),
    ],
)
def test_who_waits_for_gpus(pod: Body, gpus: int | None) -> None:
    wanted = demanded(pod)
    assert (wanted.gpus if wanted else None) == gpus


def request(**exactly: Any) -> Body:
    return {"exactly": {"deviceClassName": "gpu.nvidia.com"} | exactly}


@pytest.mark.parametrize(
    ("requests", "gpus"),
    [
        ([request()], 1),
        ([request(count=3), request(deviceClassName="nic")], 3),
        ([request(allocationMode="All")], ALL),
        ([request(allocationMode="All", adminAccess=True)], 0),
        ([{"firstAvailable": [{"deviceClassName": "gpu.nvidia.com", "count": n} for n in (8, 4)]}], 4),
    ],
)
def test_what_a_claim_waits_for(requests: list[Body], gpus: int) -> None:
    claim: Body = {"spec": {"devices": {"requests": requests}}}
    assert claimed_gpus(claim, gpu_names=GPU_NAMES) == gpus
    assert claimed_gpus(claim | {"status": {"allocation": {"devices": {}}}}, gpu_names=GPU_NAMES) == 0


NODE = replace(make_node(), gpu_capacity="8", gpu_allocatable="8", labels={"pool": "a", "size": "8"})


def affine(*expressions: Body, fields: tuple[Body, ...] = ()) -> Body:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "no", "operator": "Exists"}]}, term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def named(operator: str, *values: str, key: str = "pool") -> Body:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"pool": "a"}}, True),
        ({"nodeSelector": {"pool": "b"}}, False),
        (affine(named("In", "a", "b"), named("Gt", "7", key="size")), True),
        (affine(named("NotIn", "a")), False),
        (affine(named("Lt", "8", key="size")), False),
        (affine(named("DoesNotExist", key="other"), named("AnOperatorOfTomorrow")), True),
        (affine(fields=(named("In", "node-1", key="metadata.name"),)), True),
        (affine(fields=(named("In", "node-2", key="metadata.name"),)), False),
    ],
)
def test_where_a_pod_could_go(spec: Body, fits: bool) -> None:
    wanted = demanded(body(EIGHT | spec))
    assert wanted.fits(NODE) is fits
    assert not wanted.fits(NODE.cordoned())


def test_taints_keep_a_pod_off_unless_it_tolerates_them() -> None:
    tainted = NODE.tainted("team/only")
    for tolerations, fits in (
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "team/only", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "team/only", "value": "another"}], False),
    ):
        assert demanded(body(EIGHT | {"tolerations": tolerations})).fits(tainted) is fits


def run(number: int, *, bound: bool = True, **more: Any) -> HoldingRun:
    """The higher the number, the younger."""
    node = replace(NODE, name=f"node-{number}")
    pod = replace(make_pod(node, probe=names.PROBE_NCCL, uid=f"run-{number}"), created_at=NOW + number)
    pod = replace(pod, scheduled=bound)
    return HoldingRun(node=node, pod=pod, **more)


def waiting(uid: str, gpus: int, **more: Any) -> tuple[WaitingPod, Demand]:
    pod = WaitingPod(uid=uid, name=f"team/{uid}", gpus=gpus, placement=Placement(), **more)
    return pod, Demand(gpus, False, pod.placement)


@pytest.mark.parametrize(
    ("pods", "runs", "served", "ended"),
    [
        ([waiting("a", 8)], [run(1), run(2)], {}, {"run-2"}),
        ([waiting("a", 4), waiting("b", 4)], [run(1), run(2)], {}, {"run-2"}),
        ([waiting("a", 8), waiting("b", 8)], [run(1), run(2), run(3)], {}, {"run-2", "run-3"}),
        ([waiting("a", 9)], [run(1)], {}, set()),
        ([waiting("a", ALL)], [run(1, ending=True), run(2)], {}, set()),
        ([waiting("a", ALL)], [run(1, ending=True, late=True), run(2)], {}, {"run-2"}),
        ([waiting("a", 8, nominated="node-1")], [run(1), run(2)], {}, {"run-1"}),
        ([waiting("a", 8)], [run(2)], {"a": "node-1"}, set()),
        (
            [waiting("b", 8), waiting("a", 8)],
            [run(1, ending=True), run(2)],
            {"a": "node-1"},
            {"run-2"},
        ),
        ([waiting("a", 8)], [run(1, bound=False), run(2, bound=False)], {}, {"run-1", "run-2"}),
    ],
)
def test_the_fewest_runs_end_the_youngest_first(
    pods: list[tuple[WaitingPod, Demand]], runs: list[HoldingRun], served: dict[str, str], ended: set[str]
) -> None:
    assert runs_to_end(pods, runs, served=served).keys() == ended


class Stream:
    """What the API server says of pods that are not placed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: asyncio.Queue[tuple[bool, Body]] = asyncio.Queue()
        self.refused = False
        for name in ("listed", "changes"):
            monkeypatch.setattr(kube, name, getattr(self, f"_{name}"))

    def say(self, pod: Body, *, waits: bool = True) -> None:
        self.events.put_nowait((waits, pod))

    async def _listed(self, _: object) -> AsyncIterator[tuple[list[Body], str]]:
        if self.refused:
            raise Forbidden("pods is forbidden", status=403)
        yield [], "1"

    async def _changes(self, _: object, *, since: str) -> AsyncIterator[tuple[bool, Body]]:
        while since:
            yield await self.events.get()


GIVING = replace(MEASURING, give_way_to=GPU_NAMES)


def giving_way(test: Any) -> Any:
    return on_virtual_time(test, settings=GIVING)


@giving_way
async def test_a_run_leaves_its_gpus_and_none_starts_while_somebody_waits(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(monkeypatch)
    await operator.begin(1, gpus=2)
    pod = await operator.until_held()
    labels = operator.cluster.get(NODES, "node-0")["metadata"]["labels"]
    stream.say(body(of_class(1)))
    await operator.after(RUN_SECONDS / 10)
    last = operator.probe()["lastRun"]
    assert (last["outcome"], last["reason"]) == ("skipped", "Preempted")
    assert "team/job" in last["message"]
    assert "readAt" not in operator.probe()
    assert operator.cluster.get(NODES, "node-0")["metadata"]["labels"] == labels
    assert "deletionTimestamp" in operator.cluster.objects[PODS][pod["metadata"]["name"]]["metadata"]
    assert operator.sample("nodegauge_waiting_pods") == 1
    await operator.after(3600)
    assert operator.probe()["lastRun"]["number"] == 1, "no run starts while somebody waits"
    stream.say(body(of_class(1)), waits=False)
    await operator.after(1 + RUN_SECONDS)
    assert (operator.probe()["lastRun"]["number"], operator.probe()["lastRun"]["outcome"]) == (2, "read")


@giving_way
async def test_who_could_not_take_what_one_run_left_gets_another(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, ended = Stream(monkeypatch), lambda: len(operator.sweep._reconciler.waiting.ends)
    for number in (1, 2):
        run_ = run(number)
        operator.sweep.cache.put_node(run_.node)
        operator.sweep.cache.put_pod(run_.pod)
    follow = operator.sweep._reconciler.waiting
    stream.say(body())
    task = asyncio.create_task(follow.follow())
    await asyncio.sleep(0.1)
    assert follow.look() == {"node-2"}
    operator.sweep.cache.drop_pod(run(2).pod)
    assert (follow.look(), ended()) == (set(), 0)
    await asyncio.sleep(RETRY_SECONDS - 1)
    assert follow.look() == set()
    await asyncio.sleep(2)
    assert follow.look() == {"node-1"}
    for text, waits in (
        (VOLUME, 0),
        ("2 Insufficient nvidia.com/gpu", 0),
        ("2 cannot allocate all claims", 1),
    ):
        stream.say(unschedulable(text))
        await asyncio.sleep(0.1)
        assert follow.count() == waits, "it was in vain, until the scheduler says that devices alone lack"
    task.cancel()


@giving_way
async def test_whom_nobody_sees_no_run_can_give_way_to(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a device plugin hands out GPUs the scheduler takes them back by itself."""
    Stream(monkeypatch).refused = True
    await operator.begin(1, gpus=2, after=6 * RUN_SECONDS)
    follow = operator.sweep._reconciler.waiting
    assert "giveWay.enabled" in follow.problem
    assert operator.cluster.condition("Ready")["reason"] == "PodsRefused"
    assert operator.sample("nodegauge_obstacles", policy="default", kind=names.Obstacle.PODS) == 1
    assert operator.probe()["lastRun"]["outcome"] == "read"
    assert follow.keeps_off(make_node()), "nobody could take what a claim holds"
