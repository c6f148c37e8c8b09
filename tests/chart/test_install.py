"""The chart on a real API server, without a kubelet: `chart_pods` runs the hooks' pods, and nothing runs the
operator."""

import json
import re
import shlex
from copy import deepcopy
from typing import Any

import pytest
import yaml

from support import dra
from support.chart import (
    CHART,
    COLLECTIONS,
    CRDS,
    KNOWN,
    NAMESPACE,
    PODS,
    POLICIES,
    RELEASE,
    ROOT,
    UNCHECKED,
    VARIANTS,
    ChartPods,
    Helm,
    HelmFailed,
    Object,
    events,
    installed_crds,
    is_served,
    left_behind,
    of_kind,
    pods,
    policies,
    remove_crds,
)
from testbed.errors import ApiError
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def try_every_object(helm: Helm, rest: Rest) -> None:
    """Of each set of values; the Prometheus operator's CRDs are not here."""
    tried = set()
    for variant, values in VARIANTS.items():
        objects = [*helm.objects(values), *helm.objects(values, *KNOWN)]
        bare = [{"apiVersion": "v1", "kind": "Pod"} | deepcopy(pod) for pod in pods(objects).values()]
        for o in [*objects, *bare]:
            if o["kind"] in ("ServiceMonitor", "PrometheusRule", "CustomResourceDefinition"):
                continue
            if o["kind"] == "Pod":
                o["spec"]["serviceAccountName"] = "default"  # a dry run creates no account for it
                o["metadata"]["namespace"] = NAMESPACE
            o["metadata"]["name"] = f"try-{o['metadata'].get('name', 'pod')}"
            if (body := json.dumps(o, sort_keys=True)) in tried:
                continue
            tried.add(body)
            path = COLLECTIONS[o["kind"]].format(o["metadata"].get("namespace", ""))
            made = rest.create(f"{path}?dryRun=All&fieldValidation=Strict", o)
            assert made["metadata"]["name"] == o["metadata"]["name"], variant
    o["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(ApiError, match="violates PodSecurity"):
        rest.create(f"{PODS}?dryRun=All", o)


def kept_alone(rest: Rest, output: str, *, crds: int) -> None:
    """What Helm prints as kept is what is left: so many CRDs."""
    kept = {("CustomResourceDefinition", name) for name in installed_crds(rest)} if crds else set()
    assert len(kept) == crds
    wait_for(lambda: left_behind(rest) == kept, what="only what Helm keeps")
    assert set(re.findall(r"^\[(\w+)\] (\S+)", output, re.MULTILINE)) == kept


def test_an_install_creates_every_object_and_an_uninstall_keeps_only_the_crds(
    helm: Helm, cluster: Helm, rest: Rest
) -> None:
    """The API server accepts all other objects too.  The clean-up Job deletes the policy.  Without hooks it
    stays, and the next install adopts both."""
    notes = cluster.release("install")
    assert "kubectl get nodes -L interconnect" in notes
    assert "kubectl get nodereports" in notes
    wanted = {(o["kind"], o["metadata"]["name"]) for o in helm.objects({}, *KNOWN) if not events(o)}
    wait_for(lambda: wanted == left_behind(rest), what=f"{wanted}, and no job")
    assert spec(rest)["nodeSelector"] == {"matchLabels": {"nvidia.com/gpu.present": "true"}}
    assert spec(rest)["probes"]["health"]["interval"] == "15m"
    try_every_object(helm, rest)
    cluster.release("uninstall", "--no-hooks")
    assert {kind for kind, _ in left_behind(rest)} == {"CustomResourceDefinition", "GPUValidationPolicy"}
    before = policies(rest)["default"]["metadata"]["uid"]
    cluster.install()
    assert policies(rest)["default"]["metadata"]["uid"] == before
    marks = {"labels": {"nodegauge.dev/device-rule": "true"}, "annotations": {"nodegauge.dev/node": "gone"}}
    selector = {"driver": dra.DRIVER, "pool": "gone", "device": "gpu-0"}
    taint = {"key": "nodegauge.dev/unhealthy", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "nodegauge-gone", **marks}}
    rule |= {"spec": {"deviceSelector": selector, "taint": taint}}
    rest.create(f"{dra.rules_path(rest)}?fieldManager=nodegauge", rule)
    kept_alone(rest, cluster.release("uninstall"), crds=5)
    assert rest.get(dra.rules_path(rest))["items"] == []


