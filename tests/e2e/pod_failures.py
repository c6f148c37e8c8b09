"""What happens to pods on a kubelet: each failure ends a probe's pod early, and its run is judged.

No failure may change the verdict about the node, and no pod may stay.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e import failure_actions, node_marks
from e2e.cluster import NAMESPACE, Cluster, Object
from e2e.containers import speaks
from e2e.node_images import PAUSE, TALKER
from testbed import watching
from testbed.errors import TestbedError
from testbed.kubelet_comparison import perform, samples
from testbed.watching import Event

PROBE = "nodegauge.dev/probe"
DRAINED_WITHIN = 300

SLOW = {"probes": {"health": {"window": "5s", "deadline": "30s"}}}
SHORT = {"probes": {"health": {"window": "1s", "deadline": "2s"}}}
UNFINISHED = {"probes": {"health": {"window": "4s", "deadline": "6s"}}}
"""A window that has not passed when the trial stops the probe, even on a busy machine: a probe that has read
everything when its deadline comes leaves a whole result, and that is a reading."""
PLACED = {
    **SLOW,
    "podTemplate": {"resources": {"requests": {samples.SLOT: "1"}, "limits": {samples.SLOT: "1"}}},
}
"""The probe takes the node's one place of an extended resource, which a pod of higher priority can want."""
SILENT = {**SHORT, "limits": {"overtime": "3s"}}
USUAL: Object = {
    "podTemplate": None,
    "limits": None,
    "probes": {"health": {"window": "1s", "deadline": "30s"}},
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """`policy`: merged into the policy; `harm`: done once the probe runs; `after`: done when it is judged;
    `wanted`: outcome and reason of the run that ends next, and whether that is a run of the affected pod."""

    name: str
    wanted: tuple[str, str]
    policy: Object = field(default_factory=dict)
    act: Callable[[Cluster, Object], None] | None = None
    after: Callable[[Cluster], None] | None = None
    judged: bool = True


ALL = (
    Failure(
        name="deadline exceeded",
        wanted=("unknown", "Terminated"),
        policy=UNFINISHED,
        act=failure_actions.deadline,
    ),
    Failure(
        name="SIGKILL after the grace",
        wanted=("unknown", "DeadlineExceeded"),
        policy=UNFINISHED,
        act=failure_actions.stubborn,
    ),
    Failure(name="SIGTERM", wanted=("unknown", "Terminated"), policy=SLOW, act=failure_actions.terminate),
    Failure(name="deleted", wanted=("unknown", "PodDeleted"), policy=SLOW, act=failure_actions.delete),
    Failure(
        name="removed by force", wanted=("unknown", "PodDeleted"), policy=SLOW, act=failure_actions.remove
    ),
    Failure(
        name="out of memory",
        wanted=("unknown", "OOMKilled"),
        policy={"podTemplate": {"resources": {"requests": {"memory": "12Mi"}, "limits": {"memory": "12Mi"}}}},
    ),
    Failure(
        name="image missing",
        wanted=("unknown", "ErrImageNeverPull"),
        policy={
            "podTemplate": {"image": "localhost/nodegauge/absent:1"},
            "limits": {"notStarted": "3s"},
        },
    ),
    Failure(
        name="image cannot start",
        wanted=("unknown", "StartError"),
        policy={"podTemplate": {"image": PAUSE}},
    ),
    Failure(
        name="over 4,096 bytes",
        wanted=("unknown", "ResultUnreadable"),
        policy={"podTemplate": {"image": TALKER}},
    ),
    Failure(
        name="preempted",
        wanted=("skipped", "Preempted"),
        policy=PLACED,
        act=failure_actions.preempt,
        after=failure_actions.clear_preemption,
    ),
    Failure(
        name="preempted, operator cut off",
        wanted=("skipped", "Preempted"),
        policy=PLACED,
        act=failure_actions.preempt_unseen,
        after=failure_actions.clear_preemption,
    ),
    Failure(
        name="preempted, no operator",
        wanted=("read", "Read"),
        policy=PLACED,
        act=failure_actions.preempt_meanwhile,
        judged=False,
    ),
    Failure(
        name="kubelet restarted", wanted=("read", "Read"), policy=SLOW, act=failure_actions.restart_kubelet
    ),
    Failure(
        name="kubelet stopped",
        wanted=("unknown", "KubeletSilent"),
        policy=SILENT,
        act=failure_actions.stop_kubelet,
        after=failure_actions.back,
    ),
)


def what_a_kubelet_does(cluster: Cluster) -> None:
    """Every failure in turn; raises TestbedError naming those whose run was not judged as it must be."""
    perform.make_room(cluster.api, node=cluster.node.name)
    wrong = []
    for failure in ALL:
        run, affected = _perform(cluster, failure)
        outcome = (str(run.get("outcome")), str(run.get("reason")))
        wrong += [f"{failure.name}: {outcome}, and must be {failure.wanted}"] * (outcome != failure.wanted)
        if (run.get("podUID") == affected) != failure.judged:
            wrong.append(f"{failure.name}: the run is of pod {run['podUID']}, not of {affected}")
        wrong += [f"{failure.name}: {message}" for message in _unaffected(cluster)]
        cluster.say(f"{failure.name} | {' '.join(outcome)} | {run.get('message', '')[:90]}")
    # As Helm applied it: other values would be conflicts for an upgrade.
    cluster.api.patch(node_marks.POLICY, {"spec": USUAL})
    if wrong:
        raise TestbedError("; ".join(wrong))


def drains(cluster: Cluster) -> None:
    """The probe's controller is its report, so kubectl evicts it like a pod of any controller.

    Only probe pods are drained: this node is the operator's as well.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        cluster.say("no kubectl on PATH: kubectl drain was not tried")
        return
    cluster.api.patch(node_marks.POLICY, {"spec": SLOW})
    before = node_marks.last_run(cluster)
    node_marks.ask(cluster)
    cluster.until(lambda: any(map(speaks, _probes(cluster))), what="a probe to run")
    [pod] = _probes(cluster)
    command = [kubectl, f"--kubeconfig={cluster.plane.kubeconfig}", "drain", cluster.node.name]
    command += [f"--pod-selector={PROBE}", f"--timeout={DRAINED_WITHIN}s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DRAINED_WITHIN)
    if done.returncode:
        raise TestbedError(f"kubectl drain ended with {done.returncode}: {done.stderr.strip()}")
    cluster.say("; ".join(done.stdout.splitlines()))
    if f"pod/{pod['metadata']['name']} evicted" not in done.stdout:
        raise TestbedError(f"kubectl drain evicted no {pod['metadata']['name']}: {done.stdout}{done.stderr}")
    cluster.until(lambda: node_marks.last_run(cluster) != before, what="the run's judgement")
    cluster.must_be(node_marks.last_run(cluster)["outcome"], "unknown", what="the evicted run's outcome")
    cluster.must_be(node_marks.taints(cluster), [], what="our taints after a drain")
    cluster.must_be(_probes(cluster), [], what="the probes on a node that is being drained")
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"unschedulable": None}})
    cluster.api.patch(node_marks.POLICY, {"spec": USUAL})
    cluster.must_be(node_marks.measure(cluster)["outcome"], "read", what="the next run's outcome")


def _perform(cluster: Cluster, failure: Failure) -> tuple[Object, str]:
    """How the run ended, and the pod's UID."""
    cluster.api.patch(node_marks.POLICY, {"spec": USUAL})
    cluster.api.patch(node_marks.POLICY, {"spec": failure.policy})
    before = _last_run(cluster)
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=PROBE) as seen:
        node_marks.ask(cluster)
        pod = _act(cluster, failure, seen)
        judged = f"{failure.name}: the run's judgement"
        cluster.until(lambda: _last_run(cluster) != before, what=judged)
        if failure.after is not None:
            failure.after(cluster)
        cluster.until(lambda: not _probes(cluster), what=f"{failure.name}: the probe's pod to be gone")
    return _last_run(cluster), (pod or seen[-1].body)["metadata"]["uid"]


def _act(cluster: Cluster, failure: Failure, seen: list[Event]) -> Object | None:
    """Wait until the probe runs, and do it; the pod, None where nothing is done to one."""
    if failure.act is None:
        return None
    pod = cluster.until(
        lambda: next((event.body for event in reversed(seen) if speaks(event.body)), None),
        what=f"{failure.name}: the probe to run",
    )
    assert pod is not None
    failure.act(cluster, pod)
    return pod


def _unaffected(cluster: Cluster) -> list[str]:
    """What a failure must not have changed on the node."""
    result = [f"taint {taint}" for taint in node_marks.taints(cluster)]
    now = node_marks.labels(cluster)
    result += [f"label {k}={now.get(k)}" for k, v in node_marks.HEALTHY.items() if now.get(k) != v]
    return result


def _probes(cluster: Cluster) -> list[Object]:
    pods: list[Object] = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={PROBE}")[
        "items"
    ]
    return pods


def _last_run(cluster: Cluster) -> Object:
    return node_marks.last_run(cluster)
