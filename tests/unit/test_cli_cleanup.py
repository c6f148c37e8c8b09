"""`nodegauge cleanup` on a cluster in trouble: blips, conflicts, nodes that go, kubelets that never answer.

Time is virtual: minutes of waiting pass at once, and in the order in which they would pass.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nodegauge_cli.cleanup import command
from nodegauge_operator import names
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, Unavailable
from support.api_server import NAMESPACE, NODES, PODS, POLICIES, REPORTS
from support.cleaning import CLEAN, FOREIGN, MARKS, TAINTS, Scene, failing
from support.virtual_time import run

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def scene() -> Scene:
    """Three nodes with marks and reports."""
    return Scene()


def test_a_failed_test_of_the_chart_goes_too(scene: Scene) -> None:
    """Helm leaves the pod of a `helm test` that failed, and nobody else would take it away."""
    part = {"app.kubernetes.io/part-of": "nodegauge"}
    for name, component in (("a-test", "test"), ("another", "cleanup")):
        metadata = {"name": name, "labels": part | {"app.kubernetes.io/component": component}}
        scene.cluster.create(PODS, {"metadata": metadata | {"namespace": NAMESPACE}, "spec": {}})
        scene.cluster.pod_status(name, {"phase": "Failed"}, node="node-0")
    scene.clean(dry_run=True)
    assert sorted(scene.cluster.objects[PODS]) == ["a-test", "another"]
    scene.clean()
    assert sorted(scene.cluster.objects[PODS]) == ["another"]


def test_everything_of_ours_goes_and_nothing_else(scene: Scene) -> None:
    """Labels, taints, conditions, reports and probe pods; other labels, taints and conditions stay, and so do
    policies."""
    scene.add_probe("done", phase="Succeeded")
    scene.clean()
    assert scene.left() == CLEAN
    assert [call for call in scene.order if call.startswith(f"PATCH {NODES}/node-0")] == [
        f"PATCH {NODES}/node-0",
        f"PATCH {NODES}/node-0/status",
    ]
    assert sorted(scene.cluster.objects[POLICIES]) == ["default", "mine"]
    kinds = {c["type"] for c in scene.cluster.objects[NODES]["node-0"]["status"]["conditions"]}
    assert kinds == {"Ready"}


@pytest.mark.parametrize(
    "where", ["GET /api/v1/nodes", "PATCH", "DELETE", f"GET {REPORTS}", f"GET {PODS}", "deployments"]
)
def test_a_blip_is_sat_out(scene: Scene, where: str) -> None:
    """Five calls in a row without an answer, of whatever kind, cost a few seconds and nothing else."""
    scene.deployments = ["nodegauge"]
    scene.add_probe("probe", phase="Succeeded")
    scene.refuse = failing(5, where)
    took = scene.clean()
    assert scene.left() == CLEAN
    assert 0 < took < 40


def test_a_list_that_breaks_off_is_taken_whole(scene: Scene) -> None:
    """An expired continue token, after the first page, starts the list again: no node is missing."""
    for number in range(100, 230):
        scene.add(f"node-{number}")
    expired_once = [False]

    def expired(verb: str, path: str) -> KubeError | None:
        if verb == "GET" and path == NODES and NODES in scene.reads and not expired_once[0]:
            expired_once[0] = True
            return Refused("the provided continue parameter is too old", status=410)
        return None

    scene.refuse = expired
    scene.clean()
    assert expired_once == [True]
    assert scene.left() == CLEAN


def test_a_taint_that_a_stranger_sets_meanwhile_survives(scene: Scene) -> None:
    """The list of taints is written whole: one that came after it was read must be in it."""
    late = {"key": "late", "value": "1", "effect": "NoSchedule"}
    come: list[str] = []

    def stranger(verb: str, path: str) -> KubeError | None:
        if verb == "PATCH" and path == f"{NODES}/node-1" and not come:
            come.append(path)
            scene.cluster.change(NODES, "node-1", {"spec": {"taints": [*TAINTS, late]}})
        return None

    scene.refuse = stranger
    scene.clean()
    assert scene.cluster.objects[NODES]["node-1"]["spec"]["taints"] == [*FOREIGN, late]
    scene.cluster.change(NODES, "node-1", {"spec": {"taints": FOREIGN}})
    assert scene.left() == CLEAN


def test_a_node_with_a_taint_alone_is_cleaned(scene: Scene) -> None:
    """A kubelet may register a node with `unvalidated`, and nothing else of ours be there yet."""
    taint = {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"}
    scene.cluster.add_node("node-new", theirs="kept")
    scene.cluster.change(NODES, "node-new", {"spec": {"taints": [taint, *FOREIGN]}})
    scene.clean()
    assert scene.left() == CLEAN


def test_a_conflict_reads_again(scene: Scene) -> None:
    """A kubelet that writes the node between list and patch costs one more read."""
    written: list[str] = []

    def stranger(verb: str, path: str) -> None:
        if verb == "GET" and path == NODES and not written:
            written.append(path)
            for name in ("node-0", "node-1", "node-2"):
                scene.cluster.change(NODES, name, {"metadata": {"labels": {"other": "1"}}})

    scene.answered = stranger
    scene.clean()
    assert scene.left() == CLEAN
    assert [path for path in scene.reads if path.startswith(NODES + "/")] != []


@pytest.mark.parametrize("conflict_first", [False, True], ids=["at the patch", "after a conflict"])
def test_a_node_that_goes_meanwhile_stops_nothing(scene: Scene, conflict_first: bool) -> None:
    """Scaled down while it is cleaned: its siblings are cleaned, and nothing is left to say."""
    gone: list[str] = []

    def scale_down(verb: str, path: str) -> KubeError | None:
        here = f"{NODES}/node-1"
        if path.startswith(here) and verb == ("GET" if conflict_first else "PATCH") and not gone:
            gone.append(path)
            scene.cluster.remove(NODES, "node-1")
        return None

    def kubelet(verb: str, path: str) -> None:
        if conflict_first and path == NODES:
            scene.cluster.change(NODES, "node-1", {"metadata": {"labels": {"other": "1"}}})

    scene.answered = kubelet
    scene.refuse = scale_down
    scene.clean()
    assert gone
    assert scene.left() == CLEAN


def test_one_object_that_fails_stops_no_other(scene: Scene) -> None:
    """A webhook refuses one node's labels and taints: its condition and all else goes; the error names the
    node."""
    refusal = Refused("denied by somebody's webhook", status=403)
    scene.refuse = failing(1, f"PATCH {NODES}/node-1", lambda: refusal)
    with pytest.raises(KubeError, match=r"node node-1: denied by somebody's webhook") as caught:
        scene.clean()
    assert "node-0" not in str(caught.value)
    assert scene.left() == ({"node-1": MARKS}, [], [])
    scene.clean()
    assert scene.left() == CLEAN


def test_what_may_not_be_listed_is_named_and_the_rest_is_cleaned(scene: Scene) -> None:
    """No right to list nodes: reports and pods go all the same."""
    scene.refuse = failing(99, f"GET {NODES}", lambda: Forbidden("may not list nodes", status=403))
    with pytest.raises(KubeError, match="nodes: may not list nodes"):
        scene.clean()
    assert scene.left()[1:] == CLEAN[1:]
    assert len(scene.marks()) == 3


def test_a_node_that_keeps_changing_is_named(scene: Scene) -> None:
    """Conflicts without end are bounded, and the others are cleaned."""

    def restless(verb: str, path: str) -> KubeError | None:
        if verb == "PATCH" and path == f"{NODES}/node-2":
            scene.cluster.objects[NODES]["node-2"]["metadata"]["resourceVersion"] += "0"
        return None

    scene.refuse = restless
    with pytest.raises(KubeError, match="node node-2: the node keeps changing"):
        scene.clean()
    assert set(scene.marks()) == {"node-2"}


def test_an_api_server_that_stays_away_ends_it(scene: Scene) -> None:
    """With a thousand nodes to go it gives up a while after the last answer, not a while for each of them."""
    for number in range(100, 300):
        scene.add(f"node-{number}")
    went_away: list[float] = []

    async def timed() -> None:
        loop = asyncio.get_running_loop()

        def away(verb: str, path: str) -> KubeError | None:
            if verb == "PATCH":
                went_away.append(loop.time())
                return Unavailable("no answer")
            return Unavailable("no answer") if went_away else None

        scene.refuse = away
        options: dict[str, Any] = {"namespace": NAMESPACE, "deployment": "", "policy": "", "within": 120.0}
        with pytest.raises(KubeError, match=r"and \d+ more"):
            await command.clean(scene, **options, dry_run=False)
        assert loop.time() - went_away[0] < 120

    run(timed())


# -- pods ----------------------------------------------------------------------------------------------------


def test_probe_pods_of_a_dead_kubelet_are_removed_without_it(scene: Scene) -> None:
    """After their grace and a few seconds more, by their UID; reports do not wait for them."""
    scene.add_probe("stuck")
    took = scene.clean()
    assert scene.left() == CLEAN
    assert 10 <= took < 15
    deletes = [line for line in scene.order if line.startswith("DELETE")]
    assert deletes.index(f"DELETE {REPORTS}/node-0") < len(deletes) - 1
    assert [line for line in deletes if "stuck" in line] == [f"DELETE {PODS}/stuck"] * 2
    assert deletes[0] == deletes[-1] == f"DELETE {PODS}/stuck"


def test_a_kubelet_that_confirms_is_waited_for(scene: Scene) -> None:
    """A probe that ends within its grace is not forced."""
    scene.add_probe("slow")
    looks: list[str] = []

    def kubelet(verb: str, path: str) -> KubeError | None:
        looks.append(path)
        if verb == "GET" and looks.count(PODS) == 5 and "slow" in scene.cluster.objects[PODS]:
            scene.cluster.delete(PODS, "slow", {"gracePeriodSeconds": 0})
        return None

    scene.refuse = kubelet
    assert scene.clean() < 5
    assert scene.left() == CLEAN
    assert len([line for line in scene.order if line == f"DELETE {PODS}/slow"]) == 1


def test_another_pod_of_the_same_name_is_not_forced(scene: Scene) -> None:
    """The precondition on the UID protects whatever has taken the name meanwhile."""
    scene.add_probe("stuck")

    def replaced(verb: str, path: str) -> KubeError | None:
        if verb == "DELETE" and path == f"{PODS}/stuck" and scene.order.count(f"DELETE {path}") == 2:
            scene.cluster.objects[PODS]["stuck"]["metadata"]["uid"] = "another"
        return None

    scene.refuse = replaced
    with pytest.raises(KubeError, match="stuck"):
        scene.clean()
    assert scene.left()[2] == ["stuck"]


def test_a_pod_that_does_not_go_is_named_and_all_else_is_gone(scene: Scene) -> None:
    """Even forced it stays (a finalizer): the time is bounded, the pod named, the rest clean."""
    scene.add_probe("held")
    scene.refuse = failing(99, f"DELETE {PODS}/held", lambda: NotFound("held", status=404))
    with pytest.raises(KubeError, match=rf"probe pod {NAMESPACE}/held"):
        scene.clean()
    assert scene.left() == ({}, [], ["held"])


# -- reports, policy, dry run --------------------------------------------------------------------------------


def test_without_the_crds_the_rest_is_cleaned(scene: Scene) -> None:
    """CRDs that somebody has removed: reports and policy are gone with them, which is no error."""
    scene.refuse = failing(99, f"/apis/{names.GROUP}/", lambda: NotFound("no such resource", status=404))
    scene.clean(policy="default")
    assert scene.marks() == {}


def test_the_named_policy_goes_and_no_other(scene: Scene) -> None:
    """The chart names its own; people's stay."""
    scene.clean(policy="default")
    assert sorted(scene.cluster.objects[POLICIES]) == ["mine"]


def test_a_dry_run_writes_nothing_and_says_all(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Not one write, the operator's included, and every kind of object is in what it says."""
    scene.deployments = ["nodegauge"]
    scene.add_operator()
    scene.add_probe("probe")
    before = scene.left()
    scene.clean(dry_run=True, policy="default")
    assert [line for line in scene.order if not line.startswith("GET")] == []
    assert scene.left() == before
    words = capsys.readouterr().out
    assert f"Deployment {NAMESPACE}/nodegauge would be scaled to 0" in words
    (line,) = [line for line in words.splitlines() if "node-1" in line]
    said = {mark.removeprefix("taint ") for mark in line.split(": ")[1].split(", ")}
    assert said == {*MARKS, "condition"}
    assert "nodes: 3 of 3 would be cleaned" in words
    assert "reports: 3 of 3 would be removed" in words
    assert "probe pods: 1 of 1 would be removed" in words
    assert "policy default: would be removed" in words
