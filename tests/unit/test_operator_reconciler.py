"""Settling one node against a cluster in memory: refusals, conflicts, strangers, vanished objects, events."""

import contextlib
import re

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Power
from nodegauge_operator import names
from nodegauge_operator.kube.client import CALL_TIMEOUT
from nodegauge_operator.kube.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    Refused,
    Unavailable,
    WebhookFailed,
    error_of,
)
from nodegauge_operator.kube.nodes import patch_condition
from nodegauge_operator.kube.pods import CREATE_SECONDS
from support.api_server import EVENTS, NODES, PODS, POLICIES, READINGS, REPORTS, Body
from support.client import Call, unavailable
from support.cluster import FakeCluster
from support.objects import INTERVAL, MINUTE, STALE
from support.operator import SteppedOperator, one_node
from support.virtual_time import drive


@pytest.fixture
def operator() -> SteppedOperator:
    return one_node(team="a")


def ended(operator: SteppedOperator) -> Body:
    """A pod whose run has ended and is not judged yet."""
    operator.reconcile()
    operator.cluster.kubelets()
    operator.deliver()
    (pod,) = operator.cluster.pods()
    return pod


def test_a_refused_pod_while_the_report_changes_is_tried_again_once(operator: SteppedOperator) -> None:
    """A person asks for a run at that very moment: read again, then write; not a storm of refused pods."""
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    posts = 0

    def refuse(verb: str, path: str) -> KubeError | None:
        nonlocal posts
        if (verb, path) != ("POST", PODS):
            return None
        posts += 1
        if posts == 1:
            asked = {"spec": {"requestedAt": "2027-01-15T08:00:00Z"}}
            operator.cluster.change(REPORTS, "node-1", asked)
        return Refused("denied")

    operator.client.refuse = refuse
    operator.reconcile()
    assert posts <= 2
    assert operator.probe["request"] == "2027-01-15T08:00:00Z"


def test_a_pod_of_this_run_that_is_there_already_is_adopted(operator: SteppedOperator) -> None:
    other = SteppedOperator(operator.cluster)
    other.list()
    for process in (other, operator):
        process.reconcile()
    (pod,) = operator.cluster.pods()
    assert [known.uid for known in operator.cache.pods_of("node-1")] == [pod["metadata"]["uid"]]
    operator.end_run()
    assert [number for _, number, _ in operator.cluster.judged] == [1]


def test_only_the_very_pod_that_was_judged_is_deleted(operator: SteppedOperator) -> None:
    pod = ended(operator)

    def replaced(verb: str, path: str) -> None:
        name = pod["metadata"]["name"]
        if verb == "PATCH" and path.startswith(REPORTS) and name in operator.cluster.objects[PODS]:
            operator.cluster.remove(PODS, name)
            operator.cluster.create(PODS, {"metadata": {"name": name}, "spec": {}})

    operator.client.answered = replaced
    operator.reconcile()
    assert [p["metadata"]["uid"] for p in operator.cluster.pods()] != [pod["metadata"]["uid"]]
    assert len(operator.cluster.objects[PODS]) == 1
    assert operator.cache.pods_of("node-1") == ()


def test_a_foreign_write_between_decision_and_patch_survives(operator: SteppedOperator) -> None:
    strangers = iter([{"foreign": "1"}, {"foreign": "2", "team": None}])

    def race(verb: str, path: str) -> KubeError | None:
        labels = next(strangers, None) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
        if labels:
            operator.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})
        return None

    operator.client.refuse = race
    operator.run()
    assert operator.labels["foreign"] == "2"
    assert "team" not in operator.labels
    assert operator.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_report_that_is_deleted_before_its_write_begins_anew(operator: SteppedOperator) -> None:
    deleted: list[str] = []

    def race(verb: str, path: str) -> KubeError | None:
        if verb == "PATCH" and path.startswith(REPORTS) and not deleted:
            deleted.append(path)
            operator.cluster.remove(REPORTS, "node-1")
        return None

    operator.client.refuse = race
    operator.run()
    assert deleted
    operator.run()
    assert operator.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_condition_is_for_this_node_and_no_later_one_of_its_name(operator: SteppedOperator) -> None:
    operator.run()
    node = operator.cache.nodes["node-1"]
    later = replace(node, uid="of-a-node-before")
    for known, refused in ((later, pytest.raises(Conflict)), (node, contextlib.nullcontext())):
        with refused:
            drive(patch_condition(operator.client, known, node.condition))


