"""Every fault, as a context: it begins, a machine changes under it, and it ends."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fleet.real import FAST, World, Wrong
from support.cluster_under_test import delete_crds, install_crds
from testbed.errors import ApiError
from testbed.loopback import LOOPBACK
from testbed.proxy import Refuse, RequestInfo, ResponseInfo, Watches, When
from testbed.wait import wait_for

Injection = Callable[[World], contextlib.AbstractContextManager[None]]
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
WRITES = ("POST", "PATCH", "PUT", "DELETE")
STORM = 0.5
"""Share of the calls that a storm hits."""
FINALIZER = "example.com/stuck"
PODS_SECONDS = 60.0
"""Within this every node is read anew: all are due every ten seconds."""


def nothing(world: World) -> contextlib.AbstractContextManager[None]:
    """A calm day."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def apiserver_killed(world: World) -> Iterator[None]:
    """SIGKILL to kube-apiserver in the middle of the runs, and its restart."""
    time.sleep(world.random.uniform(0.2, 1.5))
    world.plane.restart_apiserver(grace=0)
    yield


@contextlib.contextmanager
def etcd_frozen(world: World) -> Iterator[None]:
    """etcd answers nobody for eight seconds."""
    yield
    time.sleep(world.random.uniform(0.2, 1.0))
    with world.plane.frozen("etcd"):
        time.sleep(8.0)


def _watches(mode: Watches) -> Injection:
    """Watches that say nothing, or end all the time: the end of a calm run comes while they still do."""

    @contextlib.contextmanager
    def inject(world: World) -> Iterator[None]:
        world.proxy.watches = mode
        try:
            yield
            world.settle()
        finally:
            world.proxy.watches = Watches.PASS

    return inject


@contextlib.contextmanager
def connections_cut(world: World) -> Iterator[None]:
    """Every connection is cut, five times."""
    yield
    for _ in range(5):
        time.sleep(world.random.uniform(0.2, 0.8))
        world.proxy.pause()
        time.sleep(world.random.uniform(0.0, 0.5))
        world.proxy.resume()


def _storm(refuse: Refuse, *, methods: tuple[str, ...] = (), seconds: float = 8.0) -> Injection:
    @contextlib.contextmanager
    def inject(world: World) -> Iterator[None]:
        with _acting(world, lambda info: refuse if not methods or info.method in methods else None):
            yield
            time.sleep(seconds)

    return inject


@contextlib.contextmanager
def _acting(
    world: World, act: Callable[[RequestInfo], Refuse | None], *, share: float = STORM
) -> Iterator[None]:
    """So large a share of the calls is acted on until the end."""
    over = threading.Event()

    hits = 0

    def do(info: RequestInfo, _: ResponseInfo | None) -> Refuse | None:
        nonlocal hits
        hit = not over.is_set() and world.random.random() < share
        hits += hit
        return act(info) if hit else None

    world.proxy.on(times=None, do=do)
    try:
        yield
    finally:
        over.set()
    _bit(hits)


@contextlib.contextmanager
def slow_answers(world: World) -> Iterator[None]:
    """Every call takes up to three seconds more."""

    def dawdle(_: RequestInfo) -> None:
        time.sleep(world.random.uniform(0.0, 3.0))

    with _acting(world, dawdle, share=1.0):
        yield
        time.sleep(8.0)


def _clock(seconds: float) -> Injection:
    """The API server's clock, which dates everything for the operator, is wrong by this much for a while."""

    @contextlib.contextmanager
    def inject(world: World) -> Iterator[None]:
        over = threading.Event()

        def date(_: RequestInfo, answer: ResponseInfo | None) -> None:
            if answer is not None and not over.is_set():
                moment = time.gmtime(time.time() + seconds)
                answer.headers["Date"] = time.strftime("%a, %d %b %Y %H:%M:%S GMT", moment)

        world.proxy.on(times=None, when=When.AFTER, do=date)
        try:
            yield
            time.sleep(6.0)
        finally:
            over.set()

    return inject


