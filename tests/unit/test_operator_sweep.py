"""The loop on virtual time: first list, wakes, timers, places, stopping, and a fleet that is bad at once.

`support.virtual_operator` is where it plays.
"""

import asyncio
import re
import time
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused
from nodegauge_operator.names import PaceReason
from nodegauge_operator.reconcile.node_counts import NodeCounters
from nodegauge_operator.reconcile.resync import GATHER_SECONDS, SHORTEST
from support import virtual_operator
from support.api_server import NODES, PODS, POLICIES, READINGS, REPORTS, Body
from support.client import Call, unavailable
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import make_node, make_pod
from support.operator import SETTINGS
from support.virtual_operator import LATENCY, RUN_SECONDS, on_virtual_time, refusing
from support.virtual_operator import VirtualTimeOperator as Operator


@pytest.mark.parametrize(
    ("error", "path"), [(unavailable(), NODES), (NotFound("no such resource", status=404), POLICIES)]
)
@on_virtual_time
async def test_nothing_is_decided_before_the_first_full_list(
    operator: Operator, error: KubeError, path: str
) -> None:
    """Watch events alone are half the truth; CRDs that are missing are waited for alike."""
    operator.client.refuse = refusing(error, "GET", path)
    operator.start()
    operator.nodes(2)
    operator.cluster.add_policy()
    await operator.after(20)
    assert (operator.sweep.listed, operator.client.log) == (False, [])
    assert operator.sweep.alive()
    assert operator.calls() < 20
    operator.client.refuse = lambda verb, path: None
    await operator.after(30)
    assert operator.sweep.listed
    assert operator.read() == ["node-0", "node-1"]


@pytest.mark.parametrize("others", [0, 1])
@on_virtual_time
async def test_an_operator_whose_every_report_is_refused_is_not_ready(
    operator: Operator, others: int
) -> None:
    """It can do nothing at all; with one report it can, and the policy says the rest."""
    await operator.begin(others, after=3 * RUN_SECONDS)
    operator.client.refuse = refusing(Refused("denied"), "POST", REPORTS)
    operator.cluster.add_node("node-new")
    await operator.after(3 * RUN_SECONDS)
    every = "the API server refuses every NodeReport: denied"
    assert operator.sweep.not_ready() == ("" if others else every)
    assert operator.sample("nodegauge_obstacles", policy="default", kind="report") == 1
    operator.client.refuse = lambda verb, path: None
    await operator.after(120)
    assert operator.sweep.not_ready() == ""
    assert operator.read()[-1] == "node-new"


@on_virtual_time
async def test_metrics_count_who_runs_and_who_waits(operator: Operator) -> None:
    await operator.begin(3, budget={"concurrentProbes": 1})
    for after, counts in ((RUN_SECONDS / 2, [1, 2]), (6 * RUN_SECONDS, [0, 0])):
        await operator.after(after)
        metrics = ("nodegauge_running_probes", "nodegauge_waiting_nodes")
        assert [operator.sample(metric, probe="health") for metric in metrics] == counts


@on_virtual_time
async def test_no_label_waits_for_another_nodes_report(operator: Operator) -> None:
    operator.sweep._settings = replace(operator.sweep._settings, workers=1)
    written: list[str] = []
    operator.client.answered = lambda verb, path: written.append(path) if verb == "PATCH" else None
    await operator.begin(4, after=RUN_SECONDS / 2, budget={"concurrentProbes": 4})
    operator.latency = RUN_SECONDS
    await operator.after(20 * RUN_SECONDS)
    names_of = [f"node-{n}" for n in range(4)]
    labels = [written.index(f"{NODES}/{name}") for name in names_of]
    reports = [written.index(f"{REPORTS}/{name}/status") for name in names_of]
    assert max(labels) < min(reports)


@on_virtual_time
async def test_shutdown_finishes_writes_and_creates_no_pod(operator: Operator) -> None:
    await operator.begin(12, budget={"concurrentProbes": 6})
    while not (operator.sweep._in_flight and operator.cluster.judged):
        await operator.after(LATENCY / 3)
    pods = sum(operator.cluster.created.values())
    await operator.sigterm()
    assert sum(operator.cluster.created.values()) == pods
    assert not operator.sweep._in_flight
    judged = {node for node, _, _ in operator.cluster.judged}
    assert judged
    assert judged == set(operator.read())


