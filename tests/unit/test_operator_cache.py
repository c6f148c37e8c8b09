"""The cache: newer wins, late events undo nothing, what is gone is certainly gone; and what is counted."""

from random import Random
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_judge.peers import MAX_VALUES
from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.policy import Limits
from nodegauge_operator.api.report import ClockStatus, Outcome, ReportStatus
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.model import ConditionView, NodeView
from nodegauge_operator.core.override import Annotations
from nodegauge_operator.core.pod_outcome import ending
from nodegauge_operator.core.probes.registry import EVERY
from nodegauge_operator.core.reading_view import reading_view
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.peer_groups import Peers
from nodegauge_operator.reconcile.policies_with_nodes import PoliciesWithNodes
from support.api_server import POLICIES, Body
from support.cluster import FakeCluster
from support.objects import NOW, make_node, make_pod, make_policy, make_report
from support.operator import SteppedOperator


@pytest.fixture
def cache() -> Cache:
    return Cache()


CHANGES = {
    "uid": "other",
    "labels": {"a": "b"},
    "managed_labels": frozenset({"x"}),
    "created_at": NOW,
    "ready": False,
    "ready_since": NOW,
    "deleting": True,
    "boot_id": "boot-2",
    "gpu_capacity": "8",
    "gpu_allocatable": "7",
    "cpu_allocatable": "96",
    "memory_allocatable": "64Gi",
    "unschedulable": True,
    "condition": ConditionView(status="True", reason="", message=""),
    "override": Annotations(kind="leave-alone"),
}
"""Another value for each field of a node, but for the others."""
OTHERS = {"name", "resource_version", "taints", "devices"}


@pytest.mark.parametrize("field", sorted({*NodeView.__struct_fields__} - OTHERS))
def test_what_decisions_look_at_wakes(cache: Cache, field: str) -> None:
    """A field that is new needs its line above."""
    cache.put_node(make_node(version=10))
    assert cache.put_node(replace(make_node(version=11), **{field: CHANGES[field]}))


@pytest.mark.parametrize(
    ("taints", "wakes"),
    [
        *(((key,), True) for key in (*names.NODE_TAINTS, *names.TAINTS_OF_NODES_BEING_REMOVED)),
        *(((), False), (("node.kubernetes.io/unschedulable",), False)),
    ],
)
def test_a_taint_of_ours_or_of_a_removal_wakes(cache: Cache, taints: tuple[str, ...], wakes: bool) -> None:
    """A heartbeat and a foreign taint do not, and are kept."""
    cache.put_node(make_node(version=10))
    seen = make_node(version=11).tainted(*taints)
    assert cache.put_node(seen) is wakes
    assert cache.nodes["node-1"] == seen


def test_a_gone_pod_keeps_its_last_words(cache: Cache) -> None:
    last = make_pod(version=10).with_result(made.titan())
    cache.put_pod(last)
    assert cache.put_pod(last.vanished())
    assert not cache.put_pod(last)
    (kept,) = cache.pods_of("node-1")
    assert kept.gone
    assert kept.terminated is not None


def test_dropping_is_for_this_very_object(cache: Cache) -> None:
    cache.put_pod(make_pod(uid="b"))
    cache.drop_pod(make_pod(uid="a"))
    assert cache.pods_of("node-1")
    assert not cache.knows_pod(make_pod(uid="a"))
    cache.drop_pod(make_pod(uid="b"))
    assert cache.known_names() == set()
    cache.put_report(replace(make_report(), uid="b"))
    assert not cache.drop_report("node-1", "a")
    assert cache.drop_report("node-1", "b")


def test_after_a_full_list_what_it_lacks_is_gone_unless_it_is_newer(cache: Cache) -> None:
    for node in (make_node("old"), make_node("kept")):
        cache.put_node(node)
        cache.put_report(make_report(node))
        cache.put_pod(make_pod(node))
    new = make_node("new")
    cache.put_report(replace(make_report(new), resource_version="99"))
    cache.put_pod(replace(make_pod(new), resource_version="99"))
    cache.put_pod(make_pod(make_node("dead")).with_result(made.titan()).vanished())
    cache.drop_unlisted(nodes={"kept"}, reports={"kept"}, pods={make_pod(make_node("kept")).uid}, since=50)
    assert cache.nodes.keys() == {"old", "kept"}
    assert cache.suspects >= {"old"}
    assert cache.reports.keys() == {"kept", "new"}
    assert {n for n in ("old", "kept", "new", "dead") if cache.pods_of(n)} == {"kept", "new", "dead"}


