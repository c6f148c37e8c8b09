"""The chart in tests: rendered by helm without a cluster, or installed where no kubelet runs."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster_under_test import delete_crds
from testbed import forkserver
from testbed.controlplane import ControlPlane
from testbed.controlplane_config import ADMIN
from testbed.errors import ApiError
from testbed.loopback import LOOPBACK
from testbed.rest import CRDS, STRATEGIC, Rest
from testbed.scripted import ScriptedKubelet, create_node
from testbed.wait import wait_for

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "nodegauge"
VALUES = [ROOT / "tests/chart" / folder for folder in ("variants", "values")]
RELEASE, NAMESPACE = "ng", "gpu-tools"
KNOWN = ("--api-versions", "nodegauge.dev/v1alpha1/GPUValidationPolicy")
"""helm's options for a cluster that serves nodegauge's CRDs."""
REGISTRY = "registry.example.com"
"""The chart's own default is none; every test has this one, because nothing renders without."""
HELM_SECONDS = 240.0
"""Less than the five minutes for which helm itself waits: a run that waits in vain fails here."""
RENDERING = ("template", "install", "upgrade", "lint")
UNCHECKED = ("--disable-openapi-validation",)
"""Spares a fifth of an upgrade's CPU time.  The test of a first install validates, and has the API server
judge every object of every set of values."""
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]

VARIANTS: dict[str, Object] = {"defaults": {}} | {
    path.stem: yaml.safe_load(path.read_text("utf-8"))
    for folder in VALUES
    for path in sorted(folder.glob("*.yaml"))
}
ALL = VARIANTS["all"]
"""Sets every value to something else than its default."""
CLUSTERS = {name: values for name, values in VARIANTS.items() if name not in ("defaults", "off", "all")}

variants = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())


class HelmFailed(Exception):
    """helm failed; the text is its output."""


@dataclass(frozen=True)
class Helm:
    program: Path
    home: Path
    plane: ControlPlane | None = None
    lean: bool = False
    """Without the admission policies: a third of an upgrade's CPU time, here and in the API server."""

    def run(self, *arguments: str, values: Object | None = None) -> str:
        """Standard output of helm; raises `HelmFailed`.  Values that name no registry get one."""
        if arguments[0] in RENDERING:
            own = {"admissionPolicies": {"enabled": False}} if self.lean else {}
            values = {"image": {"registry": REGISTRY}} | own | (values or {})
        command = [str(self.program), *arguments, *(["--values", "-"] if values else [])]
        env = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        env |= {"GOGC": "off", "PATH": os.environ["PATH"], "HOME": str(self.home)}
        env["KUBECONFIG"] = str(self.home / "no-cluster")
        if self.plane:  # helm reads a kubeconfig anew for every object: a tenth of its CPU time
            token = self.plane.tokens()[ADMIN]
            env |= {"HELM_KUBEAPISERVER": self.plane.server, "HELM_KUBETOKEN": token}
            env["HELM_KUBECAFILE"] = str(self.plane.ca_file)
        text = None if values is None else json.dumps(values)
        done = subprocess.run(
            command, input=text, env=env, capture_output=True, text=True, timeout=HELM_SECONDS
        )
        if done.returncode != 0:
            raise HelmFailed(done.stdout + done.stderr)
        return done.stdout

    def release(self, verb: str, *options: str, values: Object | None = None) -> str:
        chart = [str(CHART)] if verb in RENDERING else []
        return self.run(verb, RELEASE, *chart, "--namespace", NAMESPACE, *options, values=values)

    def install(self, values: Object | None = None) -> str:
        return self.release("install", *UNCHECKED, values=values)

    def upgrade(self, values: Object | None = None, *options: str) -> str:
        return self.release("upgrade", "--reset-values", *UNCHECKED, *options, values=values)

    def template(self, values: Object | None = None, *options: str, release: str = RELEASE) -> str:
        return _rendered(self, json.dumps(values or {}), options, release)[0]

    def notes(self, values: Object | None = None) -> str:
        return _rendered(self, json.dumps(values or {}), (), RELEASE)[1]

    def objects(self, values: Object | None = None, *options: str, release: str = RELEASE) -> list[Object]:
        return deepcopy(_objects(self.template(values, *options, release=release)))


@cache
def _rendered(helm: Helm, values: str, options: tuple[str, ...], release: str) -> tuple[str, str]:
    """The objects, and the notes: none with options, which only `helm template` has."""
    named, given = (release, str(CHART), "--namespace", NAMESPACE), json.loads(values)
    if options:
        return helm.run("template", *named, *options, values=given), ""
    whole = helm.run("install", *named, "--dry-run=client", values=given)
    objects, _, notes = whole.partition("\nNOTES:\n")
    hooks, _, manifest = objects.partition("HOOKS:\n")[2].partition("MANIFEST:\n")
    return f"{hooks}\n{manifest}", notes


@cache
def _objects(text: str) -> list[Object]:
    return [o for o in yaml.load_all(text, Loader=YAML_LOADER) if o]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def only(objects: list[Object], kind: str, *, of: str = "") -> Object:
    (match,) = [o for o in of_kind(objects, kind) if (component(o) == of if of else component(o) != "bmc")]
    return match


def pods(objects: list[Object]) -> dict[str, Object]:
    return {
        f"{o['kind']}/{o['metadata']['name']}": o if o["kind"] == "Pod" else o["spec"]["template"]
        for o in objects
        if o["kind"] in ("Deployment", "Job", "Pod")
    }


