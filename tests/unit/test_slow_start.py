"""Runs that hold GPUs start on one node in a new image, and grow while they end well."""

import pytest
from msgspec.structs import replace

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, ReportStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.probes.kind import Wait
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.concurrency import Concurrency
from nodegauge_operator.reconcile.node_counts import NodeCounters
from support.objects import NOW, make_node, make_policy, make_report

NCCL, LOAD, PULL = names.PROBE_NCCL, names.PROBE_LOAD, names.PROBE_PULL
OLD, NEW = "nccl:1", "nccl:2"


class Fleet:
    """Forty nodes under two policies; each waits for an NCCL run in the new image."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.nodes = [f"node-{n}" for n in range(40)]
        for n, name in enumerate(self.nodes):
            self.cache.put_node(make_node(name).bearing({"half": "ab"[n % 2]}))
        for half in "ab":
            spec = {"nodeSelector": {"matchLabels": {"half": half}}, "budget": {"concurrentNcclProbes": 20}}
            self.cache.policies[half] = make_policy(half).of(spec)
        self.cache.policies_changed()
        self.restart()

    def restart(self) -> None:
        limits = dict.fromkeys((names.PROBE_HEALTH, NCCL), 30)
        self.concurrency = Concurrency(self.cache, NodeCounters(self.cache), limits=limits)

    def wait(self, *nodes: str, probe: str = NCCL, image: str = NEW) -> None:
        """These nodes wait for such a run; all of them by default."""
        for name in nodes or self.nodes:
            wait = Wait(since=0.0, probe=probe, image=image) if probe != PULL else Wait(since=0.0)
            self.concurrency.wait(name, {"nccl": wait})

    def begin(self) -> list[str]:
        return self.concurrency.grant()

    def end(self, nodes: list[str], *, probe: str = NCCL, image: str = NEW, how: str = "well") -> None:
        verdict = Verdict.FAIL if how == "fail" else Verdict.PASS
        failing = stamp(NOW) if how == "unread" else ""
        last = ProbeStatus(
            name=probe,
            image=image,
            verdict=verdict,
            read_at=stamp(NOW),
            failing_since=failing,
            unread=how in ("unread", "skipped"),
        )
        for name in nodes:
            known = make_report(self.cache.nodes[name])
            self.cache.put_report(replace(known, status=ReportStatus(probes=[last])))
            self.concurrency.done(name)


def test_first_runs_double_while_they_end_well() -> None:
    fleet = Fleet()
    fleet.wait()
    waves = []
    for _ in range(5):
        begun = fleet.begin()
        assert fleet.begin() == []
        waves.append(len(begun))
        fleet.end(begun)
        left = [name for name in fleet.nodes if name not in fleet.cache.reports]
        fleet.restart()
        fleet.wait(*left)
    assert waves == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("how", ["fail", "unread"])
def test_runs_that_end_badly_hold_the_others_at_one_at_a_time(how: str) -> None:
    fleet = Fleet()
    fleet.wait()
    for _ in range(3):
        begun = fleet.begin()
        assert len(begun) == 1
        fleet.end(begun, how=how)
    sizes = []
    for _ in range(6):
        begun = fleet.begin()
        sizes.append(len(begun))
        fleet.end(begun)
    assert sizes == [1, 1, 1, 1, 2, 4]


def test_another_image_starts_slowly_and_the_one_in_use_does_not() -> None:
    fleet = Fleet()
    fleet.end(fleet.nodes[:30], image=OLD)
    fleet.wait(image=OLD)
    assert len(fleet.begin()) == 30
    fleet.restart()
    fleet.wait(image=NEW)
    assert len(fleet.begin()) == 1


def test_pulls_and_the_other_probe_of_the_pool_are_not_held_up() -> None:
    fleet = Fleet()
    fleet.end(fleet.nodes[:10], probe=LOAD, image=OLD)
    fleet.wait(*fleet.nodes[10:15])
    fleet.wait(*fleet.nodes[15:18], probe=LOAD, image=OLD)
    fleet.wait(*fleet.nodes[18:20], probe=PULL)
    begun = fleet.begin()
    assert len([name for name in begun if name in fleet.nodes[10:15]]) == 1
    assert set(begun) >= set(fleet.nodes[15:20])


def test_a_skipped_run_neither_grows_nor_stops_the_start() -> None:
    fleet = Fleet()
    fleet.end(fleet.nodes[:3])
    fleet.end(fleet.nodes[3:9], image=OLD, how="skipped")
    fleet.wait()
    assert len(fleet.begin()) == 4
