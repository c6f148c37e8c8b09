"""Upgrades keep what they should, uninstalls remove the rest: the chart on a real API server.

There is no kubelet: `chart_pods` runs the hooks' pods, and nothing runs the operator.
"""

from __future__ import annotations

import re

import pytest

from support.chart import (
    ALL,
    CRDS,
    POLICIES,
    ChartPods,
    Helm,
    HelmFailed,
    Object,
    installed_crds,
    is_served,
    left_behind,
    policies,
)
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

NO_JOB: Object = {"cleanup": {"enabled": False}}
"""Values for an uninstall whose hooks include no Job."""


def test_upgrades_and_rollbacks_keep_the_policy(cluster: Helm, rest: Rest) -> None:
    """An upgrade merges changed values into the policy and keeps fields that people have set.

    An upgrade with a policy that CEL refuses names the field and changes nothing.  A rollback to the first
    revision, which does not contain the policy, keeps it and gives it that revision's values.
    """
    cluster.install()
    before = policies(rest)["default"]["metadata"]["uid"]
    rest.patch(f"{POLICIES}/default", {"spec": {"mode": "Observe"}})
    for interval in ("5m", "6m"):
        cluster.upgrade({"policy": {"spec": {"probes": {"health": {"interval": interval}}}}})
        policy = policies(rest)["default"]
        assert policy["metadata"]["uid"] == before
        assert policy["spec"]["mode"] == "Observe"
        assert policy["spec"]["probes"]["health"]["interval"] == interval
    with pytest.raises(HelmFailed, match=r"spec\.probes\.health\.deadline"):
        cluster.upgrade({"policy": {"spec": {"probes": {"health": {"interval": "10s"}}}}})
    assert policies(rest)["default"]["spec"] == policy["spec"]
    cluster.release("rollback", "1")
    after = policies(rest)["default"]
    assert after["metadata"]["uid"] == before
    assert after["spec"]["probes"]["health"]["interval"] == "15m", "the first revision's"
    assert after["spec"]["mode"] == "Observe", "set by a person, and not by that revision"


def test_upgrade_deletes_a_policy_without_values(cluster: Helm, rest: Rest) -> None:
    """An upgrade deletes a policy that the values no longer name, renamed or left out, and keeps others'."""
    cluster.install()
    cluster.upgrade()
    kind = {"apiVersion": "nodegauge.dev/v1alpha1", "kind": "GPUValidationPolicy"}
    rest.create(POLICIES, kind | {"metadata": {"name": "foreign"}, "spec": {"nodeSelector": {}}})
    cluster.upgrade({"policy": {"name": "other"}})
    assert set(policies(rest)) == {"foreign", "other"}
    cluster.upgrade({"policy": {"create": False}})
    assert set(policies(rest)) == {"foreign"}


def test_upgrade_upgrades_the_crds(cluster: Helm, rest: Rest) -> None:
    """`helm upgrade` restores a CRD that was changed."""
    cluster.install()
    name = "nodereports.nodegauge.dev"
    rest.patch(f"{CRDS}/{name}", {"spec": {"names": {"categories": []}}})
    assert not rest.get(f"{CRDS}/{name}")["spec"]["names"].get("categories")
    cluster.release("upgrade", "--force-conflicts")
    assert rest.get(f"{CRDS}/{name}")["spec"]["names"]["categories"] == ["nodegauge"]


@pytest.mark.parametrize(
    ("values", "upgrades"),
    [(NO_JOB | {"crds": {"keep": True}}, 1), (NO_JOB | {"crds": {"keep": False}}, 0), ({}, 0)],
    ids=["keep", "remove", "clean-up"],
)
def test_uninstall_keeps_only_the_crds(cluster: Helm, rest: Rest, values: Object, upgrades: int) -> None:
    """An uninstall keeps the CRDs with `crds.keep`, and always deletes the chart's policy.

    What Helm prints as kept is what is left, also where the clean-up Job deletes the policy.
    """
    cluster.install(values)
    for _ in range(upgrades):
        cluster.upgrade(values)
    output = cluster.release("uninstall")
    keeps = values.get("crds", {"keep": True})["keep"]
    kept = {("CustomResourceDefinition", name) for name in installed_crds(rest) if keeps}
    assert len(kept) == (4 if keeps else 0)
    wait_for(lambda: left_behind(rest) == kept, what="only what Helm keeps")
    assert set(re.findall(r"^\[(\w+)\] (\S+)", output, re.MULTILINE)) == kept


def test_uninstall_works_without_the_crds(cluster: Helm, rest: Rest, chart_pods: ChartPods) -> None:
    """An uninstall after somebody has removed the CRDs still runs the clean-up Job and succeeds."""
    cluster.install()
    cluster.upgrade()
    for name in installed_crds(rest):
        rest.delete(f"{CRDS}/{name}")
    wait_for(lambda: not installed_crds(rest) and not is_served(rest), what="CRDs gone")
    cluster.release("uninstall")
    assert "reports: already gone" in chart_pods.output["cleanup"]
    wait_for(lambda: left_behind(rest) == set(), what="nothing left behind")


def test_uninstall_without_hooks_keeps_crds_and_policy(cluster: Helm, rest: Rest) -> None:
    """An uninstall without hooks keeps the CRDs and the policy, and the next install adopts both."""
    cluster.install()
    cluster.release("uninstall", "--no-hooks")
    assert {kind for kind, _ in left_behind(rest)} == {"CustomResourceDefinition", "GPUValidationPolicy"}
    before = policies(rest)["default"]["metadata"]["uid"]
    cluster.install()
    assert policies(rest)["default"]["metadata"]["uid"] == before


def test_upgrade_removes_renamed_objects(cluster: Helm, rest: Rest) -> None:
    """An upgrade from the defaults to nearly every value set removes objects with their old names."""
    cluster.install()
    values = {key: value for key, value in ALL.items() if key not in ("fullnameOverride", "metrics", "crds")}
    cluster.upgrade(values)
    accounts = {name for kind, name in left_behind(rest) if kind == "ServiceAccount"}
    assert accounts == {"gauge-operator", "gauge-probe", "ng-gauge-bmc"}
    assert set(policies(rest)) == {"fleet"}
