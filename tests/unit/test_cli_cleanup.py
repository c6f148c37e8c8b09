"""`nodegauge cleanup` on an unhealthy cluster: API errors, conflicts, dead kubelets, running operators.

Time is virtual: minutes of waiting pass at once, in their order.
"""

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli.cleanup import command
from nodegauge_operator import names
from nodegauge_operator.kube.errors import Conflict, Forbidden, KubeError, NotFound, Refused
from support.api_server import DAEMONSETS, HISTORIES, NAMESPACE, NODES, PODS, POLICIES, REPORTS
from support.cleaning import CLEAN, DEPLOYMENTS, FOREIGN, MARKS, TAINTS, DirtyCluster, failing
from support.client import unavailable


@pytest.fixture
def dirty() -> DirtyCluster:
    """Three nodes with marks and reports."""
    return DirtyCluster()


def add_test_pods(dirty: DirtyCluster) -> None:
    """That of a failed `helm test`, and one that is none."""
    part = {"app.kubernetes.io/part-of": "nodegauge"}
    for name, component in (("a-test", "test"), ("another", "cleanup")):
        metadata = {"name": name, "labels": part | {"app.kubernetes.io/component": component}}
        dirty.cluster.create(PODS, {"metadata": metadata | {"namespace": NAMESPACE}, "spec": {}})
        dirty.cluster.pod_status(name, {"phase": "Failed"}, node="node-0")


@pytest.mark.parametrize("replaced", [False, True])
def test_after_a_conflict_only_the_uid_says_that_a_pod_is_gone(dirty: DirtyCluster, replaced: bool) -> None:
    add_test_pods(dirty)

    def conflict() -> KubeError:
        if replaced:
            dirty.cluster.objects[PODS]["a-test"]["metadata"]["uid"] = "another"
        return Conflict("modified", status=409)

    dirty.refuse = failing(1, f"DELETE {PODS}/a-test", conflict)
    dirty.clean()
    assert ("a-test" in dirty.cluster.objects[PODS]) is replaced


def test_the_pod_of_a_failed_helm_test_is_removed(dirty: DirtyCluster) -> None:
    add_test_pods(dirty)
    dirty.clean(dry_run=True)
    assert sorted(dirty.cluster.objects[PODS]) == ["a-test", "another"]
    dirty.clean()
    assert sorted(dirty.cluster.objects[PODS]) == ["another"]


