"""What nodes of one make reach: values come and go with reports, the own one is left out, medians hold."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from msgspec.structs import replace

from nodegauge_operator.api.report import BandwidthStatus, ReportStatus
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.peers import MAX_VALUES, Peers
from support import make_node, make_report

pytestmark = pytest.mark.timeout(10)


class Scene:
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
    scene = Scene()
    scene.measured("a", 470)
    scene.measured("b", 465)
    scene.measured("c", 40, make="pcie")
    scene.measured("d", None)
    assert list(scene.peers.of("h100", but="a")) == [465]
    assert list(scene.peers.of("h100", but="new")) == [465, 470]
    assert list(scene.peers.of("pcie", but="c")) == []
    assert list(scene.peers.of("", but="d")) == []


def test_a_newer_report_replaces_and_a_deleted_one_goes() -> None:
    """Also where the make itself is another one, and where the node goes."""
    scene = Scene()
    for name, value in (("a", 470), ("b", 465), ("c", 460)):
        scene.measured(name, value)
    assert list(scene.peers.of("h100", but="a")) == [460, 465]
    scene.measured("b", 100)
    assert list(scene.peers.of("h100", but="a")) == [100, 460]
    scene.measured("b", 100, make="pcie")
    assert list(scene.peers.of("h100", but="a")) == [460]
    scene.cache.drop_report("c", scene.cache.reports["c"].uid)
    assert list(scene.peers.of("h100", but="a")) == []
    scene.cache.drop_node("b")
    assert list(scene.peers.of("pcie", but="a")) == []


def test_the_machine_before_under_a_node_s_name_is_no_peer() -> None:
    """Its report is of another node, and goes soon."""
    scene = Scene()
    scene.measured("a", 470)
    scene.cache.put_node(make_node("a", uid="another", version=99))
    assert list(scene.peers.of("h100", but="b")) == []


def test_reports_that_were_there_first_count() -> None:
    """An operator that starts finds them in its first list."""
    scene = Scene()
    scene.measured("a", 470)
    assert list(Peers(scene.cache).of("h100", but="b")) == [470]


@pytest.mark.parametrize(
    "count", [1, 2, 3, MAX_VALUES - 1, MAX_VALUES, MAX_VALUES + 1, MAX_VALUES + 2, 301, 500]
)
def test_the_median_is_that_of_all_others(count: int) -> None:
    """However many there are, and wherever the own value lies, few values are handed out."""
    scene, random = Scene(), Random(count)
    values = {f"n{n}": random.randrange(300, 500) for n in range(count)}
    for name, value in values.items():
        scene.measured(name, value)
    for but in ("nobody", "n0", *random.sample(sorted(values), min(count, 20))):
        others = [value for name, value in values.items() if name != but]
        found = scene.peers.of("h100", but=but)
        assert len(found) <= MAX_VALUES
        assert not others or median(found) == median(others)