BAD: Object = {"policy": {"spec": {"probes": {"health": {"interval": "10s"}}}}}


def test_upgrades_and_rollbacks_keep_the_policy_while_values_name_it(lean: Helm, rest: Rest) -> None:
    """Changed values are merged, what people have set stays, a policy that CEL refuses changes nothing.  A
    rollback to before the policy keeps it.  One that the values no longer name goes; others' stay.  Where
    values say so an uninstall keeps nothing, and needs no clean-up Job."""
    lean.install()
    before = policies(rest)["default"]["metadata"]["uid"]
    rest.patch(f"{POLICIES}/default", {"spec": {"mode": "Observe"}})
    lean.upgrade({"policy": {"spec": {"probes": {"health": {"interval": "5m"}}}}})
    policy = policies(rest)["default"]
    assert policy["metadata"]["uid"] == before
    assert policy["spec"]["mode"] == "Observe"
    assert policy["spec"]["probes"]["health"]["interval"] == "5m"
    with pytest.raises(HelmFailed, match=r"spec\.probes\.health\.deadline"):
        lean.upgrade(BAD)
    assert policies(rest)["default"]["spec"] == policy["spec"]
    lean.release("rollback", "1")
    after = policies(rest)["default"]
    assert after["metadata"]["uid"] == before
    assert after["spec"]["probes"]["health"]["interval"] == "15m", "the first revision's"
    assert after["spec"]["mode"] == "Observe", "set by a person, and not by that revision"
    lean.upgrade()
    kind = {"apiVersion": "nodegauge.dev/v1alpha1", "kind": "GPUValidationPolicy"}
    rest.create(POLICIES, kind | {"metadata": {"name": "foreign"}, "spec": {"nodeSelector": {}}})
    lean.upgrade({"policy": {"create": False}})
    assert set(policies(rest)) == {"foreign"}
    lean.upgrade({"policy": {"name": "other"}, "cleanup": {"enabled": False}, "crds": {"keep": False}})
    assert set(policies(rest)) == {"foreign", "other"}
    kept_alone(rest, lean.release("uninstall"), crds=0)


SECOND: Object = {"crds": {"enabled": False}, "policy": {"create": False}}
"""A release that does without everything that a cluster has once, but for the admission policies."""
WITHOUT: Object = SECOND | {"admissionPolicies": {"enabled": False}, "cleanup": {"enabled": False}}
WITH: Object = SECOND | {"cleanup": {"enabled": False}}
ALWAYS = {"readings.nodegauge.dev", "lease.nodegauge.dev"}
"""The policies that stand whatever the values are: they make readings true, and guard who writes."""


def admission(rest: Rest) -> set[str]:
    """The names of the release's policies; each has its binding."""
    kind, there = "ValidatingAdmissionPolicy", left_behind(rest)
    policies, bindings = ({name for k, name in there if k == of} for of in (kind, f"{kind}Binding"))
    assert bindings == policies
    return policies


