"""The admission policies come with an upgrade, go with a rollback, and belong to one release."""

from __future__ import annotations

import re

import pytest

from support.chart import CHART, RELEASE, Helm, HelmFailed, Object, left_behind, of_kind
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

WITHOUT: Object = {"admissionPolicies": {"enabled": False}, "cleanup": {"enabled": False}}
WITH: Object = {"admissionPolicies": {"enabled": True}, "cleanup": {"enabled": False}}
SECOND: Object = {"crds": {"enabled": False}, "policy": {"create": False}}
"""A second release that does without everything that a cluster has once, but for the admission policies."""


def admission(rest: Rest) -> set[str]:
    """The names of the release's policies; each has its binding."""
    kind, there = "ValidatingAdmissionPolicy", left_behind(rest)
    policies, bindings = ({name for k, name in there if k == of} for of in (kind, f"{kind}Binding"))
    assert bindings == policies
    return policies


def test_they_come_with_an_upgrade_and_go_with_a_rollback_and_an_uninstall(cluster: Helm, rest: Rest) -> None:
    """A release of a version without them is upgraded, rolled back and removed as any other."""
    cluster.install(WITHOUT)
    assert admission(rest) == set()
    cluster.upgrade(WITH)
    there = admission(rest)
    assert len(there) == 8
    cluster.release("rollback", "1")
    assert admission(rest) == set()
    cluster.release("rollback", "2")
    assert admission(rest) == there
    cluster.release("uninstall")
    assert admission(rest) == set()


def test_a_second_release_is_refused_and_changes_none_of_them(cluster: Helm, rest: Rest) -> None:
    """Helm names the first release; with the value off, the second is installed and waits for the Lease."""
    cluster.install(WITH)
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
    metadata = [o["metadata"] for o in of_kind(objects, "ServiceAccount")]
    accounts = {f"system:serviceaccount:{one['namespace']}:{one['name']}" for one in metadata}
    texts = "".join(str(o["spec"]) for o in of_kind(objects, "ValidatingAdmissionPolicy"))
    users = set(re.findall(r"system:serviceaccount:[\w-]+:[\w-]+", texts))
    users -= {"system:serviceaccount:kube-system:daemon-set-controller"}
    assert {f"system:serviceaccount:elsewhere:gauge{end}" for end in ("", "-cleanup", "-bmc")} == users
    assert users <= accounts
    assert "'kubernetes.io/metadata.name': 'elsewhere'" in texts
