"""The chart on a real API server: what an install, an upgrade, a rollback and an uninstall do.

There is no kubelet: `chart_pods` runs the hooks' pods, and nothing runs the operator.  helm is the real one,
and applies on the server; kubectl's requests are made under its field managers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import (
    ALL,
    CHART,
    CRDS,
    NAMESPACE,
    PODS,
    POLICIES,
    RELEASE,
    ROOT,
    ChartPods,
    Helm,
    HelmFailed,
    Object,
    clear,
    installed_crds,
    is_served,
    left_behind,
    of_kind,
    policies,
    remove_crds,
)
from testbed.controlplane import ControlPlane
from testbed.proxy import FaultProxy, Refuse, Replace, RequestInfo, ResponseInfo, When
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
    remove_crds(rest)
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


WITHOUT: Object = {"admissionPolicies": {"enabled": False}, "cleanup": {"enabled": False}}
WITH: Object = {"admissionPolicies": {"enabled": True}, "cleanup": {"enabled": False}}
SECOND: Object = {"crds": {"enabled": False}, "policy": {"create": False}}
"""A second release that does without everything that a cluster has once, but for the admission policies."""
ALWAYS = {"readings.nodegauge.dev"}
"""The policy that stands whatever the values are: it makes readings true."""


def admission(rest: Rest) -> set[str]:
    """The names of the release's policies; each has its binding."""
    kind, there = "ValidatingAdmissionPolicy", left_behind(rest)
    policies, bindings = ({name for k, name in there if k == of} for of in (kind, f"{kind}Binding"))
    assert bindings == policies
    return policies


def test_they_come_with_an_upgrade_and_go_with_a_rollback_and_an_uninstall(cluster: Helm, rest: Rest) -> None:
    """A release without them, but for the one of readings, is upgraded, rolled back and removed as any
    other."""
    cluster.install(WITHOUT)
    assert admission(rest) == ALWAYS
    cluster.upgrade(WITH)
    there = admission(rest)
    assert (len(there), there >= ALWAYS) == (8, True)
    cluster.release("rollback", "1")
    assert admission(rest) == ALWAYS
    cluster.release("rollback", "2")
    assert admission(rest) == there
    cluster.release("uninstall")
    assert admission(rest) == set()


def test_a_second_release_is_refused_and_changes_none_of_them(cluster: Helm, rest: Rest) -> None:
    """Helm names the first release; with the value off too, for both would write the policy of readings."""
    cluster.install(WITH)
    there = admission(rest)
    where = ("two", str(CHART), "--namespace", "second", "--create-namespace", "--no-hooks")
    for values in (SECOND, SECOND | WITHOUT):
        with pytest.raises(HelmFailed, match=rf'readings\.nodegauge\.dev.*must equal "two".*"{RELEASE}"'):
            cluster.run("install", *where, values=values)
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
    ends = ("", "-cleanup", "-bmc", "-probe")
    assert {f"system:serviceaccount:elsewhere:gauge{end}" for end in ends} == users
    assert users <= accounts
    assert "'kubernetes.io/metadata.name': 'elsewhere'" in texts


OPERATOR = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/ng-nodegauge"
PATCH = ["kubectl", "patch", "nodereport"]
APPLY = ["kubectl", "apply", "-f"]
SCALE = ["kubectl", "scale", "deployment", "nodegauge"]
ANNOTATE = ["kubectl", "annotate", "node"]
RESTART = ["kubectl", "rollout", "restart"]
UPGRADE = ["helm", "upgrade", "nodegauge", "charts/nodegauge", "--namespace", "nodegauge"]
WRITES = re.compile(r"^ *(helm upgrade|kubectl (apply|annotate|edit|label|patch|replace|scale|set|rollout)) ")
OTHER: Object = {
    "policy": {
        "spec": {
            "mode": "Enforce",
            "taints": {"effect": "NoExecute", "causes": {"thermal": "NoSchedule", "busbw": "NoExecute"}},
            "budget": {"gatedNodes": 3},
        }
    }
}
"""Values that set what the runbook changes to something else."""


def advised() -> list[list[str]]:
    """Every command of the runbook and the FAQ that writes, split."""
    pages = [(ROOT / "docs" / page).read_text("utf-8") for page in ("runbook.md", "faq.md")]
    text = "\n".join(pages).replace("\\\n", " ")
    lines, spans = text.splitlines(), re.findall(r"`([^`\n]+)`", text)
    return [shlex.split(c.partition("  #")[0]) for c in [*lines, *spans] if WRITES.match(c)]