@on_virtual_time
async def test_cancelling_does_not_wait_for_ever_and_leaves_no_task(operator: Operator) -> None:
    await operator.begin(3, after=RUN_SECONDS + 2, budget={"concurrentProbes": 3})
    operator.latency = 1000.0
    operator.sweep.wake("node-0", "node-1", "node-2")
    operator.sweep.cache.suspects |= {"node-0", "node-1", "node-2"}
    await operator.after(1)
    assert operator.sweep._in_flight
    started = operator.loop.time()
    await operator.sigterm()
    assert operator.loop.time() - started <= 6
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]


@pytest.mark.parametrize(
    ("path", "error", "away"),
    [
        (PODS, Forbidden("cannot list pods", status=403), False),
        (READINGS, unavailable(500), False),
        (POLICIES, unavailable(500), False),
        (REPORTS, unavailable(500), True),
        (NODES, unavailable(500), True),
    ],
)
@on_virtual_time
async def test_lists_that_fail_decide_nothing_and_are_said_by_the_policy(
    operator: Operator, path: str, error: KubeError, away: bool
) -> None:
    """What the watches miss is not seen; an API server that is away is no fault of the policy's."""
    await operator.begin(2, after=30)
    before = operator.cluster.state()["nodes"]
    operator.client.refuse = refusing(error, "GET", path)
    if away:
        operator.client.outage.failed("away", since=time.monotonic() - 60)
    operator.list_now()
    await operator.after(10)
    assert operator.cluster.condition("Ready")["reason"] == "Active", "it may have just started"
    await operator.after(60)
    assert operator.cluster.condition("Ready")["reason"] == ("Active" if away else "ListsFail")
    assert operator.sample("nodegauge_obstacles", policy="default", kind="list") == (not away)
    assert operator.cluster.state()["nodes"] == before
    lists = operator.lists()
    assert operator.metrics.failed_lists._value.get() >= 4
    operator.client.refuse = lambda *_: None
    await operator.after(300)
    assert (operator.lists() > lists, operator.metrics.failed_lists._value.get()) == (True, 0)
    assert operator.cluster.condition("Ready")["reason"] == "Active"


@pytest.mark.parametrize("status", [0, 429, 500, 503])
@on_virtual_time
async def test_refused_creates_become_rare(operator: Operator, status: int) -> None:
    """No full list either, the last thing that an API server needs which does not keep up."""
    operator.client.refuse = refusing(unavailable(status), "POST", PODS)
    await operator.begin(4, after=60, budget={"concurrentProbes": 4})
    calls, lists = operator.calls(), operator.lists()
    await operator.after(3600)
    assert operator.lists() - lists <= 7  # one every ten minutes
    assert operator.calls() - calls <= 4 * 130
    operator.client.refuse = lambda verb, path: None
    await operator.after(90)
    assert len(operator.read()) == 4


@on_virtual_time
async def test_one_node_s_trouble_stops_nobody_else(operator: Operator) -> None:
    operator.nodes(3)
    operator.cluster.add_policy(budget={"concurrentProbes": 3})
    reconcile = operator.sweep._reconciler.reconcile

    async def sometimes(name: str, **how: Any) -> Any:
        if name == "node-0":
            raise ZeroDivisionError("a bug")
        return await reconcile(name, **how)

    operator.sweep._reconciler.reconcile = sometimes  # type: ignore[method-assign]
    operator.client.refuse = refusing(Refused("denied by policy"), "PATCH", f"{NODES}/node-1")
    operator.start()
    await operator.after(120)
    assert operator.read() == ["node-2"]
    for kind in ("Unexpected", "Refused"):
        assert 3 <= operator.sample("nodegauge_reconcile_failures_total", kind=kind) <= 15
    operator.sweep._reconciler.reconcile = reconcile  # type: ignore[method-assign]
    operator.client.refuse = lambda verb, path: None
    await operator.after(120)
    assert len(operator.read()) == 3


