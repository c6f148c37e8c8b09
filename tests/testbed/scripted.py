"""Nodes without a kubelet, and a kubelet that ends their pods as a test says."""

import threading
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from testbed.binaries import KUBERNETES, release
from testbed.errors import ApiError
from testbed.rest import STRATEGIC, Object, Rest
from testbed.wait import T
from testbed.watching import watch

Answer = Callable[[Object], str | None]
"""From a pod to the document that its probe writes; None to leave the pod alone for now."""
READINGS = "/apis/nodegauge.dev/v1alpha1/nodereadings"

LOOK_SECONDS = 0.05
"""Between two looks at what a watch has told."""


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def create_node(
    api: Rest, name: str, *, labels: Mapping[str, str] | None = None, boot: str = "boot-1"
) -> None:
    own = {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"}
    api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": own | dict(labels or {})}})
    free = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp()}
    kubelet = f"v{KUBERNETES[release()]}"
    status = {
        "capacity": free,
        "allocatable": free,
        "conditions": [ready],
        "nodeInfo": {
            "bootID": boot,
            "kubeletVersion": kubelet,
            "operatingSystem": "linux",
        },
    }
    api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    # The node-lifecycle controller removes the not-ready taint a moment later; a test need not wait for that.
    api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


class ScriptedKubelet:
    def __init__(self, api: Rest, *, namespace: str, answer: Answer) -> None:
        self.answer = answer
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-kubelet", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> "ScriptedKubelet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_SECONDS):
                self._tried(self._follow)
        except BaseException as error:  # raised when the test leaves its block
            traceback.print_exception(error)
            self.failure = error

    def _follow(self) -> None:
        """Serve each pod when it changes, and at every look those that are left alone for now."""
        due: dict[str, Object] = {}
        with watch(self._api, self._path) as seen:
            while not seen.ended and not self._stop.wait(LOOK_SECONDS):
                news = seen[:]
                del seen[: len(news)]
                for event in news:
                    uid = event.body["metadata"].get("uid", "")
                    due.pop(uid, None)
                    if event.kind in ("ADDED", "MODIFIED"):
                        due[uid] = event.body
                for uid, pod in list(due.items()):
                    if self._tried(lambda pod=pod: self._is_served(pod)):  # type: ignore[misc]
                        del due[uid]

    @staticmethod
    def _tried(act: Callable[[], T]) -> T | None:
        try:
            return act()
        except ApiError as error:
            # 401: the token of a pod that is gone; 403: a policy that is not in force yet
            if error.status not in (401, 403, 404, 409, 500, 503):
                raise
        except OSError:
            pass  # some tests stop the API server
        return None

    def _is_served(self, pod: Object) -> bool:
        """Whether nothing more is to be done for it as it is."""
        metadata, status = pod["metadata"], pod.get("status", {})
        if metadata.get("deletionTimestamp"):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            self._api.delete(f"{self._path}/{metadata['name']}", options)
        elif pod["spec"].get("nodeName") and status.get("phase") == "Pending":
            document = self.answer(pod)
            if document is None:
                return False
            if document:
                self.write_reading(pod, document)
            self.finish(pod, "")
        return True

    def write_reading(self, pod: Object, document: str) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        accounts, account = self._path.replace("/pods", "/serviceaccounts"), spec.get("serviceAccountName")
        token = f"{accounts}/{account or 'default'}/token"
        asked = self._api.create(token, {"spec": {"boundObjectRef": bound}})
        node = self._api.get(f"/api/v1/nodes/{spec['nodeName']}")
        part = {
            "sequence": 1,
            "at": stamp(),
            "reason": "run",
            "pod": metadata["name"],
            "podUID": metadata["uid"],
            "nodeUID": node["metadata"]["uid"],
            "bootID": node["status"]["nodeInfo"]["bootID"],
            "reading": document,
        }
        own, name = self._api.with_token(asked["status"]["token"]), spec["nodeName"]
        body = {metadata["labels"]["nodegauge.dev/probe"]: part}
        if self._api.find(f"{READINGS}/{name}"):
            own.patch(f"{READINGS}/{name}", body)
        else:
            kind = {"apiVersion": "nodegauge.dev/v1alpha1", "kind": "NodeReading"}
            own.create(READINGS, kind | {"metadata": {"name": name}} | body)

    def finish(self, pod: Object, message: str, *, exit_code: int = 0, reason: str = "Completed") -> None:
        metadata = pod["metadata"]
        phase = "Succeeded" if exit_code == 0 else "Failed"
        status = ended(phase, message, exit_code, reason, container=pod["spec"]["containers"][0]["name"])
        self._api.patch(
            f"{self._path}/{metadata['name']}/status",
            {"metadata": {"uid": metadata["uid"]}, "status": status},
            content_type=STRATEGIC,
        )


def ended(phase: str, message: str, exit_code: int, reason: str, *, container: str = "probe") -> Object:
    now = stamp()
    times = {"startedAt": now, "finishedAt": now}
    terminated = {"exitCode": exit_code, "reason": reason, "message": message, **times}
    image = {"name": container, "image": "nodegauge/probe:test", "imageID": "sha256:0"}
    status = {**image, "ready": False, "restartCount": 0, "state": {"terminated": terminated}}
    return {"phase": phase, "startTime": now, "containerStatuses": [status]}
