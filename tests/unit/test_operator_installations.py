"""One installation writes to a cluster, and only to nodes that are nobody's or its own."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.kube.errors import Forbidden, KubeError
from nodegauge_operator.kube.leases import LEASE, PATH
from nodegauge_operator.reconcile.installation import LIVE_SECONDS, RENEW_SECONDS
from support.api_server import NODES, READINGS, REPORTS
from support.cleaning import DirtyCluster
from support.client import unavailable
from support.objects import INTERVAL
from support.operator import SETTINGS, SteppedOperator, one_node
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

OTHER = "nodegauge/second"
SECOND = replace(SETTINGS, probe=replace(SETTINGS.probe, instance="second"))


STANDING_BY = "PATCH gpuvalidationpolicies/status"
"""The only thing that an installation writes without the Lease, once."""


def ready_of(operator: VirtualTimeOperator) -> tuple[str, str]:
    ready = operator.cluster.condition("Ready")
    return ready["status"], ready["reason"]


def second_on(first: VirtualTimeOperator) -> VirtualTimeOperator:
    """Another installation on the same cluster."""
    second = VirtualTimeOperator(first.loop, settings=SECOND, cluster=first.cluster)
    second.start()
    return second


@on_virtual_time
async def test_the_second_installation_waits_until_the_first_is_gone(first: VirtualTimeOperator) -> None:
    """46 changes of a label in 45 s: each deleted the other's reports. It says so, and takes over later."""
    await first.begin(3, after=120)
    second = second_on(first)
    await second.after(INTERVAL)
    assert second.client.log == [STANDING_BY]
    assert ready_of(first) == ("True", "Active"), "the one that writes is right, and has the last word"
    assert second.client.calls < 3 * INTERVAL / RENEW_SECONDS
    why = second.sweep.not_ready()
    assert "another installation (nodegauge/nodegauge) is live on this cluster" in why
    assert "uninstall one of the two" in why
    assert "nodegauge_standing_by 1.0" in second.metrics.render().decode()
    assert first.sweep.not_ready() == ""
    await first.stop()
    for name in [*first.cluster.objects[REPORTS]]:
        first.cluster.remove(REPORTS, name)  # as its clean-up does
    await second.after(2 * LIVE_SECONDS + INTERVAL)
    assert second.sweep.not_ready() == ""
    owners = {body["status"]["installation"] for body in first.cluster.objects[REPORTS].values()}
    assert owners == {OTHER}
    await second.stop()


@pytest.mark.parametrize("error", [unavailable(503), Forbidden("leases is forbidden", status=403)])
@on_virtual_time
async def test_an_installation_that_cannot_renew_stops_writing_until_it_can(
    operator: VirtualTimeOperator, error: KubeError
) -> None:
    await operator.begin(2, after=120)
    operator.client.refuse = lambda _, path: error if path.startswith(PATH) else None
    await operator.after(LIVE_SECONDS + RENEW_SECONDS)
    written = len(operator.client.log)
    assert "the Lease default/nodegauge cannot be renewed" in operator.sweep.not_ready()
    refused = isinstance(error, Forbidden)
    assert ready_of(operator) == (("False", "StandingBy") if refused else ("True", "Active"))
    assert operator.sample("nodegauge_obstacles", policy="default", kind="lease") == refused
    await operator.after(2 * INTERVAL)
    assert len(operator.client.log) == written
    assert operator.sweep.alive(), "a restart would not help"
    operator.client.refuse = lambda _verb, _path: None
    await operator.after(60)
    assert operator.sweep.not_ready() == ""
    assert len(operator.client.log) > written
    assert ready_of(operator) == ("True", "Active")


@on_virtual_time
async def test_an_installation_that_lost_the_lease_gives_way(first: VirtualTimeOperator) -> None:
    await first.begin(1, after=60)
    first.client.refuse = lambda _verb, _path: unavailable()
    second = second_on(first)
    await second.after(3 * LIVE_SECONDS)
    assert second.sweep.not_ready() == ""
    first.client.refuse = lambda _verb, _path: None
    written = len(first.client.log)
    await first.after(INTERVAL)
    assert f"another installation ({OTHER}) is live" in first.sweep.not_ready()
    assert first.client.log[written:] == [STANDING_BY]
    await second.stop()


def owned(operator: SteppedOperator, installation: str, **other: Any) -> None:
    operator.write_over(REPORTS, "node-1", status={"installation": installation} | other)


def written(operator: SteppedOperator) -> list[str]:
    """Everything that is written during two intervals in which runs would be due."""
    operator.client.log.clear()
    for _ in range(2):
        operator.cluster.pass_time(INTERVAL + 1)
        operator.catch_up()
        operator.cluster.kubelets()
        operator.catch_up()
    return operator.client.log