@pytest.mark.parametrize("steps", range(5))
@on_virtual_time
async def test_the_loop_ends_when_it_is_woken_and_stopped_at_once(operator: Operator, steps: int) -> None:
    """SIGTERM may come at any step of the event loop between a wake-up and the pass that follows."""
    await operator.begin(1, after=60)
    operator.sweep.wake("node-0")
    for _ in range(steps):
        await asyncio.sleep(0)
    operator.task.cancel()
    await asyncio.wait({operator.task}, timeout=30)
    assert operator.task.cancelled()


@on_virtual_time
async def test_liveness_fails_for_a_stuck_loop_only(operator: Operator) -> None:
    operator.nodes(1)
    operator.start()
    await operator.after(30)
    operator.latency = 55.0
    operator.list_now()
    for _ in range(30):
        await operator.after(10)
        assert operator.sweep.alive()
    operator.latency = 10_000.0
    operator.list_now()
    await operator.after(1000)
    assert not operator.sweep.alive()


POLICY_STATUS = f"{POLICIES}/default/status"


async def measured(operator: Operator, count: int = 3) -> None:
    """So many nodes are registered and measured once; the watches' own first lists are over."""
    await operator.begin(count, after=60, budget={"concurrentProbes": "100%"})
    assert len(operator.read()) == count


@pytest.mark.parametrize(("verb", "path"), [("GET", NODES), ("GET", PODS), ("PATCH", POLICY_STATUS)])
@on_virtual_time
async def test_slow_lists_delay_no_result(operator: Operator, verb: str, path: str) -> None:
    """At 5,000 nodes a list takes many pages, and each may take a minute."""
    await measured(operator)
    operator.cluster.add_node("node-new")
    await operator.after(1)
    operator.slow(verb, path, 50.0)
    operator.sweep._policy_status.dirty = True
    operator.list_now()
    operator.cluster.add_node("node-next")
    await operator.after(RUN_SECONDS + 2)
    assert operator.sweep._list_task.busy or operator.sweep._status_task.busy
    assert {"node-new", "node-next"} <= set(operator.read())


@on_virtual_time
async def test_a_list_with_a_changed_policy_wakes_every_node(operator: Operator) -> None:
    await measured(operator)
    with operator.unheard():
        operator.cluster.change(POLICIES, "default", {"spec": {"mode": "Observe"}})
    operator.list_now()
    await operator.after(SHORTEST + 1)
    assert operator.read() == []


@on_virtual_time
async def test_a_list_brings_nothing_back_that_went_while_it_was_taken(operator: Operator) -> None:
    await measured(operator)
    asked: list[tuple[str, str]] = []
    take = operator.client.take

    async def late(call: Call) -> Body:
        asked.append((call.method, call.path))
        answer = await take(call)
        if call.method == "GET" and call.path in (NODES, REPORTS):
            await asyncio.sleep(20)
        return answer

    operator.client.take = late  # type: ignore[method-assign]
    operator.list_now()
    await operator.after(30)  # the nodes are on their way
    assert operator.sweep._list_task.busy
    operator.cluster.remove(REPORTS, "node-1")
    operator.cluster.remove(NODES, "node-1")
    asked.clear()
    await operator.after(60)
    assert not operator.sweep._list_task.busy
    assert ("PATCH", f"{NODES}/node-1") not in asked
    assert "node-1" not in operator.sweep.cache.known_names()


@on_virtual_time
async def test_a_pod_s_news_goes_before_a_crowd_that_only_wants_a_look(operator: Operator) -> None:
    """Another policy wakes thousands of nodes; the run that ends meanwhile is judged next."""
    await measured(operator, 60)
    operator.client.reads.clear()
    operator.sweep.wake(*sorted(operator.sweep.cache.nodes))
    operator.sweep.cache.suspects |= set(operator.sweep.cache.nodes)  # each takes a question
    operator.sweep.pod_seen(make_pod(make_node("node-7")).vanished())
    await operator.after(1)
    asked = [path for path in operator.client.reads if path.startswith(f"{NODES}/")]
    assert (asked[0], len(asked)) == (f"{NODES}/node-7", 60)


