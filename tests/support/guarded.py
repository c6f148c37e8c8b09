"""A release without its hooks on a control plane with its admission policies, and calls by its accounts."""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodegauge_contract import text
from nodegauge_operator import names
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.probes import watch
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.settings import parse
from support.cluster_under_test import GROUP, ROOT
from support.objects import make_context, make_policy, make_report
from support.results import h100
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.rest import STRATEGIC, Object, Rest
from testbed.scripted import create_node, stamp
from testbed.wait import wait_for

NAMESPACE, RELEASE, NODE = "guarded", "ng", "gpu-1"
ACCOUNT = "ng-nodegauge"
BINDINGS, MIGHTY = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "cleanup-may-all"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PROBES = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}-probe"
READINGS = f"{GROUP}/nodereadings"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
VALUES = {
    "image": {"registry": "registry.example.com"},
    "bmc": {"enabled": True},
    "policy": {"create": False, "spec": {"labels": {"interconnectKey": "example.com/fabric"}}},
    "admissionPolicies": {
        "images": ["mirror.example.com/team/*"],
        "imagePullSecrets": ["reg*"],
        "nvmePaths": ["/mnt/read"],
        "nvmeWritePaths": ["/mnt/write"],
    },
}


class Guarded:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.admin = plane, plane.rest()
        self.operator = self.account(ACCOUNT)
        self.cleanup = self.account(f"{ACCOUNT}-cleanup")
        self.bmc = self.account(f"{ACCOUNT}-bmc")

    def account(self, name: str) -> Rest:
        return self.plane.rest(self.plane.service_account_token(NAMESPACE, name))

    def environment(self) -> dict[str, str]:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{ACCOUNT}"
        [container] = self.admin.get(path)["spec"]["template"]["spec"]["containers"]
        return {e["name"]: e["value"] for e in container["env"] if e.get("value")}

    def defaults(self) -> ProbeDefaults:
        return parse({**self.environment(), "POD_NAMESPACE": NAMESPACE}).probe

    def pod(self, kind: str = "health", **spec: Any) -> Object:
        """The manifest of a run, as the operator makes it for a policy with this spec."""
        policy = make_policy().of(spec)
        context = make_context(report=make_report(), policy=policy, defaults=self.defaults())
        return _without_owner(probe_pod(context, KINDS[kind], context.next_run(kind)))

    def daemon_set(self) -> Object:
        return _without_owner(watch.daemon_set(make_policy(), self.defaults()))


class Writer:
    """A probe pod on a node, and calls with its token; `path`: its node's object; `fixed`: of each part."""

    def __init__(self, guarded: Guarded, node: str, **fixed: Any) -> None:
        self.api, self.path, self._fixed = guarded.admin, f"{READINGS}/{node}", fixed
        self.node = self.api.get(f"/api/v1/nodes/{node}")["metadata"]
        body = guarded.pod()
        body["metadata"]["name"] = f"writer-{node}"
        body["spec"].pop("affinity", None)
        body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.pod_path = f"{PODS}/writer-{node}"
        guarded.operator.create(PODS, body)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        with contextlib.suppress(ApiError):  # the scheduler was faster
            self.api.create(
                f"{self.pod_path}/binding", {"metadata": {"name": f"writer-{node}"}, "target": target}
            )
        pod = self.api.get(self.pod_path)
        assert pod["spec"]["nodeName"] == node
        self.pod = pod["metadata"]
        self.rest = guarded.plane.rest(token(self.api, self.pod))

    def part(self, **changed: Any) -> Object:
        own = {
            "sequence": 1,
            "at": stamp(),
            "reason": "first",
            "pod": self.pod["name"],
            "podUID": self.pod["uid"],
            "nodeUID": self.node["uid"],
            "bootID": "boot-1",
            "reading": text(h100()),
        }
        return own | self._fixed | changed

    def health(self, **changed: Any) -> Object:
        return {"health": self.part(**changed)}

    def create(self, parts: Object, query: str = "") -> Object:
        kind = {"apiVersion": names.API_VERSION, "kind": names.READING_KIND}
        body = kind | {"metadata": {"name": self.node["name"]}} | parts
        return self.rest.create(f"{READINGS}?fieldValidation=Strict{query}", body)

    def end(self) -> None:
        for path in (self.path, self.pod_path):
            with contextlib.suppress(ApiError):
                self.api.delete(path, {"gracePeriodSeconds": 0})


