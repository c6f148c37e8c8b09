"""What happens to pods on a kubelet: no failure changes the verdict, and no pod stays."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from e2e.cluster import HEALTHY, NAMESPACE, Cluster, pending, process, speaks, terminated
from e2e.node_parts import MUTE, PAUSE, TALKER
from nodegauge_operator import names
from testbed import watching
from testbed.errors import ApiError, TestbedError
from testbed.rest import Object
from testbed.watching import Event

PROBE = "nodegauge.dev/probe"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nodegauge"
MAY_WRITE = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nodegauge-probe"
"""What lets the probes' account write readings."""
OPERATOR = "app.kubernetes.io/component=operator"
URGENT, PROBE_IMAGE = "urgent", "localhost/nodegauge/probe:0.1.0"
DRAINED_WITHIN = 300
KUBELET_PODS = Path("/var/lib/kubelet/pods")

SLOW: Object = {"probes": {"health": {"window": "5s", "deadline": "3m"}}}
"""No trial with it waits for this deadline: a busy API server takes half a minute to come back."""
UNFINISHED = {"probes": {"health": {"window": "15s", "deadline": "20s"}}}
"""The deadline comes after container and Python have started, even on a busy machine: without a handler the
first process of a container ignores SIGTERM."""
SLOT = "example.com/place"
"""An extended resource of which the node has one: the probe has it, and the urgent pod needs it."""
TAKES = {SLOT: "1"}
PLACED = {**SLOW, "podTemplate": {"resources": {"requests": TAKES, "limits": TAKES}}}
"""The probe takes the node's one place of an extended resource, which a pod of higher priority can want."""
SILENT = {**UNFINISHED, "limits": {"overtime": "3s"}}
LITTLE = {"memory": "12Mi"}
ABSENT = {"podTemplate": {"image": "localhost/nodegauge/absent:1"}, "limits": {"notStarted": "10s"}}
USUAL: Object = {
    "podTemplate": None,
    "limits": None,
    "probes": {"health": {"window": "1s", "deadline": "30s"}},
}


def hang(cluster: Cluster) -> None:
    """No run reads everything: it waits ten seconds for its first GPU before it gives up by itself."""
    cluster.hardware.fault("hung-call", call="nvmlDeviceGetHandleByIndex_v2")


def deadline(cluster: Cluster, pod: Object) -> None:
    """Hold the probe still until the kubelet's SIGTERM waits for it; then it speaks its last words.

    Its window has passed by then: without the call that hangs it may write a whole reading."""
    probe = process(pod)
    os.kill(probe, signal.SIGSTOP)
    _let_speak(cluster, probe)


def answer(cluster: Cluster) -> None:
    cluster.hardware.heal("hung-call")


def stubborn(cluster: Cluster, pod: Object) -> None:
    """Hold the probe still, so that it can only be killed."""
    os.kill(process(pod), signal.SIGSTOP)


def delete(cluster: Cluster, pod: Object, **options: int) -> None:
    cluster.delete_pod(pod["metadata"]["name"], namespace=NAMESPACE, **options)


def make_room(cluster: Cluster) -> None:
    """One place on the node, and a priority class; again after a kubelet that has begun anew."""
    path, one = f"/api/v1/nodes/{cluster.node.name}/status", {SLOT: "1"}
    cluster.api.patch(path, {"status": {"capacity": one, "allocatable": one}})
    try:
        priority = {"metadata": {"name": URGENT}, "value": 1000}
        cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    except ApiError as error:
        if error.status != 409:
            raise


def preempt(cluster: Cluster, pod: Object) -> None:
    """A pod of higher priority needs the one place on the node that the probe has (see PLACED)."""
    make_room(cluster)
    main = {"name": "main", "image": PROBE_IMAGE, "imagePullPolicy": "Never", "command": ["python", "-c", ""]}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": cluster.node.name},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": URGENT,
        "containers": [main | {"resources": {"requests": TAKES, "limits": TAKES}}],
    }
    cluster.make_pod(URGENT, spec)


def preempt_unseen(cluster: Cluster, pod: Object) -> None:
    """When the operator hears of it, the pod has long been gone."""
    with _cut_off(cluster):
        preempt(cluster, pod)
        _gone(cluster, pod)


def preempt_meanwhile(cluster: Cluster, pod: Object) -> None:
    """Only a finished run is written down, so the run is done again by a pod of its own."""
    before = cluster.report()
    probe = process(pod)
    os.kill(probe, signal.SIGSTOP)
    _scale(cluster, 0)
    preempt(cluster, pod)
    _let_speak(cluster, probe)
    _gone(cluster, pod)
    clear_preemption(cluster)
    cluster.must_be(cluster.report(), before, what="the report while there is no operator")
    cluster.must_be(cluster.taints(), [], what="our taints while there is no operator")
    cluster.policy(awaited=False, probes={"health": {"window": "1s"}})
    _scale(cluster, 1)