@pytest.mark.parametrize("other", [{}, {"verdict": "superb"}], ids=["", "its report cannot be read"])
def test_a_node_of_another_installation_is_left_alone(other: dict[str, str]) -> None:
    """No run, no label, no condition; its own and nobody's are read as ever."""
    operator = one_node()
    operator.run()
    assert operator.status["installation"] == "nodegauge/nodegauge"
    owned(operator, OTHER, **other)
    assert written(operator) == []
    owned(operator, "")
    assert "POST pods" in written(operator)
    assert operator.status["installation"] == "nodegauge/nodegauge", "a report without one is taken over"


@pytest.mark.parametrize(
    "forged", ["x", "x/", "/y", "a/b/c", "a b/c", "../y", "Ns/y", "é/y", "x/y;reboot", "x/$(id)", "x/y\n"]
)
def test_what_names_no_installation_makes_a_node_nobodys(forged: str, dirty: DirtyCluster) -> None:
    operator = one_node()
    operator.run()
    owned(operator, forged)
    assert "POST pods" in written(operator)
    assert operator.status["installation"] == "nodegauge/nodegauge"
    dirty.cluster.patch(REPORTS, "node-1", {"status": {"installation": forged}}, sub="status")
    dirty.clean(**RELEASE)
    assert dirty.left()[:2] == ({}, [])


def test_installations_with_disjoint_selectors_release_nothing_of_each_other() -> None:
    """Each saw the other's nodes outside its own selector, and took everything off."""
    first = one_node(pool="a")
    first.run()
    before = dict(first.labels)
    second = SteppedOperator(first.cluster, selector="pool=b", release="second")
    second.list()
    for later in (0, 2 * SETTINGS.release_grace):
        second.cluster.pass_time(later)
        for name in second.cache.known_names() | second.cache.suspects:
            second.reconcile(name)
    assert second.client.log == []
    assert first.labels == before
    assert "node-1" in first.cluster.objects[REPORTS]


def test_a_node_that_is_not_known_here_keeps_its_reading() -> None:
    first = one_node(pool="a")
    first.run()
    second = SteppedOperator(first.cluster, selector="pool=b", release="second")
    second.list()
    second.reconcile("node-1")
    assert "node-1" not in second.cache.nodes
    for _ in range(2):
        first.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": stamp(first.cluster.now)}})
        second.deliver()
        second.reconcile("node-1")
    assert second.client.log == []
    assert "node-1" in first.cluster.objects[READINGS]
    first.cluster.remove(NODES, "node-1")
    first.deliver()
    first.reconcile("node-1")
    assert "node-1" not in first.cluster.objects[READINGS]


@pytest.fixture
def dirty() -> DirtyCluster:
    """Node-0 is of this release, node-1 of another, node-2 of a version that named none."""
    dirty = DirtyCluster()
    for name, installation in (("node-0", "nodegauge/ours"), ("node-1", OTHER), ("node-2", "")):
        status = {"installation": installation}
        dirty.cluster.patch(REPORTS, name, {"status": status}, sub="status")
    return dirty


RELEASE = {"release": "ours", "deployment": "nodegauge"}


@pytest.mark.parametrize(
    ("holder", "how", "kept"),
    [
        ("nodegauge/ours", RELEASE, ["node-1"]),
        ("", RELEASE, ["node-1"]),
        (OTHER, RELEASE, ["node-1", "node-2"]),
        (OTHER, {}, []),
    ],
    ids=["ours", "nobody", "another", "a person without a release cleans everything"],
)
def test_uninstalling_a_release_takes_nothing_from_another(
    dirty: DirtyCluster, holder: str, how: dict[str, str], kept: list[str], capsys: Any
) -> None:
    if holder:
        dirty.cluster.create(PATH, {"metadata": {"name": names.LEASE}, "spec": {"holderIdentity": holder}})
    leases = [*dirty.cluster.objects[PATH]]
    dirty.clean(**how, dry_run=True)
    assert (len(dirty.left()[1]), [*dirty.cluster.objects[PATH]]) == (3, leases)
    foreign = f"{len(kept)} nodes do not belong to nodegauge/ours"
    assert (foreign in capsys.readouterr().out) is bool(how)
    dirty.clean(**how)
    marks, reports, _ = dirty.left()
    assert (sorted(marks), reports) == (kept, kept)
    assert (LEASE.rpartition("/")[2] in dirty.cluster.objects[PATH]) is (len(kept) == 2)


def test_the_clean_up_stops_where_it_cannot_see_whose_the_nodes_are(dirty: DirtyCluster) -> None:
    dirty.refuse = lambda verb, path: Forbidden("leases", status=403) if path == LEASE else None
    with pytest.raises(KubeError):
        dirty.clean(**RELEASE)
    assert len(dirty.left()[1]) == 3