def test_the_condition_s_transition_time_moves_with_its_status_only(operator: SteppedOperator) -> None:
    """Kubernetes' rule: another message is no transition."""

    def condition() -> Body:
        return operator.cluster.objects[NODES]["node-1"]["status"]["conditions"][-1]

    operator.run()
    mark = condition()["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    operator.list()
    other, message = made.with_gpu(made.titan(), 0, name="NVIDIA TITAN RTX 2"), condition()["message"]
    for result in (other, *[made.with_pair(other, 0, 1, read=1)] * 2):
        operator.cluster.results["node-1"] = result
        operator.cluster.pass_time(INTERVAL)
        operator.run()
        assert condition()["message"] != message
        assert (condition()["lastTransitionTime"] == mark) is (condition()["status"] == "True")
    assert condition()["status"] == "False"


def test_a_suspect_is_gone_only_when_the_api_says_so(operator: SteppedOperator) -> None:
    """A deletion seen on a watch may be a lost label or a new machine."""
    operator.run()
    operator.cache.suspects.add("node-1")
    operator.refuse("GET", NODE, unavailable())
    with pytest.raises(Unavailable):
        operator.reconcile()
    assert operator.cache.suspects == {"node-1"} == set(operator.cache.nodes)
    operator.heal()
    operator.reconcile()
    assert "node-1" in operator.cache.nodes
    assert operator.labels[names.LABEL_HEALTH] == "pass"
    operator.cluster.remove(NODES, "node-1")
    operator.deliver()
    assert "node-1" in operator.cache.nodes
    operator.reconcile()
    assert operator.cache.known_names() == set()


def test_a_node_that_leaves_the_selection_is_let_go_and_taken_again() -> None:
    """Behind a server-side selector a lost label arrives as DELETED: what we hold comes off."""
    cluster = FakeCluster()
    cluster.add_node(gpu="true")
    cluster.add_policy()
    operator = SteppedOperator(cluster, selector="gpu=true")
    operator.list()
    operator.run()

    def seen(gpu: str, kind: str) -> None:
        cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": gpu}}})
        operator.inbox[:] = [(NODES, kind, cluster.get(NODES, "node-1"))]
        operator.deliver()
        operator.reconcile()

    seen("false", "DELETED")
    cluster.pass_time(600)
    operator.reconcile()
    assert operator.labels == {"kubernetes.io/hostname": "node-1", "gpu": "false"}
    assert cluster.objects[REPORTS] == {}
    assert operator.cache.known_names() == set()
    seen("true", "ADDED")
    assert [pod["metadata"]["labels"][names.POD_PROBE] for pod in cluster.pods()] == ["health"]


def test_a_crd_that_is_missing_is_said_and_loses_nothing(operator: SteppedOperator) -> None:
    """A 404 on the resource itself is no deleted object."""
    missing = NotFound("the server could not find the requested resource", status=404)
    operator.client.refuse = lambda verb, path: missing if path.startswith(REPORTS) else None
    with pytest.raises(NotFound):
        operator.reconcile()
    assert list(operator.cluster.pods()) == []


POST = 'failed calling webhook "pods.example.com": failed to call webhook: Post "https://hook.x.svc:443/": '
CAUSES = ["context deadline exceeded", "dial tcp 10.0.0.1:443: connect: connection refused", "EOF"]
NODE, REPORT = f"{NODES}/node-1", f"{REPORTS}/node-1/status"


def failed(cause: str = CAUSES[0]) -> KubeError:
    """As the API server says it."""
    return error_of(500, "InternalError", f"POST {PODS}: Internal error occurred: {POST}{cause}")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        *((failed(cause), f"pods.example.com.*{cause}") for cause in CAUSES),
        (Forbidden("exceeded quota: gpu"), "quota"),
        (Refused("admission webhook denied"), "denied"),
    ],
)
def test_a_refused_pod_is_told_and_backs_off(operator: SteppedOperator, error: KubeError, text: str) -> None:
    operator.refuse("POST", PODS, error)
    result = operator.reconcile()
    last = operator.probe["lastRun"]
    assert (last["outcome"], last["reason"]) == ("unknown", "CreateRefused")
    assert re.search(text, last["message"])
    assert any(re.search(text, message) for _, message in operator.events)
    assert operator.runs_counted() == 1
    (refused,) = operator.reconciler.gate_budget.counters.refused("default").values()
    assert re.search(text, refused), "the policy's condition RunsKeepUp says it"
    assert (result.waits, names.LABEL_HEALTH in operator.labels) == ({}, False)
    assert result.wake_at == operator.cluster.now + 30
    operator.heal()
    operator.cluster.pass_time(MINUTE)
    operator.run()
    assert operator.probe["lastRun"]["outcome"] == "read"


