"""Every fault, as a context: it begins, machines change under it, and it ends once it was seen to bite."""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from fleet.real import FAST, GOOD, INTERVAL, NODES, POLICY, RealFleet, until
from nodegauge_contract import Problem, ProblemKind, Result
from support.cluster_under_test import delete_crds, install_crds
from testbed.errors import ApiError
from testbed.kubelet.pod import is_terminal, path_of
from testbed.loopback import LOOPBACK
from testbed.proxy import Refuse, RequestInfo, ResponseInfo, Watches, When

Injection = Callable[[RealFleet], contextlib.AbstractContextManager[None]]
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmission"
HANGS = "nvmlDeviceGetPowerUsage"
HANGING = replace(GOOD, gpus=[], problem=Problem(kind=ProblemKind.CALL_HUNG, call=HANGS, message="hangs"))
WRITES = ("POST", "PATCH", "PUT", "DELETE")
STORM = 0.5
"""Share of the calls that a storm hits."""
CALLS = 20
"""A fault of calls lasts until it has hit so many, which are several for each node."""
READS = 4
"""The same for a fault of reads alone, which the operator makes seldom."""
PODS = 2 * NODES
"""A fault of pods lasts until it has hit so many: two of each node."""
HUNG = 3
"""etcd is frozen until the operator has given up so many calls, and asked again."""
KILLS = 100
"""How often the operator is killed while machines break, and again while they are repaired."""
MOMENT = 40
"""Calls of the operator within which a fault begins: those of about four runs."""
FINALIZER = "example.com/stuck"


def lasting(what: str, hits: Callable[[], int], *, times: int) -> None:
    """The fault goes on until it has hit so often.  A fault that hits no call proves nothing."""
    until(lambda: hits() >= times, what=f"{what}, {times} times")


@contextlib.contextmanager
def apiserver_killed(fleet: RealFleet) -> Iterator[None]:
    """SIGKILL to kube-apiserver in the middle of the runs, and its restart."""
    fleet.after_calls(MOMENT)
    with fleet.plane.without_apiserver(grace=0):
        pass
    yield


@contextlib.contextmanager
def _finding(fleet: RealFleet, result: Result | None, *nodes: str) -> Iterator[None]:
    """The machines of these nodes find this; with None their pods go on."""
    others = fleet.machines.of
    fleet.machines.of = others | dict.fromkeys(nodes, result)
    try:
        yield
    finally:
        fleet.machines.of = others


@contextlib.contextmanager
def etcd_frozen(fleet: RealFleet) -> Iterator[None]:
    """etcd answers nobody, until the operator has given up calls and asked again."""
    yield
    fleet.after_calls(MOMENT)
    with fleet.plane.frozen("etcd"):
        begun, answered = len(fleet.calls.fired), len(fleet.answers.fired)

        def hung() -> int:
            waiting = _shown(fleet.calls.fired[begun:]) - _shown(fleet.answers.fired[answered:])
            return sum(times > 1 for times in waiting.values())

        lasting("a call that etcd does not answer", hung, times=HUNG)


@contextlib.contextmanager
def etcd_restored(fleet: RealFleet) -> Iterator[None]:
    """Runs and what follows from them are lost: etcd is restored from a backup of before."""
    with fleet.plane.restored():
        yield
        fleet.settle()


def _shown(calls: list[RequestInfo]) -> Counter[str]:
    return Counter(f"{call.method} {call.path}" for call in calls)


def _watches(mode: Watches) -> Injection:
    """Watches that say nothing, or end all the time: the end of a calm run comes while they still do."""

    @contextlib.contextmanager
    def inject(fleet: RealFleet) -> Iterator[None]:
        fleet.proxy.watches = mode
        try:
            yield
            fleet.settle()
        finally:
            fleet.proxy.watches = Watches.PASS

    return inject


@contextlib.contextmanager
def connections_cut(fleet: RealFleet) -> Iterator[None]:
    yield
    for _ in range(5):
        fleet.after_calls(MOMENT)
        fleet.proxy.pause()
        fleet.proxy.resume()