def restart_kubelet(cluster: Cluster, pod: Object) -> None:
    """SIGKILL for the kubelet, and a new one: the container goes on meanwhile."""
    cluster.node.stop_kubelet()
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())


def stop_kubelet(cluster: Cluster, pod: Object) -> None:
    cluster.node.stop_kubelet()


def stop_both(cluster: Cluster, pod: Object) -> None:
    stubborn(cluster, pod)
    stop_kubelet(cluster, pod)


def stop_apiserver(cluster: Cluster, pod: Object) -> None:
    """No API server when the probe has read everything; it tries again until there is one."""
    with cluster.plane.without_apiserver():
        cluster.until(
            lambda: "the reading is not written" in _says(pod), what="what the probe says without API server"
        )


def forbid(cluster: Cluster) -> None:
    """The probes' account loses its right to write, as where an administrator removes the binding."""
    cluster.api.patch(MAY_WRITE, {"subjects": []})


def allow(cluster: Cluster) -> None:
    account = {"kind": "ServiceAccount", "name": "nodegauge-probe", "namespace": NAMESPACE}
    cluster.api.patch(MAY_WRITE, {"subjects": [account]})


def back(cluster: Cluster) -> None:
    """After `stop_kubelet`: the node must turn NotReady, and its kubelet comes back."""
    cluster.until(lambda: cluster.node_is_ready() == "Unknown", what="a node without kubelet to be NotReady")
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())
    cluster.until(lambda: cluster.node_is_ready() == "True", what="the node to be Ready again")


def clear_preemption(cluster: Cluster) -> None:
    if cluster.pod(URGENT) is None:
        return
    cluster.until(lambda: terminated(cluster.pod(URGENT)), what="the urgent pod's end")
    cluster.delete_pod(URGENT)
    cluster.until(lambda: cluster.pod(URGENT) is None, what="the urgent pod to be gone")


@contextmanager
def _cut_off(cluster: Cluster) -> Iterator[None]:
    """No packet from the API server, nor from anybody else outside, reaches the operator's pod."""
    [operator] = cluster.pods(OPERATOR)
    location = f"{operator['status']['podIP']}/32"
    subprocess.run(["ip", "route", "add", "blackhole", location], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", "blackhole", location], check=True)


def _scale(cluster: Cluster, replicas: int) -> None:
    cluster.api.patch(DEPLOYMENT, {"spec": {"replicas": replicas}})

    def done() -> bool:
        ready = cluster.api.get(DEPLOYMENT)["status"].get("readyReplicas", 0)
        return ready == replicas and len(cluster.pods(OPERATOR)) == replicas

    cluster.until(done, what=f"{replicas} operators")


def _says(pod: Object) -> str:
    folder = KUBELET_PODS / pod["metadata"]["uid"] / "containers"
    return "".join(file.read_text(errors="replace") for file in folder.glob("*/*"))


def _let_speak(cluster: Cluster, probe: int) -> None:
    def waits() -> bool:
        if not Path(f"/proc/{probe}").exists():
            raise TestbedError(f"process {probe} was killed before a SIGTERM waited for it")
        return pending(probe, signal.SIGTERM)

    cluster.until(waits, what="the kubelet's SIGTERM")
    os.kill(probe, signal.SIGCONT)


def _gone(cluster: Cluster, pod: Object) -> None:
    name = pod["metadata"]["name"]
    cluster.until(lambda: cluster.pod(name, namespace=NAMESPACE) is None, what=f"{name} to be gone")


@dataclass(frozen=True)
class Failure:
    """`wanted`: outcome and reason of the run that ends next, and `judged` whether that is a run of the
    affected pod; `policy`: merged into the policy; `before`: done before the run is asked for; `act`: done
    once the probe runs; `after`: done when it is judged."""

    name: str
    wanted: str
    policy: Object
    act: Callable[[Cluster, Object], None] | None = None
    after: Callable[[Cluster], None] | None = None
    before: Callable[[Cluster], None] | None = None
    judged: bool = field(default=True, kw_only=True)


ALL = (
    Failure("deadline exceeded", "unknown Terminated", UNFINISHED, deadline, answer, hang),
    Failure("SIGKILL after the grace", "unknown DeadlineExceeded", UNFINISHED, stubborn),
    # From the node's side, as on a shutdown: the handler writes the last words.
    Failure("SIGTERM", "unknown Terminated", SLOW, lambda _, pod: os.kill(process(pod), signal.SIGTERM)),
    Failure("deleted", "unknown PodDeleted", SLOW, delete),
    # As a pod of a lost node: it is gone from the API before its container has ended.
    Failure("removed by force", "unknown PodDeleted", SLOW, partial(delete, gracePeriodSeconds=0)),
    Failure(
        "out of memory",
        "unknown OOMKilled",
        {"podTemplate": {"resources": {"requests": LITTLE, "limits": LITTLE}}},
    ),
    Failure("image missing", "unknown ErrImageNeverPull", ABSENT),
    Failure("image cannot start", "unknown StartError", {"podTemplate": {"image": PAUSE}}),
    Failure("no reading", "unknown NoReading", {"podTemplate": {"image": MUTE}}),
    Failure("a reading that is none", "unknown ResultUnreadable", {"podTemplate": {"image": TALKER}}),
    Failure("preempted", "skipped Preempted", PLACED, preempt, clear_preemption),
    Failure("preempted, operator cut off", "skipped Preempted", PLACED, preempt_unseen, clear_preemption),
    Failure("preempted, no operator", "read Read", PLACED, preempt_meanwhile, judged=False),
    Failure("kubelet restarted", "read Read", SLOW, restart_kubelet),
    Failure("kubelet stopped", "read Read", SLOW, stop_kubelet, back),
    Failure("kubelet stopped, probe stuck", "unknown KubeletSilent", SILENT, stop_both, back),
    Failure("API server away", "read Read", SLOW, stop_apiserver),
    Failure("right to write taken", "unknown NotWritten", UNFINISHED, after=allow, before=forbid),
)


def what_a_kubelet_does(cluster: Cluster) -> None:
    """Every failure in turn."""
    make_room(cluster)
    wrong = []
    for failure in ALL:
        run, affected = _perform(cluster, failure)
        outcome = f"{run.get('outcome')} {run.get('reason')}"
        wrong += [f"{failure.name}: {outcome}, and must be {failure.wanted}"] * (outcome != failure.wanted)
        if (run.get("podUID") == affected) != failure.judged:
            wrong.append(f"{failure.name}: the run is of pod {run['podUID']}, not of {affected}")
        wrong += [f"{failure.name}: taint {taint}" for taint in cluster.taints()]
        missing = HEALTHY.items() - cluster.labels().items()
        wrong += [f"{failure.name}: no label {key}={value}" for key, value in sorted(missing)]
        cluster.say(f"{failure.name} | {outcome} | {run.get('message', '')[:90]}")
    # As Helm applied it: other values would be conflicts for an upgrade.
    cluster.policy(**USUAL)
    if wrong:
        raise TestbedError("; ".join(wrong))


def _perform(cluster: Cluster, failure: Failure) -> tuple[Object, str]:
    """How the run ended, and the pod's UID."""
    cluster.policy(**USUAL, awaited=False)
    cluster.policy(**failure.policy)
    if failure.before is not None:
        failure.before(cluster)
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=PROBE) as seen:
        mark = cluster.ask()
        pod = _act(cluster, failure, mark, seen)
        cluster.until(lambda: cluster.has_answered(mark), what=f"{failure.name}: the run's judgement")
        if failure.after is not None:
            failure.after(cluster)
        cluster.until(lambda: not cluster.pods(PROBE), what=f"{failure.name}: the probe's pod to be gone")
    asked = [event.body for event in seen if _answers(event.body, mark)]
    return cluster.last_run(), (pod or asked[-1])["metadata"]["uid"]