def killed(times: int) -> Injection:
    """SIGKILL to the operator at random moments, and its restart."""

    @contextlib.contextmanager
    def inject(world: World) -> Iterator[None]:
        yield
        for n in range(times):
            time.sleep(world.random.uniform(0.0, 1.5))
            world.operator.kill()
            world.operator.start()
            if n % 5 == 4:
                world.operator.wait_ready()
                world.ask()

    return inject


@contextlib.contextmanager
def two_operators(world: World) -> Iterator[None]:
    """A second process of the same installation works beside the first."""
    with world.rig.operator(name="second") as second:
        second.wait_ready()
        yield
        time.sleep(5.0)


@contextlib.contextmanager
def node_made_again(world: World) -> Iterator[None]:
    """Two nodes are deleted while their probes run, and register again."""
    yield
    names = world.random.sample(world.rig.nodes, 2)
    for name in names:
        world.rig.api.delete(f"/api/v1/nodes/{name}")
    time.sleep(world.random.uniform(0.0, 2.0))
    for name in names:
        world.make_again(name)


@contextlib.contextmanager
def node_cordoned(world: World) -> Iterator[None]:
    """Two nodes are cordoned for five seconds."""
    names = world.random.sample(world.rig.nodes, 2)
    _cordon(world, names, on=True)
    yield
    time.sleep(5.0)
    _cordon(world, names, on=False)


def _cordon(world: World, names: list[str], *, on: bool) -> None:
    for name in names:
        world.rig.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": on or None}})


@contextlib.contextmanager
def namespace_deleted(world: World) -> Iterator[None]:
    """The operator's namespace goes with all that is in it, and is made again."""
    yield
    path = f"/api/v1/namespaces/{world.rig.namespace}"
    world.rig.api.delete(path)
    wait_for(lambda: not _there(world, path), seconds=60, what="the namespace gone")
    world.rig.api.create("/api/v1/namespaces", {"metadata": {"name": world.rig.namespace}})
    world.plane.await_objects(namespace=world.rig.namespace)


@contextlib.contextmanager
def crds_deleted(world: World) -> Iterator[None]:
    """The CRDs go with all policies and reports, and are applied again."""
    yield
    time.sleep(world.random.uniform(0.0, 1.0))
    delete_crds(world.rig.api)
    install_crds(world.rig.api)
    world.rig.policies.clear()
    world.rig.add_policy("faults", **FAST)


@contextlib.contextmanager
def pods_deleted(world: World) -> Iterator[None]:
    """Probe pods are deleted while they run."""
    yield
    _for_a_while(
        lambda: sum(_tolerant(world.rig.api.delete, _path(pod)) for pod in world.rig.pods()),
        seconds=3.0,
    )


@contextlib.contextmanager
def pods_evicted(world: World) -> Iterator[None]:
    """Probe pods are evicted, as `kubectl drain` does."""
    yield

    def evict(pod: dict[str, Any]) -> bool:
        metadata = {"name": pod["metadata"]["name"]}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        return _tolerant(world.rig.api.create, f"{_path(pod)}/eviction", body)

    _for_a_while(lambda: sum(evict(pod) for pod in world.rig.pods()), seconds=3.0)


@contextlib.contextmanager
def pods_stuck(world: World) -> Iterator[None]:
    """A stranger's finalizer keeps every probe pod for ten seconds."""
    yield
    kept: set[str] = set()

    def keep(pod: dict[str, Any]) -> bool:
        if FINALIZER in pod["metadata"].get("finalizers", []):
            return False
        kept.add(_path(pod))
        return _tolerant(world.rig.api.patch, _path(pod), {"metadata": {"finalizers": [FINALIZER]}})

    _for_a_while(lambda: sum(keep(pod) for pod in world.rig.pods()), seconds=10.0)
    hits = [_tolerant(world.rig.api.patch, path, {"metadata": {"finalizers": None}}) for path in kept]
    _bit(sum(hits))


