"""A full list on a cache that is filled: it fetches whole only what is new, and misses nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_contract import Result
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.kube.client import METADATA_ONLY
from nodegauge_operator.kube.reports import difference, without_nulls
from nodegauge_operator.reconcile.cache import Restored
from nodegauge_operator.reconcile.resync import list_all
from support.api_server import (
    CHASSIS,
    NAMESPACE,
    NODES,
    PODS,
    POLICIES,
    READINGS,
    REPORTS,
    SLICES,
    Body,
    merged,
)
from support.client import Call
from support.cluster import FakeCluster
from support.objects import NOW
from support.operator import SteppedOperator
from support.properties import tried
from support.results import phb, titan
from support.virtual_time import drive
from support.watch_pods import WatchPod

LISTED_WHOLE = {POLICIES, PODS}
"""The few policies; and pods of single runs, of which none is known."""
DISCOVERY = "/apis/resource.k8s.io"
"""Asked whether there are DeviceTaintRules."""


def listed(operator: SteppedOperator, *, selector: str = "") -> list[str]:
    """Take a full list; the nodes that it wakes."""
    woken: list[str] = []
    how: dict[str, Any] = {"namespace": NAMESPACE, "node_selector": selector, "bmc": True}
    how |= {"watch_pods": operator.reconciler.watch_sets.pods, "wake": woken.append}
    drive(list_all(operator.client, operator.cache, **how))
    return woken


class Fleet:
    """Three nodes with watch pods, their readings and reports, and an operator that knows all of it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.add_policy(probes={"health": {"mode": "Watch"}})
        self.nodes = [f"node-{number}" for number in (1, 2, 3)]
        for name in self.nodes:
            self.cluster.add_node(name)
            self.cluster.create(CHASSIS, {"metadata": {"name": name}, "status": {"number": 1}})
        self.operator = SteppedOperator(self.cluster)
        self.operator.list()
        self.operator.keep_watch_sets()
        self.pods = {name: WatchPod(self.cluster, name) for name in self.nodes}
        for name, pod in self.pods.items():
            pod.reports(titan())
            self.operator.catch_up(name, granted=False)
        self.operator.list()
        self.operator.deliver()
        self.calls: list[Call] = []
        self.woken: list[str] = []
        take = self.operator.client.take

        async def kept(call: Call) -> Body:
            self.calls.append(call)
            return await take(call)

        self.operator.client.take = kept  # type: ignore[method-assign]

    def list_again(self) -> list[str]:
        """A full list, after watches that reported nothing of what happened; what it fetched whole."""
        self.operator.inbox.clear()
        self.calls.clear()
        self.woken = listed(self.operator)
        whole = [call for call in self.calls if call.accept != METADATA_ONLY]
        named = [c.path + c.query.get("fieldSelector", "").replace("metadata.name=", "/") for c in whole]
        return [path for path in named if path not in LISTED_WHOLE and path != DISCOVERY]

    def read(self, name: str) -> tuple[int, bool]:
        """The number of the last reading that is known of the node, and whether its document is."""
        part = self.operator.cache.readings[name].parts["health"]
        return part.sequence, bool(part.text)

    def watchers(self, name: str) -> list[str]:
        """UIDs of the node's watch pods that are known to be there."""
        return [pod.uid for pod in self.watch_pods if pod.node == name and not pod.gone]

    @property
    def watch_pods(self) -> list[WatchView]:
        return list(self.operator.reconciler.watch_sets.pods.each())


def test_nothing_that_is_known_is_fetched_again() -> None:
    fleet = Fleet()
    assert fleet.list_again() == []
    compared = [call.path for call in fleet.calls if call.accept == METADATA_ONLY]
    assert compared == [REPORTS, READINGS, CHASSIS, NODES, SLICES, PODS]
    assert fleet.operator.cache.nodes.keys() == set(fleet.nodes)
    assert [fleet.read(name) for name in fleet.nodes] == [(1, False)] * 3
    assert fleet.woken == []
    fleet.cluster.backup()(0)
    assert fleet.list_again() == [], "a backup that lacks nothing is no restore"


LABELLED = {"metadata": {"labels": {"a": "b"}}}
HAPPENS: dict[str, Callable[[Fleet], object]] = {
    NODES: lambda fleet: fleet.cluster.change(NODES, "node-2", LABELLED),
    REPORTS: lambda fleet: fleet.cluster.change(REPORTS, "node-2", {"spec": {"requestedAt": stamp(NOW)}}),
    PODS: lambda fleet: fleet.cluster.change(PODS, fleet.pods["node-2"].name, LABELLED),
    READINGS: lambda fleet: fleet.pods["node-2"].writes("another document"),
    CHASSIS: lambda fleet: fleet.cluster.change(CHASSIS, "node-2", {"status": {"number": 2}}),
}