def test_only_objects_of_nodegauge_are_removed(dirty: DirtyCluster) -> None:
    """Also from a node that has a taint alone."""
    taint = {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"}
    dirty.cluster.add_node("node-new", theirs="kept")
    dirty.cluster.change(NODES, "node-new", {"spec": {"taints": [taint, *FOREIGN]}})
    dirty.add_probe("done", phase="Succeeded")
    dirty.clean()
    assert dirty.left() == CLEAN
    assert [call for call in dirty.order if call.startswith(f"PATCH {NODES}/node-0")] == [
        f"PATCH {NODES}/node-0",
        f"PATCH {NODES}/node-0/status",
    ]
    assert sorted(dirty.cluster.objects[POLICIES]) == ["default", "mine"]
    kinds = {c["type"] for c in dirty.cluster.objects[NODES]["node-0"]["status"]["conditions"]}
    assert kinds == {"Ready"}
    dirty.clean(policy="default")
    assert sorted(dirty.cluster.objects[POLICIES]) == ["mine"]


@pytest.mark.parametrize(
    "where", ["GET /api/v1/nodes", "PATCH", "DELETE", f"GET {REPORTS}", f"GET {PODS}", "deployments"]
)
def test_a_temporary_api_error_is_retried(dirty: DirtyCluster, where: str) -> None:
    dirty.deployments = ["nodegauge"]
    dirty.add_probe("probe", phase="Succeeded")
    dirty.refuse = failing(5, where)
    took = dirty.clean()
    assert dirty.left() == CLEAN
    assert 0 < took < 40


def test_a_list_that_breaks_off_is_started_again(dirty: DirtyCluster) -> None:
    for number in range(100, 230):
        dirty.add(f"node-{number}")
    too_old = Refused("the provided continue parameter is too old", status=410)
    expired = failing(1, f"GET {NODES}", lambda: too_old)
    dirty.refuse = lambda verb, path: expired(verb, path) if path in dirty.reads else None
    dirty.clean()
    assert expired("GET", NODES) is None, "it had its turn"
    assert dirty.left() == CLEAN


def test_a_taint_added_meanwhile_survives(dirty: DirtyCluster) -> None:
    late = {"key": "late", "value": "1", "effect": "NoSchedule"}

    def stranger() -> None:
        dirty.cluster.change(NODES, "node-1", {"spec": {"taints": [*TAINTS, late]}})

    dirty.refuse = failing(1, f"PATCH {NODES}/node-1", stranger)
    dirty.clean()
    assert dirty.cluster.objects[NODES]["node-1"]["spec"]["taints"] == [*FOREIGN, late]
    dirty.cluster.change(NODES, "node-1", {"spec": {"taints": FOREIGN}})
    assert dirty.left() == CLEAN


@pytest.mark.parametrize("conflict_first", [False, True], ids=["at the patch", "after a conflict"])
def test_a_node_deleted_meanwhile_is_no_error(dirty: DirtyCluster, conflict_first: bool) -> None:
    def kubelet() -> None:
        if conflict_first:
            dirty.cluster.change(NODES, "node-1", {"metadata": {"labels": {"other": "1"}}})

    verb = "GET" if conflict_first else "PATCH"
    dirty.answered = failing(1, f"GET {NODES}", kubelet)  # type: ignore[assignment]
    dirty.refuse = failing(1, f"{verb} {NODES}/node-1", lambda: dirty.cluster.remove(NODES, "node-1"))
    dirty.clean()
    assert "node-1" not in dirty.cluster.objects[NODES]
    assert dirty.left() == CLEAN


def test_a_failed_object_does_not_stop_the_others(dirty: DirtyCluster) -> None:
    refusal = Refused("denied by somebody's webhook", status=403)
    dirty.refuse = failing(1, f"PATCH {NODES}/node-1", lambda: refusal)
    with pytest.raises(KubeError, match=r"node node-1: denied by somebody's webhook") as caught:
        dirty.clean()
    assert "node-0" not in str(caught.value)
    assert dirty.left() == ({"node-1": MARKS}, [], [])
    dirty.clean()
    assert dirty.left() == CLEAN


def test_a_missing_right_is_named_and_the_rest_is_cleaned(dirty: DirtyCluster) -> None:
    dirty.refuse = failing(99, f"GET {NODES}", lambda: Forbidden("may not list nodes", status=403))
    with pytest.raises(KubeError, match="nodes: may not list nodes"):
        dirty.clean()
    assert dirty.left()[1:] == CLEAN[1:]
    assert len(dirty.marks()) == 3


def test_a_node_that_keeps_changing_is_named(dirty: DirtyCluster) -> None:
    def restless() -> None:
        dirty.cluster.objects[NODES]["node-2"]["metadata"]["resourceVersion"] += "0"

    dirty.refuse = failing(99, f"PATCH {NODES}/node-2", restless)
    with pytest.raises(KubeError, match="node node-2: the node keeps changing"):
        dirty.clean()
    assert set(dirty.marks()) == {"node-2"}


def test_a_long_outage_ends_the_clean_up(dirty: DirtyCluster) -> None:
    for number in range(100, 300):
        dirty.add(f"node-{number}")
    went_away: list[float] = []

    def away(verb: str, path: str) -> KubeError | None:
        if verb == "PATCH":
            went_away.append(asyncio.get_running_loop().time())
        return unavailable() if went_away else None

    dirty.refuse = away
    with pytest.raises(KubeError, match=r"and \d+ more"):
        dirty.clean()
    assert dirty.took - went_away[0] < 120


def test_probe_pods_of_a_dead_kubelet_are_forced(dirty: DirtyCluster) -> None:
    dirty.add_probe("stuck")
    took = dirty.clean()
    assert dirty.left() == CLEAN
    assert 10 <= took < 15
    deletes = [line for line in dirty.order if line.startswith("DELETE")]
    assert deletes.index(f"DELETE {REPORTS}/node-0") < len(deletes) - 1
    assert [line for line in deletes if "stuck" in line] == [f"DELETE {PODS}/stuck"] * 2
    assert deletes[0] == deletes[-1] == f"DELETE {PODS}/stuck"


def test_a_probe_pod_that_ends_in_time_is_not_forced(dirty: DirtyCluster) -> None:
    dirty.add_probe("slow")
    looks: list[str] = []

    def kubelet(verb: str, path: str) -> KubeError | None:
        looks.append(path)
        if verb == "GET" and looks.count(PODS) == 5 and "slow" in dirty.cluster.objects[PODS]:
            dirty.cluster.delete(PODS, "slow", {"gracePeriodSeconds": 0})
        return None

    dirty.refuse = kubelet
    assert dirty.clean() < 5
    assert dirty.left() == CLEAN
    assert len([line for line in dirty.order if line == f"DELETE {PODS}/slow"]) == 1


def test_another_pod_of_the_same_name_is_not_forced(dirty: DirtyCluster) -> None:
    dirty.add_probe("stuck")

    def replaced() -> None:
        if dirty.order.count(f"DELETE {PODS}/stuck") == 2:
            dirty.cluster.objects[PODS]["stuck"]["metadata"]["uid"] = "another"

    dirty.refuse = failing(2, f"DELETE {PODS}/stuck", replaced)
    with pytest.raises(KubeError, match="stuck"):
        dirty.clean()
    assert dirty.left()[2] == ["stuck"]


def test_a_pod_that_stays_is_named_and_the_rest_is_removed(dirty: DirtyCluster) -> None:
    """A finalizer keeps it even when forced."""
    dirty.add_probe("held")
    dirty.refuse = failing(99, f"DELETE {PODS}/held", lambda: NotFound("held", status=404))
    with pytest.raises(KubeError, match=rf"probe pod {NAMESPACE}/held"):
        dirty.clean()
    assert dirty.left() == ({}, [], ["held"])


def test_without_the_crds_the_rest_is_cleaned(dirty: DirtyCluster) -> None:
    dirty.refuse = failing(99, f"/apis/{names.GROUP}/", lambda: NotFound("no such resource", status=404))
    dirty.clean(policy="default")
    assert dirty.marks() == {}


@pytest.mark.parametrize(("release", "left"), [("ng", ["other", "theirs"]), ("", ["theirs"])])
def test_watch_daemonsets_and_histories_of_the_release_are_removed(
    dirty: DirtyCluster, release: str, left: list[str]
) -> None:
    """Also the history of a node that is gone."""
    instance = "app.kubernetes.io/instance"
    marks = {"own": {instance: "ng"}, "other": {instance: "other"}}
    for name in ("own", "other", "theirs"):
        labels = marks[name] | {names.WATCH_SET: name} if name in marks else {}
        dirty.cluster.create(DAEMONSETS, {"metadata": {"name": name, "labels": labels}, "spec": {}})
    for name, by in (("gone", "ng"), ("other", "other")):
        written = {"status": {"installation": f"{NAMESPACE}/{by}"}}
        dirty.cluster.create(HISTORIES, {"metadata": {"name": name}} | written)
    dirty.clean(release=release)
    assert sorted(dirty.cluster.objects[DAEMONSETS]) == left
    assert ("gone" in dirty.cluster.objects[HISTORIES], "other" in dirty.cluster.objects[HISTORIES]) == (
        False,
        bool(release),
    )


def test_a_dry_run_lists_everything(dirty: DirtyCluster, capsys: pytest.CaptureFixture[str]) -> None:
    dirty.deployments = ["nodegauge"]
    dirty.add_operator()
    dirty.add_probe("probe")
    before = dirty.left()
    dirty.clean(dry_run=True, policy="default")
    assert [line for line in dirty.order if not line.startswith("GET")] == []
    assert dirty.left() == before
    output = capsys.readouterr().out
    assert f"Deployment {NAMESPACE}/nodegauge would be scaled to 0" in output
    (line,) = [line for line in output.splitlines() if "node-1" in line]
    marks = {mark.removeprefix("taint ") for mark in line.split(": ")[1].split(", ")}
    assert marks == {*MARKS, "condition"}
    assert "nodes: 3 of 3 would be cleaned" in output
    assert "reports: 3 of 3 would be removed" in output
    assert "probe pods: 1 of 1 would be removed" in output
    assert "policy default: would be removed" in output


def first_write(dirty: DirtyCluster) -> str:
    return next((line for line in dirty.order if not line.startswith("GET")), "")


@pytest.mark.parametrize("deployment", ["", "my-gauge"], ids=["found by its labels", "named"])
def test_the_operator_is_stopped_first(dirty: DirtyCluster, deployment: str) -> None:
    dirty.deployments = ["my-gauge"]
    dirty.add_operator()
    dirty.clean(deployment=deployment)
    assert first_write(dirty) == f"PATCH {DEPLOYMENTS}/my-gauge/scale"
    assert dirty.operators == {}
    assert dirty.left() == CLEAN


def test_an_operator_on_a_dead_kubelet_is_forced(dirty: DirtyCluster) -> None:
    dirty.deployments, dirty.dead_kubelets = ["nodegauge"], True
    dirty.add_operator()
    took = dirty.clean()
    assert dirty.left() == CLEAN
    assert 30 + 10 + 15 <= took < 60
    assert dirty.order.index(f"DELETE {PODS}/operator-1") < dirty.order.index(f"PATCH {NODES}/node-0")


@pytest.mark.parametrize("deployment", ["", "nodegauge"])
def test_an_operator_that_keeps_running_ends_the_clean_up(dirty: DirtyCluster, deployment: str) -> None:
    dirty.deployments = ["nodegauge"]
    dirty.add_operator()
    dirty._stop = lambda: None  # type: ignore[method-assign]
    before = dirty.left()
    with pytest.raises(KubeError, match=rf"still runs after 120 s \(pod {NAMESPACE}/operator-1\)"):
        dirty.clean(deployment=deployment)
    assert dirty.left() == before


def test_an_operator_in_another_namespace_is_refused(dirty: DirtyCluster) -> None:
    dirty.add_operator(namespace="elsewhere")
    with pytest.raises(KubeError, match="--namespace elsewhere"):
        dirty.clean()
    assert first_write(dirty) == ""


def test_without_the_right_to_see_other_namespaces_a_name_is_required(dirty: DirtyCluster) -> None:
    dirty.deployments = ["nodegauge"]
    dirty.refuse = failing(99, "GET /api/v1/pods", lambda: Forbidden("may not list pods", status=403))
    with pytest.raises(KubeError, match="--deployment"):
        dirty.clean()
    assert first_write(dirty) == ""
    dirty.clean(deployment="nodegauge")
    assert dirty.left() == CLEAN


def test_the_command_lists_what_remains(dirty: DirtyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty.refuse = failing(1, f"DELETE {REPORTS}/node-1", lambda: Refused("held", status=403))

    async def connect(**_: Any) -> DirtyCluster:
        return dirty

    monkeypatch.setattr(command, "connect", connect)
    outcome = CliRunner().invoke(command.cleanup, [])
    assert outcome.exit_code == 1
    assert "some objects remain" in outcome.output
    assert "report node-1: held" in outcome.output
    assert "Traceback" not in outcome.output