def test_a_webhook_that_stops_the_report_loses_no_result(operator: SteppedOperator) -> None:
    ended(operator)
    operator.refuse("PATCH", REPORT, failed())
    with pytest.raises(WebhookFailed):
        operator.reconcile()
    operator.heal()
    operator.reconcile()
    assert operator.probe["lastRun"]["outcome"] == "read"


def test_a_hanging_webhook_is_given_up_by_the_api_server_first(operator: SteppedOperator) -> None:
    """It can say which webhook it waited for; our own timeout could not."""
    calls, take = list[Call](), operator.client.take

    async def noting(call: Call) -> Body:
        calls.append(call)
        return await take(call)

    operator.client.take = noting  # type: ignore[method-assign]
    operator.reconcile()
    asked = [call.query["timeout"] for call in calls if (call.method, call.path) == ("POST", PODS)]
    assert asked == [f"{CREATE_SECONDS}s"]
    assert CREATE_SECONDS < CALL_TIMEOUT


def test_a_conflict_at_a_delete_is_no_end_of_the_pod(operator: SteppedOperator) -> None:
    """Only another UID under its name says that it is gone; it is deleted later, and remembered."""
    name = ended(operator)["metadata"]["name"]
    operator.refuse("DELETE", f"{PODS}/{name}", error_of(409, "Conflict", "the object has been modified"))
    with pytest.raises(Unavailable, match="modified"):
        operator.reconcile()
    assert [known.name for known in operator.cache.pods_of("node-1")] == [name]
    operator.heal()
    operator.reconcile()
    assert list(operator.cluster.pods()) == []


def test_a_conflict_at_a_report_s_delete_is_no_end_of_the_report(operator: SteppedOperator) -> None:
    operator.run()
    operator.cluster.objects[REPORTS]["node-1"]["metadata"]["ownerReferences"][0]["uid"] = "before"
    operator.restart()
    operator.refuse("DELETE", f"{REPORTS}/node-1", error_of(409, "Conflict", "the object has been modified"))
    with pytest.raises(Unavailable, match="modified"):
        operator.reconcile()
    assert "node-1" in operator.cache.reports
    operator.heal()
    operator.run()
    assert operator.probe["lastRun"]["number"] == 1