@pytest.mark.parametrize("collection", HAPPENS)
def test_a_change_that_no_watch_reported_is_found(collection: str) -> None:
    fleet = Fleet()
    versions = [pod.resource_version for pod in fleet.watch_pods]
    HAPPENS[collection](fleet)
    name = fleet.pods["node-2"].name if collection == PODS else "node-2"
    assert fleet.list_again() == [f"{collection}/{name}"]
    assert fleet.woken == ([] if collection == PODS else ["node-2"])
    known = fleet.operator.cache
    news = {
        NODES: known.nodes["node-2"].labels.get("a") == "b",
        REPORTS: bool(known.reports["node-2"].requested_at),
        PODS: [pod.resource_version for pod in fleet.watch_pods] != versions,
        READINGS: fleet.read("node-2") == (2, True),
        CHASSIS: known.chassis["node-2"].number == 2,
    }
    assert [path for path, is_known in news.items() if is_known] == [collection]


@pytest.mark.parametrize("bumped", [0, 1000], ids=["versions fell", "versions were bumped"])
@pytest.mark.parametrize("collection", HAPPENS)
def test_a_restored_etcd_is_seen(collection: str, bumped: int) -> None:
    """A known change is lost; `etcdutl snapshot restore --bump-revision` hides that in the list's version."""
    fleet = Fleet()
    restore = fleet.cluster.backup()
    HAPPENS[collection](fleet)
    fleet.operator.deliver()
    restore(bumped)
    with pytest.raises(Restored):
        fleet.list_again()


@pytest.mark.parametrize("path", [POLICIES, REPORTS])
def test_what_was_made_since_the_backup_is_lost_with_it(path: str) -> None:
    """No list shows it, and it is newer than the list: that alone would keep it for ever."""
    fleet = Fleet()
    restore = fleet.cluster.backup()
    body = fleet.cluster.objects[path]["default" if path == POLICIES else "node-1"]
    fleet.cluster.create(path, body | {"metadata": {"name": "new", "generation": 1}})
    fleet.operator.deliver()
    restore(0)
    with pytest.raises(Restored):
        fleet.list_again()


@pytest.mark.parametrize(("what", "result"), [("node", phb()), ("report", titan())])
def test_a_conflict_with_what_was_restored_is_no_end_of_writes(what: str, result: Result) -> None:
    """It was tried 24 times, with what no read could correct."""
    fleet = Fleet()
    restore = fleet.cluster.backup()
    HAPPENS[NODES if what == "node" else REPORTS](fleet)
    fleet.operator.deliver()
    restore(50)
    fleet.pods["node-2"].reports(result)
    with pytest.raises(Restored, match=f"^{what} node-2"):
        fleet.operator.catch_up("node-2", granted=False)


def test_what_is_gone_without_a_watch_event_is_dropped() -> None:
    fleet = Fleet()
    fleet.cluster.remove(PODS, fleet.pods["node-1"].name)
    fleet.cluster.remove(READINGS, "node-2")
    fleet.cluster.remove(NODES, "node-3")
    fleet.list_again()
    assert [len(fleet.watchers(name)) for name in fleet.nodes] == [0, 1, 1]
    assert fleet.operator.cache.readings.keys() == {"node-1", "node-3"}
    assert fleet.operator.cache.suspects == {"node-3"}
    assert fleet.woken == ["node-3"]


def during_the_list(fleet: Fleet, path: str, happens: Callable[[], object], *, page: int = 1) -> None:
    """Take a full list; this happens once so many pages of a collection were taken, and events tell of it."""
    pages = iter(range(1, page + 1))

    def answered(_: str, asked: str) -> None:
        if asked == path and next(pages, 0) == page:
            happens()
            fleet.operator.deliver()

    fleet.operator.client.answered = answered
    fleet.list_again()


def test_a_watch_pod_that_comes_during_the_list_is_kept() -> None:
    fleet = Fleet()

    def roll_out() -> None:
        fleet.cluster.remove(PODS, fleet.pods["node-2"].name)
        came.append(WatchPod(fleet.cluster, "node-2"))
        came[0].writes("news")

    came: list[WatchPod] = []
    during_the_list(fleet, PODS, roll_out, page=2)  # pods of single runs come first
    assert fleet.operator.cache.readings["node-2"].parts["health"].pod_uid == came[0].uid
    assert fleet.watchers("node-2") == [came[0].uid]
    fleet.list_again()
    assert sum(not pod.gone for pod in fleet.watch_pods) == 3