@contextlib.contextmanager
def quota_zero(world: World) -> Iterator[None]:
    """A ResourceQuota admits no pod for eight seconds."""
    path = f"/api/v1/namespaces/{world.rig.namespace}/resourcequotas"
    body = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    world.rig.api.create(path, body)
    yield
    time.sleep(8.0)
    world.rig.api.delete(f"{path}/none")


@contextlib.contextmanager
def webhook_hangs(world: World) -> Iterator[None]:
    """A validating webhook for nodes, pods and reports takes connections and says nothing, for a while."""
    with socket.create_server((LOOPBACK, 0)) as silent:
        rules = [
            {"apiGroups": ["", "nodegauge.dev"], "apiVersions": ["*"], "operations": ["*"]}
            | {"resources": ["nodes", "nodes/status", "pods", "nodereports/status"]}
        ]
        webhook = {
            "name": "silent.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 2,
            "failurePolicy": "Fail",
            "clientConfig": {"url": f"https://{LOOPBACK}:{silent.getsockname()[1]}/"},
            "rules": rules,
            "matchConditions": [
                {"name": "operator", "expression": "request.userInfo.username.startsWith('admin')"}
            ],
        }
        world.rig.api.create(WEBHOOKS, {"metadata": {"name": "silent"}, "webhooks": [webhook]})
        try:
            yield
            time.sleep(10.0)
        finally:
            world.rig.api.delete(f"{WEBHOOKS}/silent")


def _there(world: World, path: str) -> bool:
    try:
        world.rig.api.get(path)
    except ApiError as error:
        return error.status != 404
    return True


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _tolerant(call: Callable[..., Any], *arguments: Any) -> bool:
    """Whether it could be done: the pod may be gone, or changed, since it was listed."""
    try:
        call(*arguments)
    except ApiError:
        return False
    return True


def _for_a_while(act: Callable[[], int], *, seconds: float) -> None:
    """Act ten times a second, for so long, and on until something was hit: on a machine that stands still
    pods may come late."""
    hits, began = 0, time.monotonic()
    while time.monotonic() < began + seconds or (not hits and time.monotonic() < began + PODS_SECONDS):
        time.sleep(0.1)
        hits += act()
    _bit(hits)


def _bit(hits: int) -> None:
    """A fault that met nothing shows nothing."""
    if not hits:
        raise Wrong("the fault met no call and no pod")


def _refusal(status: int, reason: str, **headers: str) -> Refuse:
    return Refuse(status=status, reason=reason, message="injected", headers=headers)


INJECTIONS: dict[str, Injection] = {
    "nothing": nothing,
    "API server killed": apiserver_killed,
    "etcd frozen": etcd_frozen,
    "connections cut": connections_cut,
    "watches silent": _watches(Watches.SILENT),
    "watches cut every 100 ms": _watches(Watches.CUT),
    "409 storm": _storm(_refusal(409, "Conflict"), methods=WRITES),
    "410 storm": _storm(_refusal(410, "Expired"), methods=("GET",)),
    "429 storm, Retry-After": _storm(_refusal(429, "TooManyRequests", **{"Retry-After": "1"})),
    "500 storm": _storm(_refusal(500, "InternalError")),
    "503 storm": _storm(_refusal(503, "ServiceUnavailable")),
    "slow answers": slow_answers,
    "clock an hour ahead": _clock(3600.0),
    "clock an hour behind": _clock(-3600.0),
    "operator killed": killed(20),
    "two operators": two_operators,
    "nodes made again": node_made_again,
    "nodes cordoned": node_cordoned,
    "namespace deleted": namespace_deleted,
    "CRDs deleted": crds_deleted,
    "pods deleted": pods_deleted,
    "pods evicted": pods_evicted,
    "pods stuck": pods_stuck,
    "quota 0": quota_zero,
    "webhook hangs": webhook_hangs,
}
