"""Who watches the watchers: containers of mode Watch that are gone, restart or write nothing, and DaemonSets
that others change, delete, hold or refuse."""

from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import reading_admission
from nodegauge_operator.core.watch_pod import watch_view
from nodegauge_operator.kube.errors import Forbidden
from nodegauge_operator.names import WatchersReason
from support.api_server import ADMISSION, DAEMONSETS, NODES, PODS, READINGS, Body
from support.calm_fleet import CalmFleet
from support.virtual_operator import VirtualTimeOperator as Operator
from support.virtual_operator import on_virtual_time, refusing

pytestmark = pytest.mark.usefixtures("stated_answers")

COUNT, GRACE, PERIODIC = 6, 300.0, 900.0
"""`limits.notStarted`, and the health interval of pods, which counts from the container's last reading."""
PULL = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
ENDED = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:30Z"}
RESTARTS = {"restartCount": 3, "lastState": {"terminated": ENDED}}


class WatchedFleet(CalmFleet):
    """Six nodes whose containers report, and what is shown of them."""

    def condition(self) -> tuple[str, str, str]:
        shown = self.cluster.condition("WatchersReady")
        return shown["status"], shown["reason"], shown["message"]

    def policy_events(self) -> list[tuple[str, str]]:
        return [(event["type"], event["reason"]) for event in self.cluster.policy_events()]

    def containers(self, state: str) -> float:
        return self.operator.sample("nodegauge_watch_containers", policy="default", state=state)

    def begun(self) -> set[str]:
        """Nodes that a health pod has read."""
        return {node for probe, node in self.operator.begun if probe == names.PROBE_HEALTH}

    def change_set(self, **spec: Any) -> None:
        """Somebody else patches the pods' spec."""
        (name,) = self.cluster.objects[DAEMONSETS]
        self.cluster.change(DAEMONSETS, name, {"spec": {"template": {"spec": spec}}})

    def daemon_set(self) -> Body:
        (made,) = self.cluster.objects[DAEMONSETS].values()
        return made


async def begun(operator: Operator) -> WatchedFleet:
    fleet = WatchedFleet(operator)
    await fleet.begin(COUNT)
    assert fleet.condition()[:2] == ("True", WatchersReason.CONTAINERS_RUNNING)
    assert fleet.begun() == set()
    return fleet


@pytest.mark.parametrize(
    ("box", "reason", "why"),
    [
        (None, WatchersReason.CONTAINERS_MISSING, "no pod was made"),
        (PULL, WatchersReason.CONTAINERS_MISSING, "ImagePullBackOff: Back-off"),
        (RESTARTS | PULL, WatchersReason.CONTAINERS_RESTARTING, "3 restarts, the last after 90 s"),
        ({}, WatchersReason.REPORTS_LATE, "writes nothing"),
    ],
    ids=["gone", "no image", "restarts", "late"],
)
@on_virtual_time
async def test_containers_that_do_not_work_are_shown_and_health_pods_take_over(
    operator: Operator, box: Body | None, reason: str, why: str
) -> None:
    """After `limits.notStarted` and no earlier, until they work again."""
    fleet = await begun(operator)
    for name, pod in fleet._containers.items():
        if box is None:
            fleet.cluster.remove(PODS, pod.name)
        else:
            fleet.replace(name, **box)
    await operator.after(GRACE - 5)
    assert (fleet.condition()[0], fleet.begun()) == ("Unknown", set())
    await operator.after(30)
    status, shown, message = fleet.condition()
    assert (status, shown) == ("False", reason)
    for part in (why, "6 of 6 nodes", "node-4, 1 more", "kubectl describe daemonset nodegauge-watch-default"):
        assert part in message
    assert fleet.policy_events() == [("Warning", reason)]
    assert operator.sample("nodegauge_watchers_ready", policy="default") == 0
    await operator.after(PERIODIC)
    assert fleet.begun() == set(fleet.cluster.objects[NODES])
    await operator.stop()
    operator = Operator(operator.loop, cluster=operator.cluster)
    operator.start()
    await operator.after(30)
    assert fleet.condition()[:2] == ("False", reason), "a restart makes nothing well"
    for name in fleet._containers:
        fleet.replace(name)
    for pod in fleet._containers.values():
        pod.becomes(ready=True)
    await operator.after(10)
    assert fleet.condition()[0] == "True"
    assert fleet.policy_events()[1:] == [("Normal", WatchersReason.CONTAINERS_RUNNING)]