def test_a_watch_pod_that_goes_during_the_list_does_not_come_back_with_its_page() -> None:
    fleet = Fleet()
    fleet.operator = SteppedOperator(fleet.cluster)
    old = fleet.pods["node-2"]
    during_the_list(fleet, PODS, lambda: fleet.cluster.remove(PODS, old.name), page=2)
    assert fleet.watchers("node-2") == []


@pytest.mark.parametrize("again", [False, True], ids=["gone", "written again"])
def test_a_reading_that_goes_during_the_list_does_not_come_back_with_its_page(again: bool) -> None:
    """Nobody would drop it until the next full list; one that its probe wrote since is kept."""
    fleet = Fleet()
    fleet.operator = SteppedOperator(fleet.cluster)

    def goes() -> None:
        fleet.cluster.remove(READINGS, "node-2")
        if again:
            fleet.pods["node-2"].writes("news")

    during_the_list(fleet, READINGS, goes)
    known = fleet.operator.cache.readings
    assert ("node-2" in known) is again
    assert {"node-1", "node-3"} <= known.keys()


def test_an_object_that_goes_during_the_list_is_left_out() -> None:
    fleet = Fleet()
    for name in ("node-1", "node-2"):
        fleet.cluster.change(NODES, name, LABELLED)
    during_the_list(fleet, NODES, lambda: fleet.cluster.remove(NODES, "node-1"))
    known = fleet.operator.cache.nodes
    assert ["a" in known[name].labels for name in ("node-1", "node-2")] == [False, True]


def test_readings_of_nodes_that_are_gone_and_of_their_watch_pods_are_forgotten() -> None:
    """A fleet that is scaled up and down by nodes of ever new names needs no more memory for that."""
    fleet = Fleet()
    for name in ("node-1", "node-2"):
        fleet.cluster.remove(NODES, name)
        fleet.cluster.remove(PODS, fleet.pods[name].name)
    fleet.operator.deliver()
    for name in ("node-1", "node-2"):
        fleet.operator.catch_up(name, granted=False)
    assert {pod.node for pod in fleet.watch_pods} == {"node-3"}
    assert fleet.cluster.objects[READINGS].keys() == fleet.operator.cache.readings.keys() == {"node-3"}


LEAVES = st.sampled_from(["", "a", "b", 7, 8, 2.5])
KEYS = st.sampled_from("xyz")


def documents(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Of these values, lists and dictionaries, at any depth."""

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3)

    return st.dictionaries(KEYS, st.recursive(leaves, deeper, max_leaves=8), max_size=3)


@given(old=documents(LEAVES), new=documents(LEAVES))
@tried(200)
def test_a_difference_leads_from_one_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, difference(old, new)) == new


def test_only_what_differs_is_in_it() -> None:
    old = {"a": {"b": 1, "c": 2}, "l": [1, 2], "same": {"x": 1}}
    assert difference(old, {"a": {"b": 1, "c": 3}, "l": [1], "same": {"x": 1}}) == {"a": {"c": 3}, "l": [1]}
    assert difference(old, {"a": {}, "l": [1, 2]}) == {"a": {"b": None, "c": None}, "same": None}


@given(value=documents(LEAVES | st.none()))
@tried(200)
def test_null_is_no_value_in_a_patched_document(value: dict[str, Any]) -> None:
    """A merge patch cannot say null: such keys are left out, at any depth."""

    def nulls(part: Any) -> bool:
        if isinstance(part, dict):
            return any(v is None or nulls(v) for v in part.values())
        return isinstance(part, list) and any(nulls(v) for v in part)

    clean = without_nulls(value)
    assert not nulls(clean)
    assert merged({}, difference({}, clean)) == clean


def test_a_node_that_returned_to_the_selection_is_fetched() -> None:
    """Its object may be known already, from when it was asked for by name."""
    cluster = FakeCluster()
    cluster.add_node(gpu="true")
    operator = SteppedOperator(cluster, selector="gpu=true")
    operator.list()
    operator.cache.outside_selector.add("node-1")
    assert listed(operator, selector="gpu=true") == ["node-1"]
    assert operator.cache.outside_selector == set()


def test_a_node_that_leaves_the_selection_during_the_list_is_no_news() -> None:
    cluster = FakeCluster()
    for name in ("node-1", "node-2"):
        cluster.add_node(name, gpu="true")
    operator = SteppedOperator(cluster, selector="gpu=true")
    operator.list()
    cluster.change(NODES, "node-1", LABELLED)

    def answered(verb: str, path: str) -> None:
        if path == NODES and "gpu" in cluster.objects[NODES]["node-1"]["metadata"]["labels"]:
            cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})

    operator.client.answered = answered
    assert listed(operator, selector="gpu=true") == []
    assert "gpu" in operator.cache.nodes["node-1"].labels
