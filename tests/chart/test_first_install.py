"""The first install, also where the API server is late: the policy is written, or its fault is named.

Helm and the chart's pods reach the API server through a fault proxy; there is no kubelet (`chart_pods`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.chart_cluster import PLACES, clear, eventually, install, left_behind, policies, upgrade
from support.chart_pods import ChartPods
from support.chart_tools import NAMESPACE, Helm, HelmFailed, Object
from testbed.controlplane import ControlPlane
from testbed.proxy import FaultProxy
from testbed.proxy_rules import Refuse, Replace, RequestInfo, ResponseInfo, When
from testbed.rest import Rest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

GROUP = "nodegauge.dev"
LATE_SECONDS = 6.0
"""Longer than Helm takes for everything else."""


class Late:
    """An API server that serves a new CRD only seconds after it was created, in discovery and in fact."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._until = 0.0
        self.hidden = proxy.on(path="^/apis$", when=When.AFTER, times=None, do=self._hide)
        self.refused = proxy.on(path=f"^/apis/{GROUP}(/|$)", times=None, do=self._refuse)
        proxy.on(path=r"customresourcedefinitions", method="PATCH", when=When.AFTER, do=self._begin)

    def _begin(self, _request: RequestInfo, _response: ResponseInfo | None) -> None:
        self._until = time.monotonic() + LATE_SECONDS

    def _hide(self, _request: RequestInfo, response: ResponseInfo | None) -> Replace | None:
        assert response is not None
        if time.monotonic() > self._until:
            return None
        found = response.json()
        for key in {"items", "groups"} & found.keys():  # aggregated discovery, and the old form
            found[key] = [one for one in found[key] if GROUP not in (one.get("name"), one_name(one))]
        return Replace(json.dumps(found).encode())

    def _refuse(self, _request: RequestInfo, _response: ResponseInfo | None) -> Refuse | None:
        if time.monotonic() > self._until:
            return None
        words = "the server could not find the requested resource"
        return Refuse(status=404, reason="NotFound", message=words)


def one_name(group: Object) -> str:
    """A group's name in aggregated discovery."""
    return str(group.get("metadata", {}).get("name", ""))


@pytest.fixture
def proxy(empty_plane: ControlPlane) -> Iterator[FaultProxy]:
    """A way to the API server on which things go wrong."""
    with FaultProxy(empty_plane) as proxy:
        yield proxy


def test_a_late_crd_does_not_stop_the_install(
    helm: Helm, empty_plane: ControlPlane, proxy: FaultProxy, tmp_path: Path
) -> None:
    """One `helm install` is enough where the API server serves the CRD only seconds after Helm made it."""
    late = Late(proxy)
    on_cluster = replace(helm, kubeconfig=proxy.kubeconfig())
    with ChartPods(empty_plane, directory=tmp_path, server=proxy.server) as running:
        install(on_cluster)
        assert late.hidden.fired, "Helm never looked"
        assert late.refused.fired, "the CRD was served at once"
        assert "not yet: " in running.ran["policy-writer"]
        assert "written" in running.ran["policy-writer"]
        assert set(policies(empty_plane.rest())) == {"default"}
        clear(on_cluster, empty_plane.rest())


def test_the_writer_leaves_nothing(cluster: Helm, rest: Rest) -> None:
    """Job, account and rights that wrote the first policy are gone when `helm install` returns."""
    install(cluster)
    assert [name for kind, name in left_behind(rest) if name.endswith("-policy")] == []
    eventually(lambda: rest.get(PLACES["Job"].format(NAMESPACE))["items"] == [])


def test_a_bad_first_policy_is_named(cluster: Helm, rest: Rest, chart_pods: ChartPods) -> None:
    """What only CEL sees fails the install; the pod's last words name the field, an upgrade mends it."""
    bad: Object = {"policy": {"spec": {"probes": {"health": {"interval": "10s"}}}}}
    began = time.monotonic()
    with pytest.raises(HelmFailed, match="ng-nodegauge-policy"):
        install(cluster, bad)
    assert time.monotonic() - began < 60, "Helm waited for its timeout"
    assert "spec.probes.health.deadline" in chart_pods.ran["policy-writer"]
    (pod,) = [
        p for p in rest.get(PLACES["Pod"].format(NAMESPACE))["items"] if "policy" in p["metadata"]["name"]
    ]
    (status,) = pod["status"]["containerStatuses"]
    assert "spec.probes.health.deadline" in status["state"]["terminated"]["message"]
    assert policies(rest) == {}
    upgrade(cluster)
    assert set(policies(rest)) == {"default"}


def test_what_the_writer_wrote_is_helms(cluster: Helm, rest: Rest) -> None:
    """A field of the first values that later values no longer name goes back to the CRD's default."""
    install(cluster, {"policy": {"spec": {"mode": "Observe"}}})
    before = policies(rest)["default"]
    assert before["spec"]["mode"] == "Observe"
    for values in ({"policy": {"spec": {"priority": 7}}}, {}):
        upgrade(cluster, values)
    after = policies(rest)["default"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (after["spec"]["mode"], after["spec"].get("priority")) == ("Enforce", 0)


def test_awkward_texts_arrive(cluster: Helm, rest: Rest) -> None:
    """Quotes, dollars and what looks like a container's variable arrive in the first policy as written."""
    annotations = {"example.com/json": '{"a": "<b> & $(HOME) $$ \'c\' \\"d\\""}'}
    install(cluster, {"policy": {"spec": {"podTemplate": {"annotations": annotations}}}})
    assert policies(rest)["default"]["spec"]["podTemplate"]["annotations"] == annotations
