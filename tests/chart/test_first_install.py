"""The first install creates the policy, even on a slow API server, or names what is wrong with it.

Helm and the chart's pods reach the API server through a fault proxy; there is no kubelet (`chart_pods`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.chart import PODS, ChartPods, Helm, HelmFailed, Object, clear, policies
from testbed.controlplane import ControlPlane
from testbed.proxy import FaultProxy, Refuse, Replace, RequestInfo, ResponseInfo, When
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

GROUP = "nodegauge.dev"
WRITES_TOO_EARLY = 2
"""So many writes of a policy come before the API server serves its CRD."""


class Late:
    """Makes the API server serve a new CRD only after the first writes of a policy, in discovery and in
    requests."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._too_early = WRITES_TOO_EARLY
        self.hidden = proxy.on(path="^/apis$", when=When.AFTER, times=None, do=self._hide)
        self.refused = proxy.on(path=f"^/apis/{GROUP}(/|$)", times=None, do=self._refuse)

    def _hide(self, _request: RequestInfo, response: ResponseInfo | None) -> Replace | None:
        if not self._too_early:
            return None
        groups = response.json()
        for key in {"items", "groups"} & groups.keys():  # aggregated discovery, and the old form
            names = [(one.get("name"), one.get("metadata", {}).get("name")) for one in groups[key]]
            groups[key] = [one for one, of in zip(groups[key], names, strict=True) if GROUP not in of]
        return Replace(json.dumps(groups).encode())

    def _refuse(self, request: RequestInfo, _response: ResponseInfo | None) -> Refuse | None:
        if not self._too_early:
            return None
        self._too_early -= request.method == "PATCH"
        message = "the server could not find the requested resource"
        return Refuse(status=404, reason="NotFound", message=message)


@pytest.fixture
def proxy(empty_plane: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy in front of the API server that injects faults."""
    with FaultProxy(empty_plane) as proxy:
        yield proxy


def test_the_install_waits_for_a_crd_that_is_served_late(
    helm: Helm, empty_plane: ControlPlane, proxy: FaultProxy, tmp_path: Path
) -> None:
    """One `helm install` is enough if the API server serves the CRD only after the first tries to use it."""
    late = Late(proxy)
    on_cluster = replace(helm, kubeconfig=proxy.kubeconfig())
    with ChartPods(empty_plane, directory=tmp_path, server=proxy.server) as running:
        on_cluster.install()
        assert late.hidden.fired, "Helm never looked"
        assert late.refused.fired, "the CRD was served at once"
        assert "not yet: " in running.output["policy-writer"]
        assert "written" in running.output["policy-writer"]
        assert set(policies(empty_plane.rest())) == {"default"}
        clear(on_cluster, empty_plane.rest())


def test_an_invalid_first_policy_fails_the_install(cluster: Helm, rest: Rest, chart_pods: ChartPods) -> None:
    """A policy that CEL refuses fails the install long before Helm's timeout; the pod names the field, and an
    upgrade repairs it."""
    bad: Object = {"policy": {"spec": {"probes": {"health": {"interval": "10s"}}}}}
    with pytest.raises(HelmFailed, match="ng-nodegauge-policy"):
        cluster.install(bad)
    assert "spec.probes.health.deadline" in chart_pods.output["policy-writer"]
    (pod,) = [p for p in rest.get(PODS)["items"] if "policy" in p["metadata"]["name"]]
    (status,) = pod["status"]["containerStatuses"]
    assert "spec.probes.health.deadline" in status["state"]["terminated"]["message"]
    assert policies(rest) == {}
    cluster.upgrade()
    assert set(policies(rest)) == {"default"}


def test_helm_owns_the_first_policy(cluster: Helm, rest: Rest) -> None:
    """A field that later values no longer set gets the CRD's default again.  Quotes, dollar signs and
    variable references reach the first policy unchanged."""
    annotations = {"example.com/json": '{"a": "<b> & $(HOME) $$ \'c\' \\"d\\""}'}
    cluster.install({"policy": {"spec": {"mode": "Observe", "podTemplate": {"annotations": annotations}}}})
    before = policies(rest)["default"]
    assert (before["spec"]["mode"], before["spec"]["podTemplate"]["annotations"]) == ("Observe", annotations)
    for values in ({"policy": {"spec": {"priority": 7}}}, {}):
        cluster.upgrade(values)
    after = policies(rest)["default"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (after["spec"]["mode"], after["spec"].get("priority")) == ("Enforce", 0)
