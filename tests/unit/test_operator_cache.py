"""The cache: newer wins, late events undo nothing, what is gone is gone only for certain."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.core.model import ConditionView, NodeView, Terminated
from nodegauge_operator.core.override import Annotations
from nodegauge_operator.core.pod_outcome import ending
from nodegauge_operator.kube.errors import Unavailable
from nodegauge_operator.reconcile.cache import Cache
from support.api_server import NODES, PODS, POLICIES, REPORTS, Body
from support.client import unavailable
from support.cluster import FakeCluster
from support.objects import NOW, make_node, make_pod, make_policy, make_report
from support.operator import SteppedOperator


@pytest.fixture
def cache() -> Cache:
    """An empty one."""
    return Cache()


@pytest.mark.parametrize("version", [9, 10])
def test_a_late_event_of_a_node_undoes_nothing(cache: Cache, version: int) -> None:
    """The answer of our own write is newer than the watch event that left before it."""
    cache.put_node(make_node(version=10).labelled(a="new"))
    assert not cache.put_node(make_node(version=version).labelled(a="old"))
    assert cache.nodes["node-1"].labels == {"a": "new"}
    assert cache.put_node(make_node(version=11).labelled(a="newest"))


def test_a_late_event_of_the_machine_before_does_not_replace_the_machine(cache: Cache) -> None:
    """Revisions are comparable over all objects of a kind: an older one is never the present."""
    cache.put_node(make_node(uid="now", version=10))
    assert not cache.put_node(make_node(uid="before", version=9))
    assert cache.nodes["node-1"].uid == "now"
    cache.put_report(replace(make_report(version=10), uid="now"))
    assert not cache.put_report(replace(make_report(version=9), uid="before"))
    assert cache.reports["node-1"].uid == "now"
    cache.put_pod(make_pod(uid="now", version=10))
    assert not cache.put_pod(make_pod(uid="before", version=9))
    assert not cache.put_pod(make_pod(uid="before", version=9).vanished())
    assert [p.uid for p in cache.pods_of("node-1")] == ["now"]


def test_a_heartbeat_changes_the_revision_and_wakes_nobody(cache: Cache) -> None:
    """Only what decisions look at counts; the revision is still kept, for the next patch."""
    cache.put_node(make_node(version=10))
    assert not cache.put_node(make_node(version=11))
    assert cache.nodes["node-1"].resource_version == "11"


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
    "unschedulable": True,
    "condition": ConditionView(status="True", reason="", message=""),
    "override": Annotations(kind="leave-alone"),
}
"""Another value for each field of a node, but for its name, its revision and its taints."""


def test_every_field_of_a_node_has_another_value_below() -> None:
    """A field that is new needs its line, or nobody would notice that its changes wake nobody."""
    assert CHANGES.keys() == set(NodeView.__struct_fields__) - {"name", "resource_version", "taints"}


@pytest.mark.parametrize("field", CHANGES)
def test_what_decisions_look_at_wakes(cache: Cache, field: str) -> None:
    """Every field of a node but its revision: also what a person wrote into its annotations."""
    cache.put_node(make_node(version=10))
    assert cache.put_node(replace(make_node(version=11), **{field: CHANGES[field]}))


@pytest.mark.parametrize("key", [*names.NODE_TAINTS, *names.TAINTS_OF_NODES_BEING_REMOVED])
def test_a_taint_of_ours_or_of_a_removal_wakes(cache: Cache, key: str) -> None:
    """The operator sets the former, and plans nothing on a node with one of the latter."""
    cache.put_node(make_node(version=10))
    assert cache.put_node(make_node(version=11).tainted(key))


def test_a_foreign_taint_wakes_nobody_and_is_kept(cache: Cache) -> None:
    """What else is on the list decides nothing, but the next patch has to carry it."""
    cache.put_node(make_node(version=10))
    tainted = make_node(version=11).tainted("node.kubernetes.io/unschedulable")
    assert not cache.put_node(tainted)
    assert cache.nodes["node-1"].taints == tainted.taints


def test_who_listens_hears_of_each_change_and_nobody_takes_it_from_another(cache: Cache) -> None:
    """Each counter empties a set of its own."""
    first, second = cache.subscribe(), cache.subscribe()
    cache.put_node(make_node("node-2"))
    first.clear()
    cache.put_report(make_report(version=99))
    assert (first, second) == ({"node-1"}, {"node-1", "node-2"})


def test_a_late_event_of_a_report_or_pod_undoes_nothing(cache: Cache) -> None:
    """Neither the judged status nor the finished run is taken back."""
    cache.put_report(make_report(version=10).asked("new"))
    assert not cache.put_report(make_report(version=10).asked("old"))
    assert cache.reports["node-1"].requested_at == "new"
    cache.put_pod(make_pod(version=10).with_result(made.titan()))
    assert not cache.put_pod(make_pod(version=9))
    assert cache.pods_of("node-1")[0].finished


def test_a_gone_pod_keeps_its_last_words(cache: Cache) -> None:
    """A deletion is news at any revision, and nothing brings the pod back."""
    last = make_pod(version=10).with_result(made.titan())
    cache.put_pod(last)
    assert cache.put_pod(last.vanished())
    assert not cache.put_pod(last)
    (kept,) = cache.pods_of("node-1")
    assert kept.gone
    assert kept.terminated is not None


def test_dropping_is_for_this_very_object(cache: Cache) -> None:
    """Another pod or report of the same name stays."""
    cache.put_pod(make_pod(uid="b"))
    cache.drop_pod(make_pod(uid="a"))
    assert cache.pods_of("node-1")
    assert not cache.knows_pod(make_pod(uid="a"))
    cache.drop_pod(make_pod(uid="b"))
    assert cache.known_names() == set()
    cache.put_report(replace(make_report(), uid="b"))
    assert not cache.drop_report("node-1", "a")
    assert cache.drop_report("node-1", "b")


def test_pods_come_oldest_run_first(cache: Cache) -> None:
    """As numbers, not as texts."""
    for number in (10, 9, 2):
        cache.put_pod(make_pod(number=number))
    assert [p.number for p in cache.pods_of("node-1")] == [2, 9, 10]
    assert cache.nodes_with_pods(names.PROBE_HEALTH) == {"node-1"}
    assert cache.nodes_with_pods(names.PROBE_NCCL, names.PROBE_PULL) == set()


def test_the_policy_in_force_follows_labels_and_policies(cache: Cache) -> None:
    """What was remembered is forgotten when either changes."""
    gold = make_policy("gold").selecting(tier="gold").ranked(5)
    cache.policies = {"default": make_policy(), "gold": gold}
    cache.policies_changed()
    node = make_node(version=10)
    cache.put_node(node)
    assert cache.policy_of(node) is cache.policies["default"]
    node = replace(node, labels={"tier": "gold"}, resource_version="11")
    cache.put_node(node)
    assert cache.policy_of(node) is cache.policies["gold"]
    del cache.policies["gold"]
    cache.policies_changed()
    assert cache.policy_of(node) is cache.policies["default"]


def test_after_a_full_list_what_it_lacks_is_gone_unless_it_is_newer(cache: Cache) -> None:
    """Reports and pods are dropped; nodes only become suspects; a gone pod waits for its judgement."""
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
    """A policy as the API shows it."""
    metadata = {"name": "p", "uid": "u", "generation": generation, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeSelector": {}} | spec}


def test_a_bad_policy_leaves_the_last_good_one_in_force(cache: Cache) -> None:
    """And is remembered with the field that is wrong, until it is mended."""
    assert cache.put_policy(body(1, priority=3))
    assert not cache.put_policy(body(2, generation=2, priority="high"))
    assert cache.policies["p"].spec.priority == 3
    assert cache.policy_errors["p"].generation == 2
    assert "spec.priority" in cache.policy_errors["p"].message
    assert cache.put_policy(body(3, generation=3, priority=4))
    assert cache.policy_errors == {}


def test_the_same_policy_again_is_no_change(cache: Cache) -> None:
    """A written status must not wake every node."""
    assert cache.put_policy(body(1))
    assert not cache.put_policy(body(2) | {"status": {"nodes": {}}})
    assert cache.policy_status["p"] == {"nodes": {}}


def test_a_late_event_of_a_policy_undoes_nothing(cache: Cache) -> None:
    """Neither an older spec nor the deletion of an earlier policy of that name."""
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
    assert operator.cache.policies.keys() == {"default"}
    cluster.remove(POLICIES, "default")
    operator.inbox.clear()
    operator.list()
    assert operator.cache.policies == {}


def test_a_list_that_breaks_off_drops_nothing() -> None:
    """A timed-out LIST once removed every label of a large cluster: no data decides nothing."""
    cluster = FakeCluster()
    cluster.add_policy()
    for n in range(5):
        cluster.add_node(f"node-{n}")
    operator = SteppedOperator(cluster)
    operator.list()
    known = operator.cache.known_names()
    for broken in (POLICIES, REPORTS, PODS, NODES):
        operator.client.refuse = lambda verb, path, at=broken: unavailable() if path == at else None  # type: ignore[misc]
        with pytest.raises(Unavailable):
            operator.list()
        assert operator.cache.known_names() == known
        assert operator.cache.policies.keys() == {"default"}
        assert operator.cache.suspects == set()


def test_lists_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page counts: an object of the last one is not taken for deleted."""
    monkeypatch.setattr("nodegauge_operator.kube.client.PAGE", 3)
    cluster = FakeCluster()
    for n in range(10):
        cluster.add_node(f"node-{n}")
    operator = SteppedOperator(cluster)
    for _ in range(2):
        operator.list()
        assert len(operator.cache.nodes) == 10
        assert operator.cache.suspects == set()


def test_a_pod_that_never_ran_still_says_what_it_waited_for() -> None:
    """A kubelet that ends a pod while it pulls the image forgets why; the store has seen it."""
    waiting = replace(make_pod(), phase="Pending", scheduled=True, started_at=0.0, resource_version="5")
    waiting = replace(waiting, pending_reason="ErrImagePull", pending_message="no such image")
    ended = Terminated(exit_code=137, reason="ContainerStatusUnknown", message="", finished_at=0.0)
    failed = replace(
        waiting,
        phase="Failed",
        reason="DeadlineExceeded",
        pending_reason="",
        pending_message="",
        terminated=ended,
        resource_version="6",
    )
    cache = Cache()
    cache.put_pod(waiting)
    cache.put_pod(failed)
    [kept] = cache.pods_of(waiting.node)
    end = ending(kept, node=kept.node, limits=Limits(), deadline=60.0, now=NOW)
    assert (end.outcome, end.reason) == (Outcome.UNKNOWN, "ErrImagePull")
    assert "no such image" in end.message