def test_they_come_with_an_upgrade_and_go_with_a_rollback_and_an_uninstall(cluster: Helm, rest: Rest) -> None:
    """A release with those alone that always stand is upgraded, rolled back and removed as any other.

    A second release is refused, and changes none of them: Helm names the first one; with the value off too,
    for both would write those that always stand.
    """
    cluster.install(WITHOUT)
    assert admission(rest) == ALWAYS
    cluster.upgrade(WITH)
    there = admission(rest)
    assert (len(there), there >= ALWAYS) == (13, True)
    where = ("two", str(CHART), "--namespace", "second", "--create-namespace", "--no-hooks")
    for values in (SECOND, WITHOUT):
        with pytest.raises(
            HelmFailed, match=rf'(readings|lease)\.nodegauge\.dev.*must equal "two".*"{RELEASE}"'
        ):
            cluster.run("install", *where, values=values)
    assert admission(rest) == there
    cluster.release("rollback", "1")
    assert admission(rest) == ALWAYS
    cluster.release("rollback", "2")
    assert admission(rest) == there
    kept_alone(rest, cluster.release("uninstall"), crds=0)


def test_names_follow_the_release(helm: Helm) -> None:
    """Accounts in the policies are those that the release makes, under every name and namespace."""
    values: Object = {"fullnameOverride": "gauge", "namespaceOverride": "elsewhere", "bmc": {"enabled": True}}
    objects = helm.objects(values, release="other")
    metadata = [o["metadata"] for o in of_kind(objects, "ServiceAccount")]
    accounts = {f"system:serviceaccount:{one['namespace']}:{one['name']}" for one in metadata}
    texts = "".join(str(o["spec"]) for o in of_kind(objects, "ValidatingAdmissionPolicy"))
    users = set(re.findall(r"system:serviceaccount:[\w-]+:[\w-]+", texts))
    controllers = ("daemon-set-controller", "generic-garbage-collector", "resource-claim-controller")
    users -= {f"system:serviceaccount:kube-system:{controller}" for controller in controllers}
    ends = ("", "-cleanup", "-bmc", "-probe")
    assert {f"system:serviceaccount:elsewhere:gauge{end}" for end in ends} == users
    assert users <= accounts
    assert "'kubernetes.io/metadata.name': 'elsewhere'" in texts


OPERATOR = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/ng-nodegauge"
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


def perform(rest: Rest, command: list[str]) -> None:
    match command[1:]:
        case ["scale", "deployment", "nodegauge", *options]:
            replicas = int(options[options.index("--replicas") + 1])
            rest.patch(f"{OPERATOR}/scale?fieldManager=kubectl", {"spec": {"replicas": replicas}})
        case ["rollout", "restart", *_]:
            stamp = {"kubectl.kubernetes.io/restartedAt": "2026-11-23T00:00:00Z"}
            template = {"metadata": {"annotations": stamp}}
            rest.patch(f"{OPERATOR}?fieldManager=kubectl-rollout", {"spec": {"template": template}})
        case ["apply", "-f", file, *_]:
            crd = yaml.safe_load((ROOT / file).read_text("utf-8"))
            name = crd["metadata"]["name"]
            rest.patch(f"{CRDS}/{name}?fieldManager=kubectl-client-side-apply", {"spec": crd["spec"]})
        case ["label", "namespace", _, label, *_]:
            key, _, value = label.partition("=")
            namespace = f"/api/v1/namespaces/{NAMESPACE}?fieldManager=kubectl-label"
            rest.patch(namespace, {"metadata": {"labels": {key: value}}})
        case _:
            others = (["patch", "nodereport"], ["annotate", "node"], ["edit", "gvp"])
            assert command[1:3] in others, f"not known to this test: {command}"


def spec(rest: Rest) -> Any:
    return policies(rest)["default"]["spec"]


