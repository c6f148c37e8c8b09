"""The chart on a real API server: one install on an empty cluster, upgrades that keep, uninstalls that clean.

There is no kubelet here: hooks are run by `chart_pods`, the operator is not.  The objects are looked at, and
what the API server makes of them.
"""

from __future__ import annotations

import itertools

import pytest

from support.chart_cluster import (
    CRDS,
    PLACES,
    POLICIES,
    eventually,
    install,
    installed_crds,
    is_served,
    left_behind,
    policies,
    upgrade,
)
from support.chart_pods import ChartPods
from support.chart_tools import (
    ALL,
    CHART,
    KNOWN,
    NAMESPACE,
    RELEASE,
    VARIANTS,
    Helm,
    HelmFailed,
    Object,
    events,
)
from testbed.errors import ApiError
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

NO_JOB: Object = {"cleanup": {"enabled": False}}
"""Values for an uninstall with hooks where no kubelet runs the clean-up's Job."""


def test_one_install_is_enough(cluster: Helm, rest: Rest) -> None:
    """On an empty cluster one `helm install` makes everything that the chart renders, the policy included."""
    words = install(cluster)
    assert "kubectl get nodes -L interconnect" in words
    assert "kubectl get nodereports" in words
    wanted = {(o["kind"], o["metadata"]["name"]) for o in cluster.objects({}, *KNOWN) if not events(o)}
    assert wanted == left_behind(rest)
    spec = policies(rest)["default"]["spec"]
    assert spec["nodeSelector"] == {"matchLabels": {"nvidia.com/gpu.present": "true"}}
    assert spec["probes"]["health"]["interval"] == "15m"


def test_api_server_takes_every_object(cluster: Helm, rest: Rest) -> None:
    """The API server takes each object of each set of values, unknown fields refused (but ServiceMonitor)."""
    install(cluster)
    for variant, values in VARIANTS.items():
        rendered = [cluster.objects(values, *options, release="other") for options in ((), KNOWN)]
        for o in itertools.chain(*rendered):
            if o["kind"] in ("ServiceMonitor", "CustomResourceDefinition"):
                continue
            if o["kind"] == "Pod":
                o["spec"]["serviceAccountName"] = "default"  # a dry run makes no account for it
            body = o | {"metadata": o["metadata"] | {"name": f"try-{o['metadata']['name']}"}}
            place = PLACES[o["kind"]].format(o["metadata"].get("namespace", ""))
            made = rest.create(f"{place}?dryRun=All&fieldValidation=Strict", body)
            assert made["metadata"]["name"] == body["metadata"]["name"], variant


