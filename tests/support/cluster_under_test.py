"""One test's part of the real control plane.  Pods end as the test says (`testbed.scripted`)."""

import contextlib
import functools
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from nodegauge_contract import Result, Span, Temperature, Window, text
from nodegauge_operator.core.reading_admission import NAME
from nodegauge_operator.names import POD_PROBE, PROBE_WATCH
from support.api_server import ADMISSION, BINDINGS, NO_BREAKER
from support.cluster import reading_protection
from support.objects import by_pods
from support.results import every_gpu, h100
from testbed import marks
from testbed.errors import ApiError
from testbed.operatorprocess import OperatorProcess
from testbed.rest import CRDS, Object, Rest
from testbed.scripted import ScriptedKubelet, create_node
from testbed.wait import wait_for

ROOT = Path(__file__).resolve().parents[2]
GROUP = "/apis/nodegauge.dev/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PER_NODE = ("nodereports", "nodereadings", "nodehistories", "chassisreadings")
OURS = "nodegauge.dev/"


def run_of(pod: Object) -> tuple[str, str]:
    env = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
    return env["NODEGAUGE_RUN"], env["NODEGAUGE_NODE"]


def answering(result: Result) -> Callable[[Object], str]:
    def answer(pod: Object) -> str:
        run, node = run_of(pod)
        return text(replace(result, run=run, node=node))

    return answer


def at_work(celsius: int) -> Result:
    """8x H100 under full load, all as hot as this; the driver gives no limits, so the policy's decide."""
    busy = Window(
        seconds=3.0,
        samples=12,
        utilization=Span(min=97, median=99, max=100),
        temperature=Span(min=celsius - 1, median=celsius, max=celsius),
    )
    return every_gpu(h100(), temperature=Temperature(gpu=celsius), window=busy)


class Machines:
    """What the probe of each node finds: `now`, but for those in `of`; with None its pod goes on."""

    def __init__(self, now: Result) -> None:
        self.now = now
        self.of: dict[str, Result | None] = {}

    def __call__(self, pod: Object) -> str | None:
        if pod["metadata"]["labels"][POD_PROBE] == PROBE_WATCH:
            return None
        result = self.of.get(run_of(pod)[1], self.now)
        return None if result is None else answering(result)(pod)