@pytest.mark.parametrize("path", [NODES, PODS, POLICIES, REPORTS])
@on_virtual_time
async def test_a_gap_in_any_watch_is_mended_by_a_list(operator: Operator, path: str) -> None:
    """When the watch of pods alone was interrupted, deletions of pods alone are unknown."""
    await operator.begin(1, after=2)
    body = next(iter(operator.cluster.objects[path].values()))
    operator.watches.give(path, None, body)
    await operator.after(SHORTEST + GATHER_SECONDS + 5)
    lists = operator.lists()
    assert lists == 1, "the watches' own first lists are no gap"
    await operator.after(30)
    for _ in range(15):  # kopf's list anew, object by object
        operator.watches.give(path, None, body)
        await operator.after(1)
    await operator.after(SHORTEST + 1)
    assert operator.lists() == lists + 1


@pytest.mark.parametrize("in_list", [False, True], ids=["in the loop", "in a list beside it"])
@on_virtual_time
async def test_an_error_ends_the_loop(operator: Operator, in_list: bool) -> None:
    """And with it the process: what is broken must not look alive."""
    await measured(operator)
    if in_list:
        operator.sweep.cache.drop_unlisted = lambda **_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    else:
        operator.sweep._grant = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    operator.list_now()
    with pytest.raises(ZeroDivisionError):
        await operator.after(10)


@on_virtual_time
async def test_shutdown_waits_for_a_status_but_not_for_a_list(operator: Operator) -> None:
    """SIGTERM in the middle of both: neither outlives the loop."""
    await measured(operator)
    operator.slow("GET", NODES, 50.0)
    operator.slow("PATCH", POLICY_STATUS, 2.0)
    operator.cluster.add_node("node-new")
    await operator.after(1)
    operator.sweep._policy_status.dirty = True
    operator.list_now()
    await operator.after(1)
    assert operator.sweep._list_task.busy
    assert operator.sweep._status_task.busy
    began = operator.loop.time()
    await operator.sigterm()
    assert operator.loop.time() - began <= 2
    assert operator.cluster.get(POLICIES, "default")["status"]["nodes"]["selected"] == 4
    assert asyncio.all_tasks() == {asyncio.current_task()}


