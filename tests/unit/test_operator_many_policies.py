"""Thousands of policies cost what changes, not policies times nodes."""

from __future__ import annotations

import pytest

from nodegauge_operator.api.selector import Selector
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.selecting import Selecting
from support.objects import make_node, make_policy

POLICIES, NODES = 400, 50


class Counted:
    """Policies of which every eighth selects a node, and how often a selector was compared with a node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared = 0
        self.cache = Cache()
        self.version = 10
        for n in range(NODES):
            self.put(f"node-{n}", f"pool-{n}")
        for n in range(POLICIES):
            self.cache.policies[f"pool-{n}"] = make_policy(f"pool-{n}").selecting(pool=f"pool-{n}")
        self.cache.policies_changed()
        self.selecting = Selecting(self.cache)
        matches = Selector.matches

        def counting(selector: Selector, labels: dict[str, str]) -> bool:
            self.compared += 1
            return matches(selector, labels)

        monkeypatch.setattr(Selector, "matches", counting)

    def put(self, name: str, pool: str) -> None:
        """A node registers or is relabelled."""
        self.version += 1
        self.cache.put_node(make_node(name, version=self.version).labelled(pool=pool))

    def selecting_any(self) -> set[str]:
        """Policies that select a node; counts the comparisons of this question alone."""
        self.compared = 0
        return {name for name, policy in self.cache.policies.items() if self.selecting.has_node(policy)}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Asked once."""
    counted = Counted(monkeypatch)
    assert counted.selecting_any() == {f"pool-{n}" for n in range(NODES)}
    return counted


def test_nothing_that_changed_is_nothing_to_compare(counted: Counted) -> None:
    """It was every policy with every node, each second: 17,500 comparisons here."""
    assert counted.selecting_any() == {f"pool-{n}" for n in range(NODES)}
    assert counted.compared == 0


def test_one_node_that_changed_is_compared_once_with_each_idle_policy(counted: Counted) -> None:
    """A policy that selects another node is not asked again."""
    counted.put("node-new", "pool-399")
    assert "pool-399" in counted.selecting_any()
    assert counted.compared == POLICIES - NODES


def test_a_node_that_leaves_its_policy_makes_only_that_one_look_everywhere(counted: Counted) -> None:
    """Relabelled or deleted."""
    counted.put("node-0", "none")
    assert "pool-0" not in counted.selecting_any()
    assert counted.compared == POLICIES - NODES + NODES
    counted.cache.drop_node("node-1")
    assert "pool-1" not in counted.selecting_any()


def test_a_changed_policy_is_looked_at_again(counted: Counted) -> None:
    """And every other one with it: which policies there are has changed."""
    counted.cache.policies["pool-0"] = make_policy("pool-0").selecting(pool="pool-900")
    counted.cache.policies_changed()
    assert "pool-0" not in counted.selecting_any()
    counted.put("node-0", "pool-900")
    assert "pool-0" in counted.selecting_any()