@pytest.mark.parametrize("error", [Refused("denied by webhook x"), Forbidden("denied by policy x"), failed()])
def test_a_refused_node_patch_is_in_the_report(operator: SteppedOperator, error: KubeError) -> None:
    """An admission webhook that denies our label costs the label, not the policy's only slot."""
    operator.refuse("PATCH", NODE, error)
    operator.run()
    assert not list(operator.cluster.pods())
    assert names.LABEL_INTERCONNECT not in operator.labels
    assert str(error) in operator.status["desired"]["refusal"]
    operator.cluster.pass_time(INTERVAL)
    operator.run()
    assert operator.status["probes"][0]["lastRun"]["number"] == 2
    operator.heal()
    operator.cluster.pass_time(MINUTE)
    operator.catch_up()
    assert operator.labels[names.LABEL_INTERCONNECT] == "nvlink"
    assert not operator.status["desired"].get("refusal")


@pytest.mark.parametrize(
    ("path", "what"), [(NODE, r"PatchNode \(nodegauge.dev/.*\)"), (REPORT, r"PatchReport \(.*, probes, .*\)")]
)
def test_writes_that_do_not_end_name_the_last_one(operator: SteppedOperator, path: str, what: str) -> None:
    ended(operator)
    operator.refuse("PATCH", path, Conflict("changed", status=409))
    with pytest.raises(KubeError, match=f"still not reconciled after 24 writes; the last: {what}"):
        operator.reconcile()
    state = operator.reconciler.obstacles.state("default")
    assert state[:2] == ("False", names.PolicyReason.WRITE_REFUSED)
    operator.heal()
    operator.reconcile()
    assert not operator.reconciler.obstacles.counts("default")


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500])
@pytest.mark.parametrize("who", ['webhook "x" denied the request', "'p' with binding 'b' denied request"])
def test_a_denial_at_admission_is_a_refusal_with_any_status(status: int, who: str) -> None:
    """A webhook chooses it; an outage of 500s and a conflict say nothing of a denial."""
    assert type(error_of(status, "", f"admission {who}: no")) is Refused
    assert type(error_of(status, "", "no")) not in (Refused, WebhookFailed) or status == 400


def test_only_the_very_report_that_is_over_is_deleted(operator: SteppedOperator) -> None:
    operator.run()
    old = operator.cache.reports["node-1"]
    operator.cluster.remove(NODES, "node-1")
    operator.cluster.add_node(boot="boot-2")
    other = SteppedOperator(operator.cluster)
    other.list()
    other.reconcile()
    operator.inbox[:] = [event for event in operator.inbox if event[0] == NODES]
    operator.deliver()
    assert operator.cache.reports["node-1"] == old
    kept = operator.cluster.get(REPORTS, "node-1")["metadata"]["uid"]
    operator.reconcile()
    assert operator.cluster.get(REPORTS, "node-1")["metadata"]["uid"] == kept != old.uid
    assert set(operator.cluster.created.values()) == {1}


def test_only_the_very_reading_of_a_node_that_is_gone_is_deleted(operator: SteppedOperator) -> None:
    operator.run()
    operator.cluster.remove(NODES, "node-1")
    operator.deliver()
    body = operator.cluster.get(READINGS, "node-1")
    operator.cluster.remove(READINGS, "node-1")
    operator.cluster.create(READINGS, {"metadata": {"name": "node-1"}, "health": body["health"]})
    operator.reconcile()
    assert list(operator.cluster.objects[READINGS]) == ["node-1"]


def label(operator: SteppedOperator, **labels: str | None) -> None:
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})


def reasons(operator: SteppedOperator) -> list[str]:
    return [reason for reason, _ in operator.events]


CAPPED = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)


def test_a_finding_whose_event_found_no_answer_is_not_lost_to_a_conflict(operator: SteppedOperator) -> None:
    operator.run_all()
    operator.cluster.results["node-1"] = made.with_gpu(made.titan(), 0, power=CAPPED)
    operator.refuse("POST", EVENTS, unavailable())
    operator.run_all(after=INTERVAL)
    assert not operator.cluster.objects[PODS], "an event that waits holds no pod up"
    operator.heal()
    label(operator, interconnect="infiniband")
    operator.catch_up(granted=False)
    assert reasons(operator) == ["Validated", "Warnings", "LabelConflict"]


