"""What nodes of one make reach: values come and go with reports, the own one is left out, medians hold."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from msgspec.structs import replace

from nodegauge_operator.api.report import BandwidthStatus, ClockStatus, ReportStatus
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.peer_groups import MAX_VALUES, Peers, clock_of
from support.objects import make_node, make_report


class PeerGroup:
    """Reports that change."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.peers = Peers(self.cache)
        self.version = 10

    def measured(self, name: str, value: int | None, *, make: str = "h100") -> None:
        """A node has this in its report now."""
        self.version += 1
        node = make_node(name)
        self.cache.put_node(node)
        bandwidth = BandwidthStatus(all_reduce=value, fingerprint=make)
        report = replace(make_report(node, version=self.version), status=ReportStatus(bandwidth=bandwidth))
        self.cache.put_report(report)


def test_a_node_is_not_its_own_peer() -> None:
    """Nor is one of another make, or one of which all_reduce was not measured."""
    group = PeerGroup()
    group.measured("a", 470)
    group.measured("b", 465)
    group.measured("c", 40, make="pcie")
    group.measured("d", None)
    assert list(group.peers.of("h100", but="a")) == [465]
    assert list(group.peers.of("h100", but="new")) == [465, 470]
    assert list(group.peers.of("pcie", but="c")) == []
    assert list(group.peers.of("", but="d")) == []


def test_clocks_have_peer_groups_of_their_own() -> None:
    """By model and settings, whatever links the nodes have; a node that never worked has no clock."""
    group = PeerGroup()
    peers = Peers(group.cache, clock_of)
    clocks = {"a": (1980, "H100|1980"), "b": (1965, "H100|1980"), "c": (0, ""), "d": (2520, "L40S|2520")}
    for name, (mhz, make) in clocks.items():
        node = make_node(name)
        group.cache.put_node(node)
        clock = ClockStatus(sm_mhz=mhz, fingerprint=make)
        group.cache.put_report(replace(make_report(node), status=ReportStatus(clock=clock)))
    assert list(peers.of("H100|1980", but="a")) == [1965]
    assert list(peers.of("", but="c")) == []


def test_a_newer_report_replaces_and_a_deleted_one_goes() -> None:
    """Also where the make itself is another one, and where the node goes."""
    group = PeerGroup()
    for name, value in (("a", 470), ("b", 465), ("c", 460)):
        group.measured(name, value)
    assert list(group.peers.of("h100", but="a")) == [460, 465]
    group.measured("b", 100)
    assert list(group.peers.of("h100", but="a")) == [100, 460]
    group.measured("b", 100, make="pcie")
    assert list(group.peers.of("h100", but="a")) == [460]
    group.cache.drop_report("c", group.cache.reports["c"].uid)
    assert list(group.peers.of("h100", but="a")) == []
    group.cache.drop_node("b")
    assert list(group.peers.of("pcie", but="a")) == []


def test_the_machine_before_under_a_node_s_name_is_no_peer() -> None:
    """Its report is of another node, and goes soon."""
    group = PeerGroup()
    group.measured("a", 470)
    group.cache.put_node(make_node("a", uid="another", version=99))
    assert list(group.peers.of("h100", but="b")) == []


def test_reports_that_were_there_first_count() -> None:
    """An operator that starts finds them in its first list."""
    group = PeerGroup()
    group.measured("a", 470)
    assert list(Peers(group.cache).of("h100", but="b")) == [470]


@pytest.mark.parametrize(
    "count", [1, 2, 3, MAX_VALUES - 1, MAX_VALUES, MAX_VALUES + 1, MAX_VALUES + 2, 301, 500]
)
def test_the_median_is_that_of_all_others(count: int) -> None:
    """However many there are, and wherever the own value lies, few values are handed out."""
    group, random = PeerGroup(), Random(count)
    values = {f"n{n}": random.randrange(300, 500) for n in range(count)}
    for name, value in values.items():
        group.measured(name, value)
    for but in ("nobody", "n0", *random.sample(sorted(values), min(count, 20))):
        others = [value for name, value in values.items() if name != but]
        returned = group.peers.of("h100", but=but)
        assert len(returned) <= MAX_VALUES
        assert not others or median(returned) == median(others)
