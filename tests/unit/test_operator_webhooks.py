"""A webhook that fails or hangs is named where people look; a conflict at a delete is no end of a pod."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.client import CALL_TIMEOUT
from nodegauge_operator.kube.errors import KubeError, Unavailable, WebhookFailed, error_of
from nodegauge_operator.kube.pods import CREATE_SECONDS
from support.api_server import EVENTS, NODES, PODS, REPORTS
from support.objects import INTERVAL, MINUTE
from support.operator import SteppedOperator, one_node

POST = 'failed calling webhook "pods.example.com": failed to call webhook: Post "https://hook.x.svc:443/": '
CAUSES = ["context deadline exceeded", "dial tcp 10.0.0.1:443: connect: connection refused", "EOF"]
NODE = f"{NODES}/node-1"
REPORT = f"{REPORTS}/node-1/status"


def failed(cause: str = CAUSES[0]) -> KubeError:
    """As the API server says it."""
    return error_of(500, "InternalError", f"POST {PODS}: Internal error occurred: {POST}{cause}")


@pytest.fixture
def operator() -> SteppedOperator:
    """Everything there, nothing run."""
    return one_node()


@pytest.mark.parametrize("cause", CAUSES)
def test_a_webhook_that_stops_probe_pods_is_in_report_and_event(
    operator: SteppedOperator, cause: str
) -> None:
    """The run is one without a result, with the API server's words; the next try backs off."""
    operator.refuse("POST", PODS, failed(cause))
    result = operator.reconcile()
    last = operator.probe["lastRun"]
    assert (last["outcome"], last["reason"]) == ("unknown", "CreateRefused")
    assert "pods.example.com" in last["message"]
    assert cause in last["message"]
    assert any("pods.example.com" in body["message"] for body in operator.cluster.objects[EVENTS].values())
    assert result.wake_at == operator.cluster.now + 30
    operator.heal()
    operator.cluster.pass_time(MINUTE)
    operator.run()
    assert operator.probe["lastRun"]["outcome"] == "read"


def test_a_webhook_that_stops_node_patches_stops_no_run(operator: SteppedOperator) -> None:
    """Its words stand in the report, the pod goes, and the next run is made."""
    operator.refuse("PATCH", NODE, failed())
    operator.run()
    assert "pods.example.com" in operator.status["desired"]["refusal"]
    assert list(operator.cluster.pods()) == []
    operator.cluster.pass_time(INTERVAL)
    operator.run()
    assert operator.probe["lastRun"]["number"] == 2
    operator.heal()
    operator.cluster.pass_time(MINUTE)
    operator.catch_up()
    assert operator.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_webhook_that_stops_the_report_loses_no_result(operator: SteppedOperator) -> None:
    """The same write may succeed in a moment: the reading waits, and is not turned into a failed run."""
    operator.reconcile()
    operator.cluster.kubelets()
    operator.deliver()
    operator.refuse("PATCH", REPORT, failed())
    with pytest.raises(WebhookFailed):
        operator.reconcile()
    operator.heal()
    operator.reconcile()
    assert operator.probe["lastRun"]["outcome"] == "read"


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_api_server_that_is_away_is_no_webhook(operator: SteppedOperator, status: int) -> None:
    """An outage is waited out: it makes no failed run of every node."""
    error = error_of(status, "", "etcdserver: request timed out")
    assert not isinstance(error, WebhookFailed)
    operator.refuse("POST", PODS, error)
    with pytest.raises(Unavailable):
        operator.reconcile()
    assert operator.cluster.objects[REPORTS]["node-1"].get("status", {}).get("probes", []) == []


def test_a_hanging_webhook_is_given_up_by_the_api_server_first(operator: SteppedOperator) -> None:
    """It can say which webhook it waited for; our own timeout could not."""
    asked: list[str] = []
    call = operator.client.call

    async def noting(method: str, path: str, **how: object) -> object:
        if (method, path) == ("POST", PODS):
            asked.append(how["query"]["timeout"])  # type: ignore[index]
        return await call(method, path, **how)  # type: ignore[arg-type]

    operator.client.call = noting  # type: ignore[method-assign,assignment]
    operator.reconcile()
    assert asked == [f"{CREATE_SECONDS}s"]
    assert CREATE_SECONDS < CALL_TIMEOUT


@pytest.mark.parametrize("replaced", [True, False])
def test_a_conflict_at_a_delete_is_no_end_of_the_pod(operator: SteppedOperator, replaced: bool) -> None:
    """Only another UID under its name says that it is gone; else it is deleted later, and remembered."""
    operator.reconcile()
    operator.cluster.kubelets()
    operator.deliver()
    [pod] = operator.cluster.pods()
    name = pod["metadata"]["name"]

    def refuse(verb: str, path: str) -> KubeError | None:
        if (verb, path) != ("DELETE", f"{PODS}/{name}"):
            return None
        if replaced:
            operator.cluster.objects[PODS][name]["metadata"]["uid"] = "another"
        return error_of(409, "Conflict", "the object has been modified")

    operator.client.refuse = refuse
    if replaced:
        operator.reconcile()
        assert operator.cache.pods_of("node-1") == ()
        return
    with pytest.raises(Unavailable, match="modified"):
        operator.reconcile()
    assert [known.name for known in operator.cache.pods_of("node-1")] == [name]
    operator.heal()
    operator.reconcile()
    assert list(operator.cluster.pods()) == []


def test_a_conflict_at_a_report_s_delete_is_no_end_of_the_report(operator: SteppedOperator) -> None:
    """It belonged to an earlier node of this name: it goes later, and no second one is made meanwhile."""
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