def test_staleness_and_a_conflict_are_told_once_and_kubectl_describe_shows_events_in_their_order(
    operator: SteppedOperator,
) -> None:
    """kubectl sorts by `lastTimestamp` alone, which events.k8s.io/v1 refuses."""
    operator.run_all()
    operator.cluster.pass_time(INTERVAL)
    label(operator, interconnect="infiniband")
    operator.catch_up(granted=False)
    operator.cluster.result = lambda pod: "garbage"  # type: ignore[method-assign]
    for _ in range(12):
        operator.run_all(after=STALE / 4)
    assert reasons(operator) == ["Validated", "LabelConflict", "ProbeFailed", "Stale"]
    conflict = operator.events[1][1]
    assert "interconnect=infiniband" in conflict
    assert "takeOver" in conflict
    posted = list(operator.cluster.objects[EVENTS].values())
    times = [body["lastTimestamp"] for body in posted]
    assert times == sorted(set(times))
    assert [body["firstTimestamp"] for body in posted] == times
    assert [body["eventTime"][:19] + "Z" for body in posted] == times
    assert {(body["apiVersion"], body["count"]) for body in posted} == {("v1", 1)}


def test_an_event_shows_only_what_changed(operator: SteppedOperator) -> None:
    """Another verdict with the same interconnect: "nvlink 50 GB/s -> nvlink 50 GB/s" is no news."""
    operator.run_all()
    for changed in (made.with_gpu(made.titan(), 0, power=CAPPED), made.with_pair(made.titan(), 0, 1, read=1)):
        operator.cluster.results["node-1"] = changed
        operator.run_all(after=INTERVAL)
    (_, warned, refused) = [message for _, message in operator.events]
    assert "->" not in warned
    assert "Interconnect: nvlink 50 GB/s -> none" in refused


def change_policy(operator: SteppedOperator, spec: Body) -> None:
    generation = operator.cluster.objects[POLICIES]["default"]["metadata"]["generation"] + 1
    operator.cluster.change(POLICIES, "default", {"metadata": {"generation": generation}, "spec": spec})
    operator.catch_up(granted=False)


def released(operator: SteppedOperator) -> list[str]:
    return [message for reason, message in operator.events if reason == "Released"]


def test_a_mode_that_strips_a_node_says_so_each_time(operator: SteppedOperator) -> None:
    operator.run_all()
    for _ in range(2):
        change_policy(operator, {"mode": "Observe"})
        operator.catch_up(granted=False)
        assert "nodegauge.dev/health" not in operator.labels
        change_policy(operator, {"mode": "Enforce"})
    first, _ = released(operator)
    for part in ("mode Observe", "label nodegauge.dev/health=pass", "condition GPUValidated"):
        assert part in first


def test_a_node_that_no_policy_selects_any_more_says_what_it_lost(operator: SteppedOperator) -> None:
    operator.run_all()
    change_policy(operator, {"nodeSelector": {"matchLabels": {"gpu": "none"}}})
    operator.cluster.pass_time(700)
    operator.catch_up(granted=False)
    assert not operator.cluster.objects[REPORTS]
    operator.restart()
    operator.catch_up(granted=False)
    (message,) = released(operator)
    assert "no policy selects this node any more (it followed default)" in message
    assert "label interconnect=nvlink" in message


def test_a_new_report_owes_nothing_to_the_reading_of_the_one_before(operator: SteppedOperator) -> None:
    operator.run_all()
    operator.cluster.remove(REPORTS, "node-1")
    operator.catch_up(granted=False)
    assert "node-1" in operator.cluster.objects[READINGS]
    operator.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    operator.run_all()
    assert (operator.probe["lastRun"]["number"], operator.probe["verdict"]) == (1, "fail")