def environment(objects: list[Object], *, of: str = "operator") -> dict[str, str]:
    """A component's environment as a kubelet expands it: `$$` is a dollar sign."""
    (container,) = only(objects, "Deployment", of=of)["spec"]["template"]["spec"]["containers"]
    assert not re.search(r"(^|[^$])([$][$])*[$][(]", "\n".join(e.get("value", "") for e in container["env"]))
    fields = {"metadata.namespace": NAMESPACE, "metadata.name": "a-pod"}
    return {
        e["name"]: e["value"].replace("$$", "$")
        if "value" in e
        else fields[e["valueFrom"]["fieldRef"]["fieldPath"]]
        for e in container["env"]
    }


def events(o: Object) -> list[str]:
    hook = o["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    return [event for event in hook.split(",") if event]


def component(o: Object) -> str:
    return str(o["metadata"]["labels"]["app.kubernetes.io/component"])


POLICIES = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1"
COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "PriorityLevelConfiguration": f"{FLOWS}/prioritylevelconfigurations",
    "FlowSchema": f"{FLOWS}/flowschemas",
    "Pod": "/api/v1/namespaces/{}/pods",
    "CustomResourceDefinition": CRDS,
    "GPUValidationPolicy": POLICIES,
}
PART_OF = "app.kubernetes.io/part-of"


def installed_crds(rest: Rest) -> list[str]:
    return [o["metadata"]["name"] for o in rest.get(CRDS)["items"] if o["spec"]["group"] == "nodegauge.dev"]


def is_served(rest: Rest) -> bool:
    return "nodegauge.dev" in [group["name"] for group in rest.get("/apis")["groups"]]


def remove_crds(rest: Rest) -> None:
    if there := installed_crds(rest):
        delete_crds(rest, *there)
    wait_for(lambda: not is_served(rest), what="the group gone")


def clear(rest: Rest) -> None:
    """Without helm, whose uninstall costs more than a second of CPU time."""
    remove_crds(rest)
    rest.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets?labelSelector=owner=helm")
    for kind, name in left_behind(rest):
        with suppress(ApiError):  # what is of another namespace
            rest.delete(f"{COLLECTIONS[kind].format(NAMESPACE)}/{name}", {"propagationPolicy": "Background"})
    for owners in (JOBS, REPLICA_SETS):
        rest.delete(owners, {"propagationPolicy": "Background"})

    def pods() -> list[str]:
        left = [one["metadata"]["name"] for one in rest.get(PODS)["items"]]
        rest.delete(PODS, {"gracePeriodSeconds": 0})
        return left

    wait_for(lambda: not pods(), what="pods gone")


def policies(rest: Rest) -> dict[str, Object]:
    return {o["metadata"]["name"]: o for o in rest.get(POLICIES)["items"]}


def left_behind(rest: Rest, *, of: str = NAMESPACE) -> set[tuple[str, str]]:
    """Kind and name of every object of the release in this namespace that still exists, except pods."""
    objects = set()
    for kind, collection in COLLECTIONS.items():
        if kind == "Pod":
            continue  # a Deployment's pods come and go with it
        for namespace in (of, "default") if "{}" in collection else ("",):
            items = rest.find(collection.format(namespace)).get("items", ())  # none: the CRD is gone
            ours = [o for o in items if o["metadata"].get("labels", {}).get(PART_OF) == "nodegauge"]
            objects |= {(kind, o["metadata"]["name"]) for o in ours}
    return objects


NODE = "hooks"
TERMINATION_MESSAGE_BYTES = 2048
"""Bytes of a container's log that a kubelet keeps with FallbackToLogsOnError."""


class ChartPods(ScriptedKubelet):
    """Runs the release's pods as processes of this machine, with the rights of their service accounts.  Only
    hooks run; the operator's pod gets an address.  `output`: what each component's last pod printed."""

    def __init__(self, plane: ControlPlane, *, directory: Path) -> None:
        super().__init__(plane.rest(), namespace=NAMESPACE, answer=self._look_at)
        self._plane, self._rest, self._directory = plane, plane.rest(), directory
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.output: dict[str, str] = {}

    def __enter__(self) -> "ChartPods":
        create_node(self._rest, NODE)
        super().__enter__()
        return self

    def __exit__(self, *arguments: object) -> None:
        try:
            super().__exit__(*arguments)
        finally:
            for process in self._processes.values():
                with process:
                    process.kill()
            self._rest.delete(f"/api/v1/nodes/{NODE}")

    def _look_at(self, pod: Object) -> str | None:
        if component(pod) == "operator":
            running = {"phase": "Running", "podIP": LOOPBACK, "podIPs": [{"ip": LOOPBACK}]}
            path = f"{PODS}/{pod['metadata']['name']}/status"
            self._rest.patch(path, {"status": running}, content_type=STRATEGIC)
            return None
        uid = pod["metadata"]["uid"]
        process = self._processes.get(uid)
        if process is None:
            self._processes[uid] = self._start(pod)
        elif process.poll() is not None and process.stdout and not process.stdout.closed:
            output, _ = process.communicate()
            self.output[component(pod)] = output
            code = process.returncode
            reason = "Error" if code else "Completed"
            message = output[-TERMINATION_MESSAGE_BYTES:] if code else ""
            self.finish(pod, message, exit_code=code, reason=reason)
        return None

    def _start(self, pod: Object) -> subprocess.Popen[str]:
        (container,) = pod["spec"]["containers"]
        assert container["command"][0] == "python"
        arguments = [re.sub(r"\$\$", "$", argument) for argument in container["args"]]  # as a kubelet does
        kubeconfig = self._plane.user_kubeconfig(
            f"pod-{pod['metadata']['uid']}",
            token=self._plane.service_account_token(NAMESPACE, pod["spec"]["serviceAccountName"]),
        )
        return forkserver.popen(
            [sys.executable, *container["command"][1:], *arguments],
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