@partial(on_virtual_time, settings=replace(SETTINGS, max_concurrent_probes=1))
async def test_runs_that_cannot_keep_up_say_what_to_raise(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a metric has the age of the oldest reading; a paused policy has no pace."""
    monkeypatch.setattr(virtual_operator, "RUN_SECONDS", 15.0)  # as on real nodes
    await operator.begin(100, after=600)
    seen = operator.cluster.condition("RunsKeepUp")
    assert (seen["status"], seen["reason"]) == ("False", "TooFewSlots")
    arithmetic = r"100 nodes, 1 at once, 15 s each: a round takes 2[56] min, longer than the interval of 15m"
    assert re.match(arithmetic, seen["message"])
    assert "At least 2 at once are needed: raise the chart's operator.maxCon" in seen["message"]
    age = operator.sample("nodegauge_oldest_reading_age_seconds", policy="default", last_run="read")
    assert 500 < age <= 600
    for spec, reason in (
        ({"probes": {"health": {"interval": "30m"}}}, "KeepingUp"),
        ({"budget": {"concurrentProbes": 0}}, ""),
    ):
        operator.cluster.change(POLICIES, "default", {"spec": spec})
        await operator.after(60)
        assert operator.cluster.condition("RunsKeepUp").get("reason", "") == reason


@on_virtual_time
async def test_a_policy_that_is_too_narrow_names_its_own_field(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installation would allow more."""
    monkeypatch.setattr(virtual_operator, "RUN_SECONDS", 15.0)
    await operator.begin(100, after=120, budget={"concurrentProbes": 1})
    assert "raise spec.budget.concurrentProbes (1)" in operator.cluster.condition("RunsKeepUp")["message"]


@pytest.mark.parametrize(("count", "reason"), [(3, "FewRunsRefused"), (4, "RunsRefused")])
@on_virtual_time
async def test_a_tenth_of_the_nodes_whose_runs_are_refused_leave_the_policy_ready(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, count: int, reason: str
) -> None:
    refused = {f"node-{n}": "ErrImagePull: no such host" for n in range(count)}
    monkeypatch.setattr(NodeCounters, "refused", lambda *_: refused)
    await operator.begin(30, after=120)
    seen = operator.cluster.condition("RunsKeepUp")
    assert seen["reason"] == reason
    assert f"{count} nodes of 30 (node-0, node-1, node-2" in seen["message"]
    assert operator.cluster.condition("Ready")["status"] == ("False" if reason == "RunsRefused" else "True")


@on_virtual_time
async def test_runs_that_are_refused_are_said_with_the_servers_words(operator: Operator) -> None:
    operator.client.refuse = refusing(Forbidden("exceeded quota: gpu"), "POST", PODS)
    await operator.begin(3, after=120)
    seen = operator.cluster.condition("RunsKeepUp")
    assert (seen["status"], seen["reason"]) == ("False", PaceReason.RUNS_REFUSED)
    assert re.match(r"the last health run of 3 nodes of 3 \(.*\) could not be made: .*quota", seen["message"])
    operator.client.refuse = lambda *_: None
    await operator.after(1200)
    assert operator.cluster.condition("RunsKeepUp")["reason"] == PaceReason.KEEPING_UP


def gated(cluster: FakeCluster) -> set[str]:
    """Nodes that carry a taint, or that a report reserves a slot for."""
    reports = cluster.objects[REPORTS].items()
    return cluster.tainted_nodes() | {
        name for name, body in reports if body.get("status", {}).get("desired", {}).get("taints")
    }


COMMON: dict[str, Any] = {
    "probes": {"health": {"interval": "5m"}},
    "budget": {"concurrentProbes": "100%", "gatedNodes": "20%", "gatedNodesPerHour": "10%"},
    "breaker": {},
}


@pytest.mark.slow
@pytest.mark.usefixtures("stated_answers")
@on_virtual_time
async def test_a_common_cause_is_shown_once_and_heals_by_itself(operator: Operator) -> None:
    """Also while the status cannot be written, and over a restart, which says nothing again."""
    cluster, most = operator.cluster, [0]
    cluster.subscribers.append(lambda *_: most.append(max(most.pop(), len(gated(cluster)))))
    operator.client.refuse = refusing(unavailable(), "PATCH", POLICIES)
    cluster.results = {f"node-{n}": saying("gpu-lost=b") for n in range(40)}
    await operator.begin(40, after=600, **COMMON)
    assert 0 < len(cluster.tainted_nodes()) <= 4
    first = cluster.tainted_nodes()
    operator.client.refuse = lambda verb, path: None
    await operator.after(600)
    condition = cluster.condition("BreakerOpen")
    assert (condition["status"], condition["reason"]) == ("True", "IncidentOpen")
    (incident,) = cluster.objects[POLICIES]["default"]["status"]["incidents"]
    command = f"nodegauge.dev/close-incident={incident['id']} --overwrite"
    assert command in condition["message"]
    assert command in cluster.policy_events()[0]["message"]
    assert operator.sample("nodegauge_incidents_open", cause="gpu-lost", policy="default") == 1
    assert operator.sample("nodegauge_incidents_total", cause="gpu-lost") == 1
    blocked = [r["status"]["desired"]["message"] for r in cluster.objects[REPORTS].values()]
    assert sum(f"held back by incident {incident['id']}" in text for text in blocked) == 40 - len(first)
    await operator.stop()
    again = Operator(operator.loop, cluster=cluster)
    again.start()
    await again.after(1.25 * 3600)
    assert cluster.tainted_nodes() == first, "the rate would have let more nodes in"
    assert [i["id"] for i in cluster.objects[POLICIES]["default"]["status"]["incidents"]] == [incident["id"]]
    cluster.results |= {f"node-{n}": saying("") for n in range(1, 40)}
    await again.after(1800)
    condition = cluster.condition("BreakerOpen")
    assert (condition["status"], condition["reason"]) == ("False", "NoIncident")
    assert cluster.objects[POLICIES]["default"]["status"]["incidents"][0]["closedAt"]
    assert cluster.tainted_nodes() == {"node-0"}, "still bad, and alone"
    cluster.results["node-0"] = saying("")
    await again.after(1800)
    assert cluster.tainted_nodes() == set()
    assert (len(cluster.policy_events()), most) == (1, [4])
    await again.stop()