def token(api: Rest, pod: Object | None = None) -> str:
    """Bound to the pod of these metadata, if there is one."""
    made: str = api.create(f"{PROBES}/token", {"spec": token_spec(pod)})["status"]["token"]
    return made


def token_spec(pod: Object | None) -> Object:
    spec: Object = {"expirationSeconds": 3600}
    if pod is not None:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
        spec["boundObjectRef"] = bound
    return spec


@contextmanager
def release(plane: ControlPlane, directory: Path) -> Iterator[Guarded]:
    rest = plane.rest()
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    rest.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": level}})
    values = directory / "values.json"
    values.write_text(json.dumps(VALUES))
    chart = str(ROOT / "charts" / "nodegauge")
    where = ["--namespace", NAMESPACE, "--values", str(values), "--no-hooks"]
    plane.helm("install", RELEASE, chart, *where)
    create_node(rest, NODE, labels={"team": "vision"})
    rest.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {"example.com/a": "1"}}})
    cleanup = {"metadata": {"name": f"{ACCOUNT}-cleanup"}}
    rest.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", cleanup)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    account = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": f"{ACCOUNT}-cleanup"}
    mighty = {"metadata": {"name": MIGHTY}, "roleRef": role, "subjects": [account]}
    rest.create(BINDINGS, mighty)
    guarded = Guarded(plane)
    wait_for(lambda: in_force(guarded), what="the policies in force")
    yield guarded
    plane.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks")
    rest.delete(f"{BINDINGS}/{MIGHTY}")


def in_force(guarded: Guarded) -> bool:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    policies = guarded.admin.get(path)["items"]
    assert len(policies) == 14
    seen = all(p.get("status", {}).get("observedGeneration") for p in policies)
    tries = [
        lambda: node_patch(guarded.operator, {"metadata": {"labels": {"team": "x"}}}),
        lambda: status_patch(guarded.operator, {"status": {"nodeInfo": {"bootID": "x"}}}),
        lambda: guarded.operator.create(f"{PODS}?dryRun=All", without_label(guarded.pod())),
        lambda: guarded.admin.create(f"{PODS}?dryRun=All", guarded.pod()),
        lambda: guarded.admin.create(f"{DAEMONSETS}?dryRun=All", guarded.daemon_set()),
        lambda: guarded.operator.create(f"{LEASES}?dryRun=All", {"metadata": {"name": "other"}}),
        lambda: guarded.admin.create(f"{GROUP}/nodereports?dryRun=All", of_kind(names.REPORT_KIND)),
        lambda: guarded.admin.create(f"{READINGS}?dryRun=All", of_kind(names.READING_KIND)),
        lambda: guarded.admin.create(f"{GROUP}/nodehistories?dryRun=All", of_kind(names.HISTORY_KIND)),
        lambda: guarded.admin.create(f"{GROUP}/chassisreadings?dryRun=All", of_kind(names.CHASSIS_KIND)),
    ]
    return seen and all(refusal(one) for one in tries)


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    try:
        call(*arguments, **named)
    except ApiError as error:
        if error.status != 403 or "ValidatingAdmissionPolicy" not in str(error):
            raise
        return str(error)
    return ""


def node_patch(rest: Rest, body: Object) -> Object:
    return rest.patch(f"/api/v1/nodes/{NODE}?dryRun=All", body)


def status_patch(rest: Rest, body: Object) -> Object:
    return rest.patch(f"/api/v1/nodes/{NODE}/status?dryRun=All", body, content_type=STRATEGIC)


def of_kind(kind: str) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": NODE}}


def _without_owner(made: Object) -> Object:
    """Its owner is not on this cluster, so the garbage collector would delete it within milliseconds."""
    del made["metadata"]["ownerReferences"]
    return made


def without_label(pod: Object) -> Object:
    del pod["metadata"]["labels"][names.POD_PROBE]
    pod["spec"]["serviceAccountName"] = "default"
    return pod