@pytest.mark.parametrize("left_alone", ["", "node", "all"])
@on_virtual_time
async def test_what_a_container_writes_counts_once_it_is_judged(operator: Operator, left_alone: str) -> None:
    """Unless a person has a node left alone, or no reading counts, which is said by itself."""
    fleet = await begun(operator)
    if left_alone == "node":
        values = {"override": "leave-alone", "override-by": "ann", "override-reason": "fan"}
        values["override-until"] = stamp(fleet.cluster.clock() + 86_400)
        notes = {f"{names.PREFIX}{key}": value for key, value in values.items()}
        fleet.cluster.change(NODES, "node-0", {"metadata": {"annotations": notes}})
    if left_alone == "all":
        fleet.cluster.remove(ADMISSION, reading_admission.NAME)
    await operator.after(60)
    fleet.cluster.change(READINGS, "node-0", {"health": {"sequence": 9, "nodeUID": "another"}})
    await operator.after(GRACE - 5)
    assert (fleet.condition()[0], fleet.containers("ready")) == ("True", COUNT)
    await operator.after(30)
    assert fleet.containers("unjudged") == (not left_alone)
    judged, unjudged = WatchersReason.CONTAINERS_RUNNING, WatchersReason.REPORTS_NOT_JUDGED
    assert fleet.condition()[1] == (judged if left_alone else unjudged)


@on_virtual_time
async def test_a_pod_of_before_the_admission_policy_changed_does_not_watch(
    operator: Operator,
) -> None:
    """Nothing that it writes counts, and the roll-out that would replace it is stuck."""
    fleet = await begun(operator)
    fleet.cluster.subscribers.remove(fleet._roll_out)
    fleet.cluster.objects[ADMISSION][reading_admission.NAME]["metadata"]["generation"] = 2
    await operator.after(GRACE + 60)
    status, shown, message = fleet.condition()
    assert (status, shown) == ("False", WatchersReason.REPORTS_LATE)
    assert "6 of 6 nodes" in message
    assert "older than the admission policy" in message


@on_virtual_time
async def test_what_is_refused_to_health_pods_as_well_is_read_by_nobody(
    operator: Operator,
) -> None:
    fleet = await begun(operator)
    operator.client.refuse = refusing(Forbidden("exceeded quota: none", status=403), "POST", PODS)
    for pod in fleet._containers.values():
        fleet.cluster.remove(PODS, pod.name)
    await operator.after(GRACE + PERIODIC + 60)
    assert "nobody reads 6 of them" in fleet.condition()[2]
    assert "exceeded quota: none" in fleet.condition()[2]


@pytest.mark.parametrize(
    ("key", "value"), [(names.MIG_CONFIG_STATE, "pending"), (names.GPU_UPGRADE_STATE, "upgrade-failed")]
)
@on_virtual_time
async def test_a_change_of_driver_that_does_not_end_is_said(operator: Operator, key: str, value: str) -> None:
    """After an hour, as the node takes jobs; its end is no alarm."""
    fleet = await begun(operator)
    fleet.cluster.change(NODES, "node-1", {"metadata": {"labels": {key: value}}})
    fleet.cluster.remove(PODS, fleet._containers["node-1"].name)
    await operator.after(3500)
    assert (fleet.condition()[0], fleet.containers("not-expected")) == ("True", 1)
    await operator.after(700)
    status, shown, message = fleet.condition()
    assert (status, shown) == ("False", WatchersReason.NODES_HELD_OFF)
    assert f"1 of 6 nodes (node-1): label {key}={value}; nobody reads them" in message
    fleet.cluster.change(NODES, "node-1", {"metadata": {"labels": {key: None}}})
    await operator.after(30)
    assert fleet.condition()[0] == "True"