@contextlib.contextmanager
def _acting(
    fleet: RealFleet,
    act: Callable[[RequestInfo, ResponseInfo | None], Refuse | None],
    *,
    methods: tuple[str, ...] = (*WRITES, "GET"),
    share: float = 1.0,
    when: When = When.BEFORE,
    times: int = CALLS,
) -> Iterator[None]:
    """So large a share of the calls, or of their answers, is acted on, until enough have been."""
    hits = []

    def do(info: RequestInfo, answer: ResponseInfo | None) -> Refuse | None:
        if info.method not in methods or fleet.random.random() >= share:
            return None
        hits.append(info)
        return act(info, answer)

    rule = fleet.proxy.on(times=None, when=when, do=do)
    try:
        yield
        if len(hits) < times:
            fleet.ask()
        lasting("a call that is hit", lambda: len(hits), times=times)
    finally:
        rule.times = 0


def _storm(status: int, reason: str, *, headers: dict[str, str] | None = None, **which: Any) -> Injection:
    refuse = Refuse(status=status, reason=reason, message="injected", headers=headers or {})
    return lambda fleet: _acting(fleet, lambda *_: refuse, share=STORM, **which)


@contextlib.contextmanager
def reads_expired(fleet: RealFleet) -> Iterator[None]:
    """Half of the reads are expired, and every watch has to begin anew."""
    with _storm(410, "Expired", methods=("GET",), times=READS)(fleet):
        fleet.proxy.pause()
        fleet.proxy.resume()
        yield


def slow_answers(fleet: RealFleet) -> contextlib.AbstractContextManager[None]:
    return _acting(fleet, lambda *_: time.sleep(fleet.random.uniform(0.0, 3.0)))


def _clock(seconds: float) -> Injection:
    """The API server's clock, which dates everything for the operator, is wrong by this much for a while."""

    def date(_: RequestInfo, answer: ResponseInfo | None) -> None:
        assert answer is not None
        moment = time.gmtime(time.time() + seconds)
        answer.headers["Date"] = time.strftime("%a, %d %b %Y %H:%M:%S GMT", moment)

    @contextlib.contextmanager
    def inject(fleet: RealFleet) -> Iterator[None]:
        with _acting(fleet, date, when=When.AFTER):
            yield
            fleet.read_anew()

    return inject


