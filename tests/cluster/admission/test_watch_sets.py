"""Who makes the DaemonSets of mode Watch, and what their pods may be."""

from collections.abc import Iterator

import pytest

from nodegauge_operator import names
from support.guarded import DAEMONSETS, PODS, Guarded, refusal
from testbed.rest import Object
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture
def made(guarded: Guarded) -> Iterator[Object]:
    """The DaemonSet on the cluster, with its pod."""
    body = guarded.operator.create(DAEMONSETS, guarded.daemon_set())
    path = f"{DAEMONSETS}/{body['metadata']['name']}"
    wait_for(lambda: watch_pods(guarded), what="the pod that the controller makes")
    yield body
    guarded.operator.delete(path)
    wait_for(lambda: not watch_pods(guarded), what="its pods gone")


def watch_pods(guarded: Guarded) -> list[Object]:
    items: list[Object] = guarded.admin.get(f"{PODS}?labelSelector={names.WATCH_SET}")["items"]
    for pod in items:
        if pod["metadata"].get("deletionTimestamp"):  # no kubelet confirms
            guarded.admin.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    return items


def test_the_operator_makes_only_daemonsets_of_probe_pods(guarded: Guarded) -> None:
    """Their template is held to what a pod must be (test_pods.py)."""
    weak, another = guarded.daemon_set(), guarded.daemon_set()
    weak["spec"]["template"]["spec"]["hostNetwork"] = True
    another["spec"]["template"]["metadata"]["labels"][names.POD_PROBE] = "health"
    another["spec"]["selector"]["matchLabels"].pop(names.POD_PROBE, None)
    for body, message in ((weak, "of the host"), (another, "makes only probe pods")):
        assert message in refusal(guarded.operator.create, f"{DAEMONSETS}?dryRun=All", body)


def test_only_the_operator_changes_its_daemonset(guarded: Guarded, made: Object) -> None:
    """Others may write labels and annotations on it."""
    path = f"{DAEMONSETS}/{made['metadata']['name']}"
    change = {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}
    bare = {"spec": {"template": {"metadata": {"labels": {names.POD_PROBE: None}}}}}
    for body in (change, bare):
        assert "only nodegauge makes DaemonSets" in refusal(guarded.admin.patch, path, body)
    guarded.admin.patch(path, {"metadata": {"annotations": {"a": "b"}}})
    guarded.operator.patch(f"{path}?dryRun=All", change)
