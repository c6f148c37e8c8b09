"""The admission policies come with an upgrade, go with a rollback, and belong to one release."""

from __future__ import annotations

import pytest

from support.chart import CHART, NAMESPACE, RELEASE, Helm, HelmFailed, Object, install, left_behind, upgrade
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

WITHOUT: Object = {"admissionPolicies": {"enabled": False}, "cleanup": {"enabled": False}}
WITH: Object = {"admissionPolicies": {"enabled": True}, "cleanup": {"enabled": False}}
SECOND: Object = {"crds": {"enabled": False}, "policy": {"create": False}}
"""A second release that does without everything that a cluster has once, but for the admission policies."""


def admission(rest: Rest) -> set[str]:
    """The names of the release's policies; each has its binding."""
    by_kind: dict[str, set[str]] = {}
    for kind, name in left_behind(rest):
        by_kind.setdefault(kind, set()).add(name)
    policies = by_kind.get("ValidatingAdmissionPolicy", set())
    assert by_kind.get("ValidatingAdmissionPolicyBinding", set()) == policies
    return policies


def test_they_come_with_an_upgrade_and_go_with_a_rollback_and_an_uninstall(cluster: Helm, rest: Rest) -> None:
    """A release of a version without them is upgraded, rolled back and removed as any other."""
    install(cluster, WITHOUT)
    assert admission(rest) == set()
    upgrade(cluster, WITH)
    there = admission(rest)
    assert len(there) == 8
    cluster.run("rollback", RELEASE, "1", "--namespace", NAMESPACE)
    assert admission(rest) == set()
    cluster.run("rollback", RELEASE, "2", "--namespace", NAMESPACE)
    assert admission(rest) == there
    cluster.run("uninstall", RELEASE, "--namespace", NAMESPACE)
    assert admission(rest) == set()


def test_a_second_release_is_refused_and_changes_none_of_them(cluster: Helm, rest: Rest) -> None:
    """Helm names the first release; with the value off, the second is installed and waits for the Lease."""
    install(cluster, WITH)
    there = admission(rest)
    where = ("two", str(CHART), "--namespace", "second", "--create-namespace", "--no-hooks")
    with pytest.raises(HelmFailed, match=rf'reports\.nodegauge\.dev.*must equal "two".*"{RELEASE}"'):
        cluster.run("install", *where, values=SECOND)
    cluster.run("install", *where, values=SECOND | WITHOUT)
    cluster.run("uninstall", "two", "--namespace", "second", "--no-hooks")
    assert admission(rest) == there


def test_names_follow_the_release(helm: Helm) -> None:
    """Accounts in the policies are those that the release makes, under every name and namespace."""
    values: Object = {"fullnameOverride": "gauge", "namespaceOverride": "elsewhere", "bmc": {"enabled": True}}
    objects = helm.objects(values, release="other")
    accounts = {
        f"system:serviceaccount:{o['metadata']['namespace']}:{o['metadata']['name']}"
        for o in objects
        if o["kind"] == "ServiceAccount"
    }
    texts = "".join(str(o["spec"]) for o in objects if o["kind"] == "ValidatingAdmissionPolicy")
    named = {
        word.rstrip("\"']") for word in texts.replace(",", " ").replace("[", " ").replace('"', " ").split()
    }
    users = {word for word in named if word.startswith("system:serviceaccount:")}
    users -= {"system:serviceaccount:kube-system:daemon-set-controller"}
    assert {f"system:serviceaccount:elsewhere:gauge{end}" for end in ("", "-cleanup", "-bmc")} == users
    assert users <= accounts
    assert "'kubernetes.io/metadata.name': 'elsewhere'" in texts