def test_pods_pass_pod_security(cluster: Helm, rest: Rest) -> None:
    """Pods of operator, clean-up and test are admitted where Pod Security enforces `restricted`."""
    for o in cluster.objects():
        if o["kind"] in ("Deployment", "Job", "Pod"):
            pod = o if o["kind"] == "Pod" else o["spec"]["template"]
            pod["metadata"]["name"] = "try"
            pod["spec"]["serviceAccountName"] = "default"
            rest.create(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    pod["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(ApiError, match="violates PodSecurity"):
        rest.create(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)


def test_upgrade_keeps_what_people_set(cluster: Helm, rest: Rest) -> None:
    """An upgrade brings changed values into the policy, keeps it, and keeps what people set beside them."""
    install(cluster)
    before = policies(rest)["default"]["metadata"]["uid"]
    rest.patch(f"{POLICIES}/default", {"spec": {"mode": "Observe"}})
    for interval in ("5m", "6m"):
        upgrade(cluster, {"policy": {"spec": {"probes": {"health": {"interval": interval}}}}})
        policy = policies(rest)["default"]
        assert policy["metadata"]["uid"] == before
        assert policy["spec"]["mode"] == "Observe"
        assert policy["spec"]["probes"]["health"]["interval"] == interval


def test_rollback_keeps_the_policy(cluster: Helm, rest: Rest) -> None:
    """A rollback to the first revision, which does not hold the policy, never takes it away."""
    install(cluster)
    before = policies(rest)["default"]["metadata"]["uid"]
    upgrade(cluster)
    cluster.run("rollback", RELEASE, "1", "--namespace", NAMESPACE)
    assert policies(rest)["default"]["metadata"]["uid"] == before


@pytest.mark.parametrize("policy", [{"create": False}, {"name": "other"}], ids=["left out", "renamed"])
def test_upgrade_removes_what_values_no_longer_name(cluster: Helm, rest: Rest, policy: Object) -> None:
    """A policy that the values no longer name goes; one that somebody else made stays."""
    install(cluster)
    upgrade(cluster)
    foreign = {
        "apiVersion": "nodegauge.dev/v1alpha1",
        "kind": "GPUValidationPolicy",
        "spec": {"nodeSelector": {}},
    }
    rest.create(POLICIES, foreign | {"metadata": {"name": "foreign"}})
    upgrade(cluster, {"policy": policy})
    assert set(policies(rest)) == {"foreign"} | ({policy["name"]} if "name" in policy else set())


def test_bad_policy_stops_an_upgrade(cluster: Helm, rest: Rest) -> None:
    """What only CEL sees fails the upgrade with the field named, and the policy stays as it was."""
    install(cluster)
    with pytest.raises(HelmFailed, match=r"spec\.probes\.health\.deadline"):
        upgrade(cluster, {"policy": {"spec": {"probes": {"health": {"interval": "10s"}}}}})
    assert policies(rest)["default"]["spec"]["probes"]["health"]["interval"] == "15m"


def test_upgrade_upgrades_the_crds(cluster: Helm, rest: Rest) -> None:
    """`helm upgrade` mends a CRD that is not the chart's."""
    install(cluster)
    name = "nodereports.nodegauge.dev"
    rest.patch(f"{CRDS}/{name}", {"spec": {"names": {"categories": []}}})
    assert not rest.get(f"{CRDS}/{name}")["spec"]["names"].get("categories")
    cluster.run("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--force-conflicts")
    assert rest.get(f"{CRDS}/{name}")["spec"]["names"]["categories"] == ["nodegauge"]


@pytest.mark.parametrize("upgrades", [0, 1])
@pytest.mark.parametrize("keep", [True, False], ids=["keep", "remove"])
def test_uninstall_leaves_what_keep_says(cluster: Helm, rest: Rest, keep: bool, upgrades: int) -> None:
    """An uninstall leaves the CRDs with `crds.keep`, nothing without; never a policy of the chart's."""
    values = NO_JOB | {"crds": {"keep": keep}}
    install(cluster, values)
    for _ in range(upgrades):
        upgrade(cluster, values)
    cluster.run("uninstall", RELEASE, "--namespace", NAMESPACE)
    kept = set(itertools.product(["CustomResourceDefinition"], installed_crds(rest))) if keep else set()
    assert len(kept) == (2 if keep else 0)
    eventually(lambda: left_behind(rest) == kept)


def test_uninstall_does_not_need_the_crds(cluster: Helm, rest: Rest, chart_pods: ChartPods) -> None:
    """Where somebody has removed the CRDs before, the clean-up's Job still runs, and nothing stops Helm."""
    install(cluster)
    upgrade(cluster)
    for name in installed_crds(rest):
        rest.delete(f"{CRDS}/{name}")
    eventually(lambda: not installed_crds(rest) and not is_served(rest))
    cluster.run("uninstall", RELEASE, "--namespace", NAMESPACE)
    assert "reports: gone already" in chart_pods.ran["cleanup"]
    eventually(lambda: left_behind(rest) == set())


def test_uninstall_without_hooks_keeps_the_objects_of_kept_crds(cluster: Helm, rest: Rest) -> None:
    """Without hooks only the kept CRDs and their policy stay, and the next install takes both over."""
    install(cluster)
    cluster.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks")
    assert {kind for kind, _ in left_behind(rest)} == {"CustomResourceDefinition", "GPUValidationPolicy"}
    before = policies(rest)["default"]["metadata"]["uid"]
    install(cluster)
    assert policies(rest)["default"]["metadata"]["uid"] == before


def test_upgrade_replaces_what_is_renamed(cluster: Helm, rest: Rest) -> None:
    """A release can go from the defaults to nearly every value set; objects under their old names go."""
    install(cluster)
    values = {key: value for key, value in ALL.items() if key not in ("fullnameOverride", "metrics", "crds")}
    upgrade(cluster, values)
    accounts = {name for kind, name in left_behind(rest) if kind == "ServiceAccount"}
    assert accounts == {"gauge-operator", "gauge-probe"}
    assert set(policies(rest)) == {"fleet"}