def test_what_the_runbook_advises_never_conflicts_and_what_does_is_named_and_ended_once(
    lean: Helm, rest: Rest
) -> None:
    """docs/install/upgrade.md.  A field that later values no longer set gets the CRD's default again.
    Quotes, dollar signs and variable references reach the first policy unchanged."""
    annotations = {"example.com/json": '{"a": "<b> & $(HOME) $$ \'c\' \\"d\\""}'}
    first = {"budget": {"gatedNodes": 1}, "priority": 7, "podTemplate": {"annotations": annotations}}
    lean.install({"policy": {"spec": first}})
    before = policies(rest)["default"]["metadata"]["uid"]
    assert (spec(rest)["priority"], spec(rest)["podTemplate"]["annotations"]) == (7, annotations)
    commands = advised()
    upgrades = [command for command in commands if command[:6] == UPGRADE]
    lean.release("upgrade", *UNCHECKED, *(word for one in upgrades for word in one[6:]), values={})
    others = [command for command in commands if command not in upgrades]
    for command in others:
        perform(rest, command)
    assert spec(rest)["mode"] == "Observe"
    assert spec(rest)["taints"]["causes"] == {"thermal": "None"}
    assert rest.get(OPERATOR)["spec"]["replicas"] == 0
    lean.upgrade(OTHER)
    assert (spec(rest)["mode"], spec(rest)["taints"]["causes"]["thermal"]) == ("Enforce", "NoSchedule")
    assert rest.get(OPERATOR)["spec"]["replicas"] == 1, "an upgrade starts a stopped operator"
    change = {"mode": "Observe", "budget": {"gatedNodes": 5}}
    rest.patch(f"{POLICIES}/default?fieldManager=kubectl-edit", {"spec": change})
    with pytest.raises(HelmFailed, match=r'conflict with \\"kubectl-edit\\".*\.spec\.budget\.gatedNodes'):
        lean.upgrade({"policy": {"spec": {"budget": {"gatedNodes": 2}}}})
    assert spec(rest)["budget"]["gatedNodes"] == 5
    values = {"policy": {"spec": {"budget": {"gatedNodes": 4}}}}
    lean.upgrade(values, "--force-conflicts")
    assert (spec(rest)["budget"]["gatedNodes"], spec(rest)["mode"]) == (4, "Observe")
    lean.upgrade({"policy": {"spec": {"budget": {"gatedNodes": 3}}}})
    after = spec(rest)
    assert (after["budget"]["gatedNodes"], after["priority"], after["mode"]) == (3, 0, "Observe")
    assert policies(rest)["default"]["metadata"]["uid"] == before


def test_an_invalid_first_policy_and_lost_crds_are_repaired_by_an_upgrade(
    lean: Helm, rest: Rest, chart_pods: ChartPods
) -> None:
    """The install fails long before Helm's timeout, and the pod names the field.  Once the policy is an
    object of the release, Helm itself needs its CRD: people apply the CRDs, and an upgrade adopts them.  An
    uninstall needs none, and the clean-up Job still runs."""
    with pytest.raises(HelmFailed, match="ng-nodegauge-policy"):
        lean.install(BAD)
    assert "spec.probes.health.deadline" in chart_pods.output["policy-writer"]
    (pod,) = [p for p in rest.get(PODS)["items"] if "policy" in p["metadata"]["name"]]
    (status,) = pod["status"]["containerStatuses"]
    assert "spec.probes.health.deadline" in status["state"]["terminated"]["message"]
    assert policies(rest) == {}
    remove_crds(rest)
    lean.upgrade()
    assert set(policies(rest)) == {"default"}
    name = "nodereports.nodegauge.dev"
    rest.patch(f"{CRDS}/{name}", {"spec": {"names": {"categories": []}}})
    lean.upgrade({}, "--force-conflicts")
    assert rest.get(f"{CRDS}/{name}")["spec"]["names"]["categories"] == ["nodegauge"]
    remove_crds(rest)
    with pytest.raises(HelmFailed, match=r'current release.*no matches for kind "GPUValidationPolicy"'):
        lean.upgrade()
    for path in (ROOT / "crds").glob("*.yaml"):
        body = yaml.safe_load(path.read_text("utf-8"))
        rest.create(f"{CRDS}?fieldManager=kubectl-client-side-apply", body)
    wait_for(lambda: is_served(rest), what="the CRDs")
    lean.upgrade()
    assert set(policies(rest)) == {"default"}
    remove_crds(rest)
    lean.release("uninstall")
    assert "reports: already gone" in chart_pods.output["cleanup"]
    wait_for(lambda: left_behind(rest) == set(), what="nothing left behind")