def body(version: int, *, generation: int = 1, **spec: Any) -> Body:
    metadata = {"name": "p", "uid": "u", "generation": generation, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeSelector": {}} | spec}


def test_a_late_event_of_a_policy_undoes_nothing(cache: Cache) -> None:
    cache.put_policy(body(10, priority=3))
    assert not cache.put_policy(body(9, priority=1))
    assert cache.policies["p"].spec.priority == 3
    assert not cache.drop_policy("p", version="9")
    assert cache.policies.keys() == {"p"}
    assert cache.drop_policy("p", version="11")
    assert cache.policies == {}


def test_a_policy_made_while_the_list_was_under_way_stays() -> None:
    """helm makes the policy and the operator at the same time: no policy would mean no labels for 10 min."""
    cluster = FakeCluster()
    cluster.add_node()
    operator = SteppedOperator(cluster)
    made_late = iter([False, True])  # at the second answer: the first only asks for the revision

    def make_it(verb: str, path: str) -> None:
        if path == POLICIES and not cluster.objects[POLICIES] and next(made_late, False):
            cluster.add_policy()
            operator.deliver()

    operator.client.answered = make_it
    operator.list()
    assert operator.cache.policies
    cluster.remove(POLICIES, "default")
    operator.inbox.clear()
    operator.list()
    assert operator.cache.policies == {}


def test_policies_cost_what_changes(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not policies times nodes, each second: who changed is compared with idle policies alone."""
    for n in range(10):
        cache.put_node(make_node(f"node-{n}").labelled(pool=f"pool-{n}"))
    cache.policies = {f"pool-{n}": make_policy(f"pool-{n}").selecting(pool=f"pool-{n}") for n in range(80)}
    cache.policies_changed()
    selecting, compared, matches = PoliciesWithNodes(cache), [0], Selector.matches

    def counting(selector: Selector, labels: dict[str, str]) -> bool:
        compared[0] += 1
        return matches(selector, labels)

    def asked() -> tuple[set[str], int]:
        compared[0] = 0
        return {name for name, policy in cache.policies.items() if selecting.has_node(policy)}, compared[0]

    monkeypatch.setattr(Selector, "matches", counting)
    first, _ = asked()
    assert first == {f"pool-{n}" for n in range(10)}
    assert asked() == (first, 0)
    cache.put_node(make_node("node-0", version=20).labelled(pool="pool-79"))
    after, comparisons = asked()
    assert after == first - {"pool-0"} | {"pool-79"}
    assert comparisons <= 80 - 10 + 10
    cache.drop_node("node-1")
    cache.policies["pool-2"] = make_policy("pool-2").selecting(pool="pool-900")
    cache.policies_changed()
    assert asked()[0] == after - {"pool-1", "pool-2"}


class PeerGroup:
    def __init__(self) -> None:
        self.cache = Cache()
        self.peers, self.clocks = (Peers(self.cache, EVERY[kind].peer_value) for kind in ("nccl", "health"))
        self.version = 10

    def measured(self, name: str, value: int | None, *, make: str = "h100", mhz: int = 0) -> None:
        self.version += 1
        node = make_node(name)
        self.cache.put_node(node)
        bandwidth = BandwidthStatus(all_reduce=value, fingerprint=make)
        clock = ClockStatus(sm_mhz=mhz, fingerprint=f"{make} clock" if mhz else "")
        status = ReportStatus(bandwidth=bandwidth, clock=clock)
        self.cache.put_report(replace(make_report(node, version=self.version), status=status))


def test_the_peers_of_a_node_are_the_others_of_its_make() -> None:
    group = PeerGroup()
    for name, value, mhz in (("a", 470, 1980), ("b", 465, 1965), ("c", 460, 0)):
        group.measured(name, value, mhz=mhz)
    group.measured("slow", 40, make="pcie", mhz=2520)
    group.measured("unread", None)
    assert list(group.peers.other_values("h100", but="a")) == [460, 465]
    assert list(group.peers.other_values("h100", but="new")) == [460, 465, 470]
    assert list(group.peers.other_values("pcie", but="slow")) == []
    assert list(group.peers.other_values("", but="unread")) == []
    assert list(group.clocks.other_values("h100 clock", but="a")) == [1965]
    assert list(group.clocks.other_values("", but="c")) == []
    group.measured("b", 100)
    assert list(group.peers.other_values("h100", but="a")) == [100, 460]
    group.measured("b", 100, make="pcie")
    assert list(group.peers.other_values("h100", but="a")) == [460]
    assert list(group.peers.other_values("pcie", but="slow")) == [100]
    group.cache.drop_report("c", group.cache.reports["c"].uid)
    assert list(group.peers.other_values("h100", but="a")) == []
    group.cache.drop_node("b")
    assert list(group.peers.other_values("pcie", but="slow")) == []


@pytest.mark.parametrize("count", [1, 2, 3, *range(MAX_VALUES - 1, MAX_VALUES + 3), 301, 500])
def test_the_median_is_that_of_all_others(count: int) -> None:
    group, random = PeerGroup(), Random(count)
    values = {f"n{n}": random.randrange(300, 500) for n in range(count)}
    for name, value in values.items():
        group.measured(name, value)
    for but in ("nobody", "n0", *random.sample(sorted(values), min(count, 20))):
        others = [value for name, value in values.items() if name != but]
        returned = group.peers.other_values("h100", but=but)
        assert len(returned) <= MAX_VALUES
        assert not others or median(returned) == median(others)


@pytest.mark.parametrize("uid", ["now", "before"])
@pytest.mark.parametrize("version", [9, 10])
def test_a_late_event_undoes_nothing(cache: Cache, version: int, uid: str) -> None:
    """Revisions are comparable over all objects of a kind, also with those of the machine before."""
    cache.put_node(make_node(uid="now", version=10).labelled(a="new"))
    assert not cache.put_node(make_node(uid=uid, version=version).labelled(a="old"))
    assert (cache.nodes["node-1"].uid, cache.nodes["node-1"].labels) == ("now", {"a": "new"})
    assert cache.put_node(make_node(version=11).labelled(a="newest"))
    cache.put_report(replace(make_report(version=10).asked("new"), uid="now"))
    assert not cache.put_report(replace(make_report(version=version).asked("old"), uid=uid))
    assert (cache.reports["node-1"].uid, cache.reports["node-1"].requested_at) == ("now", "new")
    cache.put_pod(make_pod(uid="now", version=10).with_result(made.titan()))
    assert not cache.put_pod(make_pod(uid=uid, version=9))
    assert uid == "now" or not cache.put_pod(make_pod(uid=uid, version=9).vanished())
    assert [(pod.uid, pod.finished) for pod in cache.pods_of("node-1")] == [("now", True)]


def test_pods_come_oldest_run_first(cache: Cache) -> None:
    for number in (10, 9, 2):
        cache.put_pod(make_pod(number=number))
    assert [p.number for p in cache.pods_of("node-1")] == [2, 9, 10]
    assert cache.nodes_with_pods(names.PROBE_HEALTH) == {"node-1"}
    assert cache.nodes_with_pods(names.PROBE_NCCL, names.PROBE_PULL) == set()


def test_a_pod_that_never_ran_still_says_what_it_waited_for(cache: Cache) -> None:
    """A kubelet that ends a pod while it pulls the image forgets why; the store has seen it."""
    ended = make_pod(version=11).finished_with("", code=137, reason="ContainerStatusUnknown")
    cache.put_pod(make_pod().pending("ErrImagePull", "no such image", placed=True))
    cache.put_pod(ended.failed("DeadlineExceeded"))
    [kept] = cache.pods_of("node-1")
    end = ending(kept, limits=Limits(), deadline=60.0, now=NOW)
    assert (end.outcome, end.reason) == (Outcome.UNKNOWN, "ErrImagePull")
    assert "no such image" in end.message


def reading_body(**parts: Any) -> Body:
    """A NodeReading; a part is what its probe wrote, with these members replaced."""
    part = {"sequence": 1, "at": stamp(NOW), "pod": "p", "podUID": "u", "nodeUID": "n", "reading": "{}"}
    metadata = {"name": "node-1", "uid": "r", "resourceVersion": "5"}
    return {"metadata": metadata} | {name: part | changed for name, changed in parts.items()}


@pytest.mark.parametrize("part", [{"sequence": "one"}, {"reading": None}, {"podUID": 7}])
def test_a_malformed_part_is_left_out_and_hides_no_other(cache: Cache, part: Body, caplog: Any) -> None:
    """The CRD lets none through; an older one may."""
    assert cache.put_reading(reading_view(reading_body(health={}, nccl=part)))
    assert cache.readings["node-1"].parts.keys() == {"health"}
    assert "left out: nccl: " in caplog.text


@pytest.mark.parametrize(
    ("at", "arrived", "known_at"),
    [
        (NOW - 60, 0.0, NOW - 60),
        (NOW + 60, 0.0, NOW),
        (NOW - 60, NOW - 5, NOW - 5),
        (NOW + 60, NOW - 5, NOW - 5),
    ],
)
def test_a_reading_is_dated_as_it_came(at: float, arrived: float, known_at: float) -> None:
    view = reading_view(reading_body(health={"at": stamp(at)}), arrived=arrived)
    assert view.parts["health"].known_at(NOW) == known_at