def perform(cluster: Helm, rest: Rest, command: list[str]) -> None:
    """The command, on this release."""
    if command[:6] == UPGRADE:
        cluster.release("upgrade", *command[6:], values={})
    elif command[:4] == SCALE:
        replicas = int(command[command.index("--replicas") + 1])
        rest.patch(f"{OPERATOR}/scale?fieldManager=kubectl", {"spec": {"replicas": replicas}})
    elif command[:3] == RESTART:
        stamp = {"kubectl.kubernetes.io/restartedAt": "2026-11-23T00:00:00Z"}
        template = {"metadata": {"annotations": stamp}}
        rest.patch(f"{OPERATOR}?fieldManager=kubectl-rollout", {"spec": {"template": template}})
    elif command[:3] == APPLY:
        crd = yaml.safe_load((ROOT / command[3]).read_text("utf-8"))
        name = crd["metadata"]["name"]
        rest.patch(f"{CRDS}/{name}?fieldManager=kubectl-client-side-apply", {"spec": crd["spec"]})
    else:
        assert command[:3] in (PATCH, ANNOTATE) or command[:3] == ["kubectl", "edit", "gvp"], (
            f"not known to this test: {command}"
        )


def spec(rest: Rest) -> Any:
    """The policy's spec."""
    return policies(rest)["default"]["spec"]


def test_what_the_runbook_advises_never_conflicts_with_an_upgrade(cluster: Helm, rest: Rest) -> None:
    """After every command of the runbook, an upgrade to other values of the same fields succeeds."""
    cluster.install()
    commands = advised()
    assert {tuple(command[:2]) for command in commands} >= {("helm", "upgrade"), ("kubectl", "scale")}
    for command in commands:
        perform(cluster, rest, command)
    assert spec(rest)["mode"] == "Observe"
    assert spec(rest)["taints"]["causes"] == {"thermal": "None"}
    assert rest.get(OPERATOR)["spec"]["replicas"] == 0
    cluster.upgrade(OTHER)
    assert (spec(rest)["mode"], spec(rest)["taints"]["causes"]["thermal"]) == ("Enforce", "NoSchedule")
    assert rest.get(OPERATOR)["spec"]["replicas"] == 1, "an upgrade starts a stopped operator"


def test_a_conflict_names_the_field_and_is_ended_once(cluster: Helm, rest: Rest) -> None:
    """A field that a person changed and the values set otherwise: see docs/install/upgrade.md."""
    cluster.install({"policy": {"spec": {"budget": {"gatedNodes": 1}}}})
    change = {"mode": "Observe", "budget": {"gatedNodes": 5}}
    rest.patch(f"{POLICIES}/default?fieldManager=kubectl-edit", {"spec": change})
    with pytest.raises(HelmFailed, match=r'conflict with \\"kubectl-edit\\".*\.spec\.budget\.gatedNodes'):
        cluster.upgrade({"policy": {"spec": {"budget": {"gatedNodes": 2}}}})
    assert spec(rest)["budget"]["gatedNodes"] == 5
    values = {"policy": {"spec": {"budget": {"gatedNodes": 4}}}}
    cluster.release("upgrade", "--force-conflicts", values=values)
    assert (spec(rest)["budget"]["gatedNodes"], spec(rest)["mode"]) == (4, "Observe")
    cluster.upgrade({"policy": {"spec": {"budget": {"gatedNodes": 3}}}})
    assert spec(rest)["budget"]["gatedNodes"] == 3


def test_deleted_crds_come_back_with_an_upgrade(cluster: Helm, rest: Rest) -> None:
    """`helm upgrade` creates CRDs and policy again, also if somebody has applied the CRDs by hand."""
    cluster.install()
    for by_hand in (False, True):
        remove_crds(rest)
        if by_hand:
            for path in (ROOT / "crds").glob("*.yaml"):
                body = yaml.safe_load(path.read_text("utf-8"))
                rest.create(f"{CRDS}?fieldManager=kubectl-client-side-apply", body)
            wait_for(lambda: is_served(rest), what="the CRDs")
        cluster.upgrade()
        assert set(policies(rest)) == {"default"}
