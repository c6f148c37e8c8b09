"""One control plane for all tests of a worker; a folder that needs it to itself takes it over as new."""

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from nodegauge_operator.kube.leases import LEASE
from support.cluster_under_test import delete_crds
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.rest import Rest
from testbed.wait import wait_for

T = TypeVar("T")

OF_KUBERNETES = ("default", "kube-")
"""Prefixes of namespaces that stay."""
COLLECTIONS = (
    "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/apps/v1/namespaces/default/deployments",
    "/api/v1/nodes",
)
"""Everything in them goes, in this order."""


class Tenancy:
    def __init__(self) -> None:
        self._plane: ControlPlane | None = None
        self._guests = contextlib.ExitStack()
        self._owner = ""
        self._left: set[str] = set()
        self._paused = False

    @contextlib.contextmanager
    def started(self, directory: Path) -> Any:
        with ControlPlane(directory) as plane, contextlib.closing(self):
            self._plane = plane
            yield plane

    def take(self, owner: str) -> None:
        """A test of this folder is next ("": one that tidies up); TestbedError for a folder that has left."""
        if self._plane is not None and self._paused:
            self._plane.resume()
            self._paused = False
        if owner == self._owner:
            return
        if owner and owner in self._left:
            raise TestbedError(f"tests of {owner} must run one after the other")
        self._guests.close()
        if self._plane is not None:
            reset(self._plane.rest())
        self._left.add(self._owner)
        self._owner = owner

    def pause(self) -> None:
        """End its programs until a test takes it again: idle, they use a twentieth of a core."""
        if self._plane is not None and not self._paused:
            self._guests.close()
            self._plane.stop()
            self._paused = True

    def enter(self, guest: AbstractContextManager[T]) -> T:
        return self._guests.enter_context(guest)

    def close(self) -> None:
        self._guests.close()
        self._plane = None


def reset(rest: Rest) -> None:
    def others() -> list[str]:
        left = [one for one in COLLECTIONS if rest.find(f"{one}?limit=1").get("items")]
        for collection in left:
            rest.delete(collection)
        return left

    wait_for(lambda: not others(), what="the control plane without what tests made", every=0.1)
    with contextlib.suppress(ApiError):
        rest.delete(LEASE)
    delete_crds(rest)

    def namespaces() -> list[str]:
        names = [one["metadata"]["name"] for one in rest.get("/api/v1/namespaces")["items"]]
        paths = [f"/api/v1/namespaces/{name}" for name in names if not name.startswith(OF_KUBERNETES)]
        for path in paths:
            with contextlib.suppress(ApiError):
                rest.delete(path)
        return paths

    def pods() -> list[str]:
        """Pods that are there still: without their nodes nobody else ends them soon."""
        paths = []
        for pod in rest.get("/api/v1/pods")["items"]:
            paths.append(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")
            with contextlib.suppress(ApiError):
                rest.delete(paths[-1], {"gracePeriodSeconds": 0})
        return paths

    wait_for(lambda: not (namespaces() or pods()), what="the control plane as new", every=0.5)


PLANE = Tenancy()