def killed(times: int) -> Injection:
    """SIGKILL to the operator at random moments, and its restart."""

    @contextlib.contextmanager
    def inject(fleet: RealFleet) -> Iterator[None]:
        yield
        for _ in range(times):
            fleet.after_calls(MOMENT // 2)  # of which some are those of its start
            fleet.operator.kill()
            fleet.operator.start()

    return inject


@contextlib.contextmanager
def two_operators(fleet: RealFleet) -> Iterator[None]:
    with fleet.rig.operator(name="second") as second:
        second.wait_ready()
        yield
        fleet.read_anew()


@contextlib.contextmanager
def node_made_again(fleet: RealFleet) -> Iterator[None]:
    """Two nodes are deleted while their probes run, and register again."""
    yield
    names = fleet.random.sample(fleet.rig.nodes, 2)
    for name in names:
        fleet.rig.api.delete(f"/api/v1/nodes/{name}")
    fleet.after_calls(MOMENT)
    for name in names:
        fleet.make_again(name)


@contextlib.contextmanager
def node_cordoned(fleet: RealFleet) -> Iterator[None]:
    paths = [f"/api/v1/nodes/{name}" for name in fleet.random.sample(fleet.rig.nodes, 2)]
    for path in paths:
        fleet.rig.api.patch(path, {"spec": {"unschedulable": True}})
    yield
    fleet.read_anew()
    for path in paths:
        fleet.rig.api.patch(path, {"spec": {"unschedulable": None}})


@contextlib.contextmanager
def namespace_deleted(fleet: RealFleet) -> Iterator[None]:
    yield
    fleet.after_calls(MOMENT)
    path = f"/api/v1/namespaces/{fleet.rig.namespace}"
    fleet.rig.api.delete(path)
    until(lambda: not fleet.rig.api.find(path), what="the namespace gone")
    fleet.rig.api.create("/api/v1/namespaces", {"metadata": {"name": fleet.rig.namespace}})
    fleet.plane.await_objects(namespace=fleet.rig.namespace)


@contextlib.contextmanager
def crds_deleted(fleet: RealFleet) -> Iterator[None]:
    yield
    fleet.after_calls(MOMENT)
    delete_crds(fleet.rig.api)
    install_crds(fleet.rig.api)
    fleet.rig.policies.clear()
    fleet.rig.add_policy("faults", **FAST)


def _pods(what: str, act: Callable[[RealFleet, dict[str, Any]], object]) -> Injection:
    """Something happens to every probe pod while it runs."""

    @contextlib.contextmanager
    def inject(fleet: RealFleet) -> Iterator[None]:
        yield
        hit: set[str] = set()

        def hits() -> int:
            if not (pods := _running(fleet)):
                fleet.ask()
            for pod in pods:
                with contextlib.suppress(ApiError):  # it may be gone, or changed, since it was listed
                    act(fleet, pod)
                    hit.add(pod["metadata"]["uid"])
            return len(hit)

        with _finding(fleet, None, *fleet.rig.nodes):
            lasting(what, hits, times=PODS)

    return inject


def _running(fleet: RealFleet) -> list[dict[str, Any]]:
    pods = (pod for pod in fleet.rig.pods() if not is_terminal(pod))
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _evict(fleet: RealFleet, pod: dict[str, Any]) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    fleet.rig.api.create(f"{path_of(pod)}/eviction", body)


@contextlib.contextmanager
def pods_stuck(fleet: RealFleet) -> Iterator[None]:
    """A stranger's finalizer keeps a probe pod of every node, until the operator has deleted some twice."""
    yield
    kept: set[str] = set()
    begun = len(fleet.calls.fired)
    fleet.ask()

    def keeps() -> bool:
        for path in map(path_of, _running(fleet)):
            with contextlib.suppress(ApiError):
                fleet.rig.api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
                kept.add(path)
        return len(kept) >= NODES

    def twice() -> int:
        calls = _shown(fleet.calls.fired[begun:])
        return sum(calls[f"DELETE {path}"] > 1 for path in kept)

    try:
        with _finding(fleet, None, *fleet.rig.nodes):
            until(keeps, what="a pod of each node")
        lasting("a pod that is stuck is deleted again", twice, times=2)
    finally:
        for path in kept:
            fleet.rig.api.patch(path, {"metadata": {"finalizers": None}})


@contextlib.contextmanager
def _refusing(fleet: RealFleet, *, path: str, what: str) -> Iterator[None]:
    """The API server refuses calls of this path for a reason that holds `what`; it ends once it has."""
    refused: list[str] = []

    def note(_: RequestInfo, answer: ResponseInfo | None) -> None:
        if answer is not None and answer.status >= 400 and what in str(answer.json()):
            refused.append(str(answer.json()["message"]))

    rule = fleet.proxy.on(times=None, path=path, when=When.AFTER, do=note)
    yield
    fleet.ask()
    lasting(f"a call refused with {what!r}", lambda: len(refused), times=6)
    rule.times = 0


def refusal(kind: str) -> dict[str, Any]:
    every: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
    return every[kind]


@contextlib.contextmanager
def quota_zero(fleet: RealFleet) -> Iterator[None]:
    path = f"/api/v1/namespaces/{fleet.rig.namespace}/resourcequotas"
    fleet.rig.api.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    try:
        with _often(fleet), _refusing(fleet, path="/pods$", what="exceeded quota"):
            yield
    finally:
        fleet.rig.api.delete(f"{path}/none")


@contextlib.contextmanager
def webhook_hangs(fleet: RealFleet) -> Iterator[None]:
    with socket.create_server((LOOPBACK, 0)) as silent:
        url = f"https://{LOOPBACK}:{silent.getsockname()[1]}/"
        webhook = refusal("webhook") | {"clientConfig": {"url": url}}
        fleet.rig.api.create(WEBHOOKS, {"metadata": {"name": "silent"}, "webhooks": [webhook]})
        try:
            with _refusing(fleet, path="", what="failed calling webhook"):
                yield
        finally:
            fleet.rig.api.delete(f"{WEBHOOKS}/silent")


@contextlib.contextmanager
def _often(fleet: RealFleet, *, mode: str = "Periodic") -> Iterator[None]:
    """Nodes are read every 10 s, and `validated-at` is written anew when it is 15 s old."""

    def set_health(mode: str, *, interval: str) -> None:
        health = {"mode": mode, "interval": interval}
        fleet.rig.api.patch(POLICY, {"spec": {"probes": {"health": health}}})

    set_health(mode, interval="10s")
    try:
        yield
    finally:
        set_health("Periodic", interval=INTERVAL)


@contextlib.contextmanager
def label_refused(fleet: RealFleet) -> Iterator[None]:
    """A rule of the cluster refuses one label: taints come and go, and the policy says which label."""
    binding = {"policyName": "no-times", "validationActions": ["Deny"]}
    fleet.rig.api.create(
        f"{ADMISSION}policies", {"metadata": {"name": "no-times"}, "spec": refusal("policy")}
    )
    fleet.rig.api.create(f"{ADMISSION}policybindings", {"metadata": {"name": "no-times"}, "spec": binding})
    try:
        with _often(fleet), _refusing(fleet, path="/nodes/", what="no times in labels"):
            yield
        tainted = fleet.expected[fleet.state]["tainted"]
        until(lambda: fleet.summary()["tainted"] == tainted, what=f"{tainted} nodes tainted")
        until(lambda: fleet.shows("Ready") == "LabelRefused", what="the condition Ready")
    finally:
        for kind in ("policybindings", "policies"):
            fleet.rig.api.delete(f"{ADMISSION}{kind}/no-times")


@contextlib.contextmanager
def driver_hangs(fleet: RealFleet) -> Iterator[None]:
    """A call of one node's driver does not return: its report says so, whatever it said before."""
    yield
    node = fleet.rig.nodes[-1]

    def says_so() -> bool:
        status = fleet.reports().get(node, {}).get("status", {})
        return status.get("verdict") == "unknown" and HANGS in status.get("summary", "")

    with _finding(fleet, HANGING, node):
        fleet.ask()
        until(says_so, what=f"the report of {node} to name {HANGS}")


@contextlib.contextmanager
def watchers_gone(fleet: RealFleet) -> Iterator[None]:
    """No container starts, and somebody deletes and patches the DaemonSet: health pods read the nodes."""
    sets = f"/apis/apps/v1/namespaces/{fleet.rig.namespace}/daemonsets"

    def made() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = fleet.rig.api.get(sets)["items"]
        return items

    with _often(fleet, mode="Watch"):
        yield
        until(lambda: bool(made()), what="a DaemonSet")
        [first] = made()
        fleet.rig.api.delete(f"{sets}/{first['metadata']['name']}")
        gone = first["metadata"]["uid"]
        until(lambda: [one["metadata"]["uid"] != gone for one in made()] == [True], what="another")
        nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"no": "where"}}}}}
        fleet.rig.api.patch(f"{sets}/{first['metadata']['name']}", nowhere)
        until(lambda: "'nodeSelector'" not in str(made()), what="no nodeSelector")
        until(lambda: fleet.shows("WatchersReady") == "ContainersMissing", what="the condition WatchersReady")
        before = fleet.runs()
        until(lambda: not fleet.unread(before), what="runs of health pods")
    until(lambda: not made(), what="no DaemonSet")