@on_virtual_time
async def test_a_roll_out_and_nodes_that_can_run_none_are_no_alarm(operator: Operator) -> None:
    fleet = await begun(operator)
    away = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    fleet.cluster.change(NODES, "node-1", {"status": away})
    fleet.cluster.change(NODES, "node-2", {"spec": {"unschedulable": True}, "status": away})
    fleet.cluster.change(NODES, "node-3", {"metadata": {"labels": {"kubernetes.io/os": "windows"}}})
    for name in ("node-1", "node-2", "node-3"):
        fleet.cluster.remove(PODS, fleet._containers[name].name)
    for name in ("node-0", "node-4", "node-5"):
        fleet.replace(name)
        await operator.after(GRACE - 30)
        assert fleet.condition()[:2] == ("True", WatchersReason.CONTAINERS_RUNNING)
        fleet._containers[name].becomes(ready=True)
    await operator.after(60)
    assert [fleet.containers(state) for state in ("ready", "not-expected", "missing")] == [3, 3, 0]
    assert operator.sample("nodegauge_silent_nodes", policy="default", reason="not-ready") == 1
    assert fleet.begun() == set()


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "a nodeSelector"])
@on_virtual_time
async def test_what_others_do_to_the_daemonset_is_taken_back_at_once(
    operator: Operator, deleted: bool
) -> None:
    fleet = await begun(operator)
    (name, before), *_ = fleet.cluster.objects[DAEMONSETS].items()
    if deleted:
        fleet.cluster.remove(DAEMONSETS, name)
    else:
        fleet.change_set(nodeSelector={"no": "where"})
    await operator.after(5)
    assert fleet.daemon_set()["spec"] == before["spec"]
    assert fleet.policy_events() == [("Warning", WatchersReason.DAEMON_SET_CHANGED)]
    fleet.change_set(nodeSelector={"no": "where"})
    for number in range(4):  # what the controller writes meanwhile is no further change
        await operator.after(5)
        fleet.cluster.change(DAEMONSETS, name, {"status": {"numberReady": number}})
    await operator.after(5)
    assert (fleet.daemon_set()["spec"], len(fleet.policy_events())) == (before["spec"], 2)


@on_virtual_time
async def test_a_dispute_about_the_daemonset_is_slow_and_shown(operator: Operator) -> None:
    """Each change and its end restart every container."""
    fleet = await begun(operator)
    began, generation = operator.loop.time(), fleet.daemon_set()["metadata"]["generation"]
    while operator.loop.time() < began + 200:
        fleet.change_set(nodeSelector={"no": "where"})
        await operator.after(1)
    assert fleet.condition()[:2] == ("False", WatchersReason.DAEMON_SET_CHANGED)
    assert fleet.daemon_set()["metadata"]["generation"] - generation <= 2 * 6


@pytest.mark.parametrize("missed", [True, False])
@on_virtual_time
async def test_a_full_list_finds_what_the_watch_missed(operator: Operator, missed: bool) -> None:
    fleet = await begun(operator)
    with operator.unheard():
        if missed:
            fleet.change_set(nodeSelector={"no": "where"})
    operator.list_now()
    await operator.after(5)
    assert "nodeSelector" not in fleet.daemon_set()["spec"]["template"]["spec"]
    assert len(fleet.policy_events()) == missed


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [(False, WatchersReason.DAEMON_SET_REFUSED), (True, WatchersReason.DAEMON_SET_FOREIGN)],
)
@on_virtual_time
async def test_a_daemonset_that_is_refused_is_shown(operator: Operator, foreign: bool, reason: str) -> None:
    """Once it was refused twice; somebody else's of that name stays."""
    error = Forbidden('denied by "images.example.com"', status=403)
    operator.client.refuse = refusing(error, "PATCH", DAEMONSETS)
    if foreign:
        operator.cluster.create(DAEMONSETS, {"metadata": {"name": "nodegauge-watch-default"}, "spec": {}})
    operator.nodes(1)
    operator.cluster.add_policy(probes={"health": {"mode": "Watch"}, "load": {"enabled": False}})
    operator.start()
    fleet = WatchedFleet(operator)
    await operator.after(8)
    assert fleet.condition()[:2] == ("Unknown", WatchersReason.CONTAINERS_STARTING)
    await operator.after(12)
    assert fleet.condition()[:2] == ("False", reason)
    assert ("images.example.com" in fleet.condition()[2]) is not foreign
    assert fleet.cluster.condition("Ready")["reason"] == reason
    assert operator.sample("nodegauge_obstacles", policy="default", kind="WatchersReady") == 1


def test_a_pod_that_is_not_scheduled_belongs_to_the_node_that_it_is_made_for() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no memory"}
    owner = {"kind": "DaemonSet", "uid": "set", "controller": True}
    pod = watch_view(
        {
            "metadata": {"name": "a", "labels": {names.POD_PROBE: "watch"}, "ownerReferences": [owner]},
            "spec": {"affinity": {"nodeAffinity": required}},
            "status": {"phase": "Pending", "conditions": [placed]},
        }
    )
    assert (pod.node, pod.ready, pod.waits_for) == ("node-1", False, "Unschedulable: no memory")