class ClusterUnderTest:
    """`protected`: the chart has installed what says who writes NodeReadings."""

    def __init__(
        self, api: Rest, *, namespace: str, directory: Path, kubeconfig: Path, protected: bool = False
    ) -> None:
        self.api = api
        if not protected:
            protect_readings(api, namespace)
        self.namespace = namespace
        self.directory = directory
        self.kubeconfig = kubeconfig
        self.mark = uuid.uuid4().hex[:8]
        self.nodes: list[str] = []
        self.policies: list[str] = []
        self._asked = 0

    def add_node(self, *, boot: str = "boot-1", **labels: str) -> str:
        name = f"node-{self.mark}-{len(self.nodes)}"
        create_node(self.api, name, labels={"test": self.mark, **labels}, boot=boot)
        self.nodes.append(name)
        return name

    def add_policy(self, name: str = "", **spec: Any) -> str:
        """By pods, without load runs: a request would start one of those too."""
        spec["budget"] = {"concurrentProbes": "100%", "gatedNodesPerHour": "100%"} | spec.get("budget", {})
        name = name or f"policy-{self.mark}-{len(self.policies)}"
        whole = {"nodeSelector": {"matchLabels": {"test": self.mark}}, "breaker": NO_BREAKER}
        whole |= by_pods({"probes": {"load": {"enabled": False}}} | spec)
        kind = {"apiVersion": "nodegauge.dev/v1alpha1", "kind": "GPUValidationPolicy"}
        self.api.create(f"{GROUP}/gpuvalidationpolicies", kind | {"metadata": {"name": name}, "spec": whole})
        self.policies.append(name)
        return name

    def operator(self, *, name: str = "operator", **env: str) -> OperatorProcess:
        return OperatorProcess(
            kubeconfig=self.kubeconfig,
            namespace=self.namespace,
            directory=self.directory / name,
            environment=env,
        )

    def kubelet(self, answer: Callable[[Object], str | None] | None = None) -> ScriptedKubelet:
        return ScriptedKubelet(self.api, namespace=self.namespace, answer=answer or answering(h100()))

    def ask_for_run(self, node: str) -> None:
        self._asked += 1
        moment = f"2026-01-01T00:{self._asked // 60:02d}:{self._asked % 60:02d}Z"
        self.api.patch(f"{GROUP}/nodereports/{node}", {"spec": {"requestedAt": moment}})

    def node(self, name: str) -> Object:
        return self.api.get(f"/api/v1/nodes/{name}")

    def labels(self, name: str) -> dict[str, str]:
        return self.node(name)["metadata"].get("labels", {})

    def ours(self, name: str) -> dict[str, str]:
        return marks.labels_of(self.labels(name))

    def taints(self, name: str) -> list[str]:
        return [taint.removeprefix(OURS) for taint in marks.taints_of(self.node(name))]

    def condition(self, name: str) -> Object:
        return marks.condition_of(self.node(name))

    def report(self, name: str) -> Object:
        return self.api.find(f"{GROUP}/nodereports/{name}")

    def last_run(self, name: str) -> Object:
        return marks.last_run_of(self.report(name))

    def pods(self) -> list[Object]:
        return self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]

    def counts(self) -> dict[str, int]:
        policy = self.api.get(f"{GROUP}/gpuvalidationpolicies/{self.policies[-1]}")
        return policy.get("status", {}).get("nodes", {"validated": 0})

    def wait_up_to_date(self, name: str, number: int = 1) -> None:
        wait_for(lambda: self.last_run(name).get("number", 0) >= number, what=f"run {number} of {name}")
        wait_for(lambda: not self.pods(), what="pods gone")

        def agree() -> bool:
            desired, node = self.report(name)["status"]["desired"], self.node(name)
            shown = marks.condition_of(node).get("status", "")
            return marks.carries(node, desired) and shown == desired["condition"]

        wait_for(agree, what=f"node {name} as its report says")

    def clean(self) -> None:
        paths = [f"{GROUP}/gpuvalidationpolicies/{name}" for name in self.policies]
        paths += [f"/api/v1/nodes/{name}" for name in self.nodes]
        paths += [f"{GROUP}/{plural}/{name}" for name in self.nodes for plural in PER_NODE]
        for path in paths:
            with contextlib.suppress(ApiError):
                self.api.delete(path)


def protect_readings(api: Rest, namespace: str) -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "probes"}
    rule = {"apiGroups": ["nodegauge.dev"], "resources": ["nodereadings"], "verbs": ["create", "patch"]}
    account = {"kind": "ServiceAccount", "namespace": namespace, "name": "default"}
    policy, binding = reading_protection(namespace)
    bound = {"metadata": {"name": f"probes-{namespace}"}, "roleRef": role, "subjects": [account]}
    for path, body in (
        (f"{RBAC}/clusterroles", {"metadata": {"name": "probes"}, "rules": [rule]}),
        (f"{RBAC}/clusterrolebindings", bound),
        (ADMISSION, {"metadata": {"name": NAME}, "spec": policy}),
        (BINDINGS, {"metadata": {"name": NAME}, "spec": binding}),
    ):
        try:
            api.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            api.patch(f"{path}/{body['metadata']['name']}", body)


def install_crds(api: Rest) -> None:
    if served(api):
        return
    for crd in _crds():
        with contextlib.suppress(ApiError):
            api.create(CRDS, crd)
    wait_for(lambda: served(api), what="CRDs served")


def delete_crds(api: Rest, *names: str) -> None:
    """Each is asked again by a change: the API server waits for one where a CRD is too young to list."""
    going = set(names) or {crd["metadata"]["name"] for crd in _crds()}
    for name in going:
        with contextlib.suppress(ApiError):
            api.delete(f"{CRDS}/{name}")

    def there() -> set[str]:
        left = going & {crd["metadata"]["name"] for crd in api.get(CRDS)["items"]}
        for name in left:
            with contextlib.suppress(ApiError):
                api.patch(f"{CRDS}/{name}", {"metadata": {"annotations": {"asked-at": str(time.time())}}})
        return left

    wait_for(lambda: not there() and not served(api), what="CRDs gone", every=0.2)


@functools.cache
def _crds() -> list[Object]:
    return [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]


def served(api: Rest) -> bool:
    return api.serves(*(f"{GROUP}/{plural}" for plural in ("gpuvalidationpolicies", *PER_NODE)))