def _answers(pod: Object, mark: str) -> bool:
    return bool(pod["metadata"].get("annotations", {}).get(names.POD_REQUEST) == mark)


def _act(cluster: Cluster, failure: Failure, mark: str, seen: list[Event]) -> Object | None:
    """Wait until the probe runs, and do it; the pod, None where nothing is done to one."""
    if failure.act is None:
        return None

    def its_pod() -> Object | None:
        asked = (event.body for event in reversed(seen) if _answers(event.body, mark))
        return next((pod for pod in asked if speaks(pod)), None)

    pod = cluster.until(its_pod, what=f"{failure.name}: the probe to run")
    assert pod is not None
    failure.act(cluster, pod)
    return pod


def drains(cluster: Cluster) -> None:
    """Only probe pods are drained: this node is the operator's as well."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        cluster.say("no kubectl on PATH: kubectl drain was not tried")
        return
    cluster.policy(**SLOW)
    mark = cluster.ask()
    cluster.until(lambda: any(map(speaks, cluster.pods(PROBE))), what="a probe to run")
    [pod] = cluster.pods(PROBE)
    command = [kubectl, f"--kubeconfig={cluster.plane.kubeconfig}", "drain", cluster.node.name]
    command += [f"--pod-selector={PROBE}", f"--timeout={DRAINED_WITHIN}s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DRAINED_WITHIN)
    if done.returncode or f"pod/{pod['metadata']['name']} evicted" not in done.stdout:
        raise TestbedError(f"kubectl drain ended with {done.returncode}: {done.stdout}{done.stderr}")
    cluster.say("; ".join(done.stdout.splitlines()))
    cluster.until(lambda: cluster.has_answered(mark), what="the run's judgement")
    cluster.must_be(cluster.last_run()["outcome"], "unknown", what="the evicted run's outcome")
    cluster.must_be(cluster.taints(), [], what="our taints after a drain")
    cluster.must_be(cluster.pods(PROBE), [], what="the probes on a node that is being drained")
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"unschedulable": None}})
    cluster.policy(**USUAL)
    cluster.must_be(cluster.measure()["outcome"], "read", what="the next run's outcome")
