"""What a kubelet does to pods: each trial harms a probe's pod and looks at what the API showed of it.

None may end in a verdict about the node, and no pod may stay.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from e2e import carried
from e2e.pictures import PAUSE, TALKER
from e2e.steps import container
from e2e.world import NAMESPACE, TRIALS, Object, World, terminated
from testbed.errors import TestbedError
from testbed.likeness import watching
from testbed.likeness.watching import Event
from testbed.table import table

POLICY = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default"
PROBE = "nodegauge.dev/probe"
LOOK_SECONDS = 0.1
ENDS_WITHIN = 60.0
SILENT_WITHIN = 110.0
"""The probe's deadline, and a minute that the operator grants to a kubelet (core/runs.py)."""

SLOW = {"probes": {"health": {"window": "5s", "deadline": "30s"}}}
SHORT = {"probes": {"health": {"window": "1s", "deadline": "2s"}}}
USUAL: Object = {
    "podTemplate": None,
    "limits": None,
    "probes": {"health": {"window": "1s", "deadline": "30s"}},
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`policy`: merged into the policy; `harm`: done once the probe runs; `wanted`: outcome, reason."""

    name: str
    wanted: tuple[str, str]
    policy: Object = field(default_factory=dict)
    harm: Callable[[World, Object], None] | None = None
    within: float = ENDS_WITHIN


def deadline(world: World, pod: Object) -> None:
    """Hold the probe still until the kubelet's SIGTERM waits for it; then it speaks its last words."""
    probe = _process(pod)
    os.kill(probe, signal.SIGSTOP)
    world.until(lambda: _pending(probe, signal.SIGTERM), seconds=20, what="the kubelet's SIGTERM")
    os.kill(probe, signal.SIGCONT)


def stubborn(world: World, pod: Object) -> None:
    """Hold the probe still, so that it can only be killed."""
    os.kill(_process(pod), signal.SIGSTOP)


def terminate(world: World, pod: Object) -> None:
    """SIGTERM from the node's side, as on a shutdown: the handler writes the last words."""
    os.kill(_process(pod), signal.SIGTERM)


def delete(world: World, pod: Object) -> None:
    """As an eviction or a drain does."""
    world.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")


def preempt(world: World, pod: Object) -> None:
    """A pod of higher priority that needs the place of the probe's CPU."""
    priority = {"metadata": {"name": "urgent"}, "value": 1000}
    world.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    cores = int(world.node_object()["status"]["allocatable"]["cpu"])
    request = {
        "requests": {"cpu": f"{cores * 1000 - 105}m"}
    }  # beside the operator's 100m, not the probe's 10m
    spec = {
        "restartPolicy": "Never",
        "priorityClassName": "urgent",
        "containers": [container("pass", resources=request)],
    }
    world.api.create(f"/api/v1/namespaces/{TRIALS}/pods", {"metadata": {"name": "urgent"}, "spec": spec})


def restart_kubelet(world: World, pod: Object) -> None:
    """SIGKILL for the kubelet, and a new one: the container goes on meanwhile."""
    world.node.stop_kubelet()
    world.node.start_kubelet(world.plane.node_kubeconfig())


def stop_kubelet(world: World, pod: Object) -> None:
    """SIGKILL for the kubelet: the node turns NotReady, the pod's status stands still."""
    world.node.stop_kubelet()


ALL = (
    Trial(name="deadline exceeded", wanted=("unknown", "Terminated"), policy=SHORT, harm=deadline),
    Trial(
        name="SIGKILL after the grace", wanted=("unknown", "DeadlineExceeded"), policy=SHORT, harm=stubborn
    ),
    Trial(name="SIGTERM", wanted=("unknown", "Terminated"), policy=SLOW, harm=terminate),
    Trial(name="deleted", wanted=("unknown", "PodDeleted"), policy=SLOW, harm=delete),
    Trial(
        name="out of memory",
        wanted=("unknown", "OOMKilled"),
        policy={"podTemplate": {"resources": {"requests": {"memory": "12Mi"}, "limits": {"memory": "12Mi"}}}},
    ),
    Trial(
        name="image missing",
        wanted=("unknown", "ErrImageNeverPull"),
        policy={
            "podTemplate": {"image": "localhost/nodegauge/absent:1"},
            "limits": {"notStarted": "3s"},
        },
    ),
    Trial(
        name="image cannot start",
        wanted=("unknown", "StartError"),
        policy={"podTemplate": {"image": PAUSE}},
    ),
    Trial(
        name="over 4,096 bytes",
        wanted=("unknown", "ResultUnreadable"),
        policy={"podTemplate": {"image": TALKER}},
    ),
    Trial(name="preempted", wanted=("skipped", "Preempted"), policy=SLOW, harm=preempt),
    Trial(name="kubelet restarted", wanted=("read", "Read"), policy=SLOW, harm=restart_kubelet),
    Trial(
        name="kubelet stopped",
        wanted=("unknown", "KubeletSilent"),
        policy=SHORT,
        harm=stop_kubelet,
        within=SILENT_WITHIN,
    ),
)


def what_a_kubelet_does(world: World) -> None:
    """The table of trials; raises TestbedError naming every row that is not as it must be."""
    rows, wrong = [], []
    for trial in ALL:
        began = time.monotonic()
        shown, run = _perform(world, trial)
        outcome = (str(run.get("outcome")), str(run.get("reason")))
        wrong += [f"{trial.name}: {outcome}, and must be {trial.wanted}"] * (outcome != trial.wanted)
        wrong += [f"{trial.name}: {words}" for words in _unharmed(world)]
        rows.append([trial.name, shown, " ".join(outcome), f"{time.monotonic() - began:.1f} s"])
        world.say(" | ".join(rows[-1]) + f" | {run.get('message', '')[:90]}")
    world.api.patch(
        POLICY, {"spec": USUAL}
    )  # as Helm applied it: other values would be conflicts for an upgrade
    print("\n" + table([["TRIAL", "WHAT THE API SHOWED", "CONCLUDED", "TIME"], *rows]) + "\n", flush=True)
    if wrong:
        raise TestbedError("; ".join(wrong))


def _perform(world: World, trial: Trial) -> tuple[str, Object]:
    """What the API showed of the pod at last, and how the run ended."""
    world.api.patch(POLICY, {"spec": USUAL})
    world.api.patch(POLICY, {"spec": trial.policy})
    before = _last_run(world)
    with watching.pods(world.plane, namespace=NAMESPACE, selector=PROBE) as seen:
        carried.ask(world)
        _harm(world, trial, seen)
        end = time.monotonic() + trial.within
        while _last_run(world) == before:
            if time.monotonic() > end:
                raise TestbedError(f"{trial.name}: no judgement within {trial.within:.0f} s; {_shown(seen)}")
            time.sleep(LOOK_SECONDS)
        if trial.harm is stop_kubelet:
            _back(world)
        world.until(lambda: not _probes(world), seconds=30, what=f"{trial.name}: the probe's pod to be gone")
        if trial.harm is preempt:
            _clear(world)
    return _shown(seen), _last_run(world)


def _harm(world: World, trial: Trial, seen: list[Event]) -> None:
    """Wait until the probe runs, and do it."""
    if trial.harm is not None:
        pod = world.until(
            lambda: next((event.pod for event in reversed(seen) if _speaks(event.pod)), None),
            seconds=30,
            what=f"{trial.name}: the probe to run",
        )
        assert pod is not None
        trial.harm(world, pod)


def _back(world: World) -> None:
    """The node was NotReady; its kubelet comes back."""
    ready = {c["type"]: c["status"] for c in world.node_object()["status"]["conditions"]}["Ready"]
    world.must_be(ready, "Unknown", what="the condition Ready of a node without kubelet")
    world.node.start_kubelet(world.plane.node_kubeconfig())
    world.until(
        lambda: (
            {c["type"]: c["status"] for c in world.node_object()["status"]["conditions"]}["Ready"] == "True"
        ),
        seconds=30,
        what="the node to be Ready again",
    )


def _clear(world: World) -> None:
    """Take the urgent pod away."""
    world.until(lambda: terminated(world.pod("urgent")), seconds=30, what="the urgent pod's end")
    world.api.delete(f"/api/v1/namespaces/{TRIALS}/pods/urgent")


def _unharmed(world: World) -> list[str]:
    """What a trial must not have done to the node."""
    found = [f"taint {taint}" for taint in carried.taints(world)]
    now = carried.labels(world)
    found += [f"label {k}={now.get(k)}" for k, v in carried.HEALTHY.items() if now.get(k) != v]
    return found


def _probes(world: World) -> list[Object]:
    pods: list[Object] = world.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={PROBE}")["items"]
    return pods


def _last_run(world: World) -> Object:
    found: Object = (world.report().get("probes") or [{}])[0].get("lastRun") or {}
    return found


def _shown(seen: list[Event]) -> str:
    """The last state of the pod that the API showed while it ran or after, in words."""
    told = [_state(event.pod) for event in seen]
    ended = [words for words in told if "exit" in words] or told or ["no pod"]
    gone = ", then gone" if any(event.kind == "DELETED" for event in seen) else ""
    return ended[-1] + gone


def _state(pod: Object) -> str:
    status = pod["status"]
    words = [" ".join(filter(None, [status.get("phase"), status.get("reason")]))]
    disrupted = [c for c in status.get("conditions", []) if c["type"] == "DisruptionTarget"]
    words += [f"DisruptionTarget={c.get('reason', '')}" for c in disrupted]
    state = (status.get("containerStatuses") or [{}])[0].get("state") or {}
    if "waiting" in state:
        words.append(f"waiting {state['waiting'].get('reason', '')}")
    if end := state.get("terminated"):
        size = len(end.get("message", "").encode())
        words.append(f"exit {end['exitCode']} {end.get('reason', '')}, message {size} bytes")
    return ", ".join(words)


def _speaks(pod: Object) -> bool:
    """Whether the probe's own process runs and has come so far that it handles signals."""
    status = (pod["status"].get("containerStatuses") or [{}])[0]
    if "running" not in status.get("state", {}):
        return False
    found = _find(pod)
    return found is not None and _mask(found, "SigCgt") >> (signal.SIGTERM - 1) & 1 == 1


def _process(pod: Object) -> int:
    found = _find(pod)
    if found is None:
        raise TestbedError(f"no process of pod {pod['metadata']['name']} is to be found")
    return found


def _find(pod: Object) -> int | None:
    """The container's first process: the one of this pod that is process 1 in its own namespace."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOSTNAME={pod['metadata']['name']}".encode() not in (entry / "environ").read_bytes().split(
                b"\0"
            ):
                continue
            spaces = next(x for x in (entry / "status").read_text().splitlines() if x.startswith("NSpid"))
        except OSError:
            continue
        if spaces.split()[-1] == "1":
            return int(entry.name)
    return None


def _pending(process: int, number: int) -> bool:
    return bool((_mask(process, "SigPnd") | _mask(process, "ShdPnd")) >> (number - 1) & 1)


def _mask(process: int, name: str) -> int:
    """A field of signals of /proc/PID/status; 0 when the process has gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line for line in lines if line.startswith(name)).split()[1], 16)
