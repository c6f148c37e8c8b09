"""A policy that cannot be read keeps its nodes as they are: they never fall to a policy of lower priority.

A rollback meets policies of a newer version.  The process that had read the last good version is gone, so
nothing but the policy itself and the reports say whose the nodes are.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.api_server import NODES, POLICIES, REPORTS, Body
from support.cluster import FakeCluster
from support.objects import INTERVAL
from support.operator import SteppedOperator

UNREADABLE: list[Body] = [
    {"mode": "Quarantine"},
    {"taints": {"effect": "Evict"}},
    {"budget": {"gatedNodes": "a few"}},
    {"probes": {"nccl": {"engine": "rccl"}}},
]
NEW_SELECTORS: list[Any] = [
    "all",
    {"matchLabels": ["tier=gold"]},
    {"matchExpressions": [{"key": "tier", "operator": "Matches", "values": ["gold.*"]}]},
]


class Fleet:
    """Node-1 follows `top`, node-2 follows `low`, which selects both nodes and only observes."""

    def __init__(self, *, priority: int = 5) -> None:
        self.cluster = FakeCluster()
        self.cluster.add_node("node-1", tier="gold")
        self.cluster.add_node("node-2", tier="tin")
        self.cluster.add_policy("low", mode="Observe")
        selector = {"matchLabels": {"tier": "gold"}}
        self.cluster.add_policy("top", priority=priority, nodeSelector=selector)
        self.operator = SteppedOperator(self.cluster)
        self.operator.list()
        self.look()

    def look(self) -> None:
        """Both nodes are reconciled, and every pod ends."""
        for _ in range(2):
            for name in ("node-1", "node-2"):
                self.operator.catch_up(name)
            self.cluster.kubelets()
        self.operator.deliver()

    def edit(self, **spec: Any) -> None:
        """The API server holds this in the policy `top`, which this version would not write."""
        body = self.cluster.objects[POLICIES]["top"]
        self.cluster._store(POLICIES, body | {"spec": body["spec"] | spec}, "MODIFIED")

    def labels(self, name: str = "node-1") -> dict[str, str]:
        """The node's labels."""
        labels: dict[str, str] = self.cluster.objects[NODES][name]["metadata"]["labels"]
        return labels

    def policy_of(self, name: str) -> str:
        """The policy in the node's report."""
        return str(self.cluster.objects[REPORTS][name]["status"]["policy"])

    def rolled_back(self, **spec: Any) -> dict[str, str]:
        """The labels of node-1 before `top` became unreadable, after which the operator restarted and an
        interval passed."""
        before = self.labels()
        self.edit(**spec)
        self.operator.restart()
        self.cluster.pass_time(INTERVAL + 1)
        self.look()
        return before


@pytest.mark.parametrize("spec", UNREADABLE)
def test_its_nodes_keep_what_they_carry(spec: Body) -> None:
    """They got the observing policy instead, which took every label off them; others go on."""
    fleet = Fleet()
    assert "interconnect" in fleet.labels()
    before = fleet.rolled_back(**spec)
    assert fleet.labels() == before
    assert (fleet.policy_of("node-1"), fleet.policy_of("node-2")) == ("top", "low")
    numbers = [n for node, n, _ in fleet.cluster.judged if node == "node-2"]
    assert numbers == [1, 2], "a node that it does not select is read as before"


@pytest.mark.parametrize("selector", NEW_SELECTORS)
def test_of_an_unreadable_selector_the_reports_say_whose_the_nodes_are(selector: Any) -> None:
    """An unknown operator of an expression matched no node, as if the policy had none."""
    fleet = Fleet()
    before = fleet.rolled_back(nodeSelector=selector)
    assert fleet.labels() == before
    assert fleet.policy_of("node-1") == "top"
    assert [n for node, n, _ in fleet.cluster.judged if node == "node-2"] == [1, 2]


def test_without_a_readable_priority_it_counts_as_the_highest() -> None:
    """Nobody knows how high."""
    fleet = Fleet()
    before = fleet.rolled_back(priority="high")
    assert fleet.labels() == before


def test_of_lower_priority_it_holds_nobody_up() -> None:
    """Its nodes follow a policy that can be read, as they did before."""
    fleet = Fleet(priority=-5)
    assert fleet.policy_of("node-1") == "low"
    fleet.rolled_back(mode="Quarantine")
    assert [n for node, n, _ in fleet.cluster.judged if node == "node-1"] == [1, 2]


def test_a_new_node_that_it_selects_is_left_alone() -> None:
    """No lower policy may be the first to write there."""
    fleet = Fleet()
    fleet.rolled_back(mode="Quarantine")
    fleet.cluster.add_node("node-3", tier="gold")
    fleet.operator.catch_up("node-3")
    assert "node-3" not in fleet.cluster.objects[REPORTS]


@pytest.mark.parametrize("mended", [True, False])
def test_once_it_can_be_read_or_is_gone_its_nodes_go_on(mended: bool) -> None:
    """And each is woken for it, by the watch alone."""
    fleet = Fleet()
    before = fleet.rolled_back(mode="Quarantine")
    epoch = fleet.operator.cache.epoch
    if mended:
        fleet.edit(mode="Enforce")
    else:
        fleet.cluster.remove(POLICIES, "top")
    fleet.operator.deliver()
    assert fleet.operator.policies_changed == [True]
    assert fleet.operator.cache.epoch > epoch
    fleet.look()
    assert fleet.policy_of("node-1") == ("top" if mended else "low")
    assert (fleet.labels().keys() == before.keys()) is mended


def test_an_unreadable_version_of_a_policy_in_force_changes_nothing() -> None:
    """The last good version stays in force while the process lives, also for nodes that come later."""
    fleet = Fleet()
    fleet.edit(mode="Quarantine", nodeSelector={"matchLabels": {"tier": "tin"}})
    fleet.operator.deliver()
    assert fleet.operator.policies_changed == [False]
    fleet.cluster.pass_time(INTERVAL + 1)
    fleet.look()
    assert [n for node, n, _ in fleet.cluster.judged if node == "node-1"] == [1, 2]
    assert (fleet.policy_of("node-1"), fleet.policy_of("node-2")) == ("top", "low")


def test_an_unreadable_policy_that_is_edited_frees_the_nodes_that_it_no_longer_selects() -> None:
    """Still unreadable, but its selector can be read."""
    fleet = Fleet()
    fleet.rolled_back(mode="Quarantine")
    fleet.edit(nodeSelector={"matchLabels": {"tier": "platinum"}})
    fleet.operator.deliver()
    fleet.look()
    assert fleet.policy_of("node-1") == "low"