INJECTIONS: dict[str, Injection] = {
    "nothing": lambda fleet: contextlib.nullcontext(),
    "API server killed": apiserver_killed,
    "etcd frozen": etcd_frozen,
    "etcd restored": etcd_restored,
    "connections cut": connections_cut,
    "watches silent": _watches(Watches.SILENT),
    "watches cut every 100 ms": _watches(Watches.CUT),
    "409 storm": _storm(409, "Conflict", methods=WRITES),
    "410 storm": reads_expired,
    "429 storm, Retry-After": _storm(429, "TooManyRequests", headers={"Retry-After": "1"}),
    "500 storm": _storm(500, "InternalError"),
    "503 storm": _storm(503, "ServiceUnavailable"),
    "slow answers": slow_answers,
    "clock an hour ahead": _clock(3600.0),
    "clock an hour behind": _clock(-3600.0),
    "operator killed": killed(KILLS),
    "two operators": two_operators,
    "nodes made again": node_made_again,
    "nodes cordoned": node_cordoned,
    "namespace deleted": namespace_deleted,
    "CRDs deleted": crds_deleted,
    "pods deleted": _pods("a pod deleted", lambda fleet, pod: fleet.rig.api.delete(path_of(pod))),
    "pods evicted": _pods("a pod evicted", _evict),
    "pods stuck": pods_stuck,
    "quota 0": quota_zero,
    "webhook hangs": webhook_hangs,
    "a label refused": label_refused,
    "a driver call hangs": driver_hangs,
    "watch containers gone": watchers_gone,
}
