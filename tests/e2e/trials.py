"""What a kubelet does to pods: each trial harms a probe's pod and looks at what the API showed of it.

None may end in a verdict about the node, and no pod may stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e import carried, harms
from e2e.containers import speaks
from e2e.pictures import PAUSE, TALKER
from e2e.world import LOOK_SECONDS, NAMESPACE, Object, World
from testbed.errors import TestbedError
from testbed.likeness import perform, samples, watching
from testbed.likeness.watching import Event
from testbed.table import table

PROBE = "nodegauge.dev/probe"
WITHIN = 120.0

SLOW = {"probes": {"health": {"window": "5s", "deadline": "30s"}}}
SHORT = {"probes": {"health": {"window": "1s", "deadline": "2s"}}}
PLACED = {
    **SLOW,
    "podTemplate": {"resources": {"requests": {samples.PLACE: "1"}, "limits": {samples.PLACE: "1"}}},
}
"""The probe takes the node's one place of an extended resource, which a pod of higher priority can want."""
SILENT = {**SHORT, "limits": {"overtime": "3s"}}
USUAL: Object = {
    "podTemplate": None,
    "limits": None,
    "probes": {"health": {"window": "1s", "deadline": "30s"}},
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`policy`: merged into the policy; `harm`: done once the probe runs; `after`: done when it is judged;
    `wanted`: outcome and reason of the run that ends next, and whether that is a run of the harmed pod."""

    name: str
    wanted: tuple[str, str]
    policy: Object = field(default_factory=dict)
    harm: Callable[[World, Object], None] | None = None
    after: Callable[[World], None] | None = None
    judged: bool = True


ALL = (
    Trial(name="deadline exceeded", wanted=("unknown", "Terminated"), policy=SHORT, harm=harms.deadline),
    Trial(
        name="SIGKILL after the grace",
        wanted=("unknown", "DeadlineExceeded"),
        policy=SHORT,
        harm=harms.stubborn,
    ),
    Trial(name="SIGTERM", wanted=("unknown", "Terminated"), policy=SLOW, harm=harms.terminate),
    Trial(name="deleted", wanted=("unknown", "PodDeleted"), policy=SLOW, harm=harms.delete),
    Trial(name="removed by force", wanted=("unknown", "PodDeleted"), policy=SLOW, harm=harms.remove),
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
    Trial(
        name="preempted",
        wanted=("skipped", "Preempted"),
        policy=PLACED,
        harm=harms.preempt,
        after=harms.clear_preemption,
    ),
    Trial(
        name="preempted, operator cut off",
        wanted=("skipped", "Preempted"),
        policy=PLACED,
        harm=harms.preempt_unseen,
        after=harms.clear_preemption,
    ),
    Trial(
        name="preempted, no operator",
        wanted=("read", "Read"),
        policy=PLACED,
        harm=harms.preempt_meanwhile,
        judged=False,
    ),
    Trial(name="kubelet restarted", wanted=("read", "Read"), policy=SLOW, harm=harms.restart_kubelet),
    Trial(
        name="kubelet stopped",
        wanted=("unknown", "KubeletSilent"),
        policy=SILENT,
        harm=harms.stop_kubelet,
        after=harms.back,
    ),
)


def what_a_kubelet_does(world: World) -> None:
    """The table of trials; raises TestbedError naming every row that is not as it must be."""
    perform.make_room(world.api, node=world.node.name)
    rows, wrong = [], []
    for trial in ALL:
        began = time.monotonic()
        shown, run, harmed = _perform(world, trial)
        outcome = (str(run.get("outcome")), str(run.get("reason")))
        wrong += [f"{trial.name}: {outcome}, and must be {trial.wanted}"] * (outcome != trial.wanted)
        if (run.get("podUID") == harmed) != trial.judged:
            wrong.append(f"{trial.name}: the run is of pod {run.get('podUID')}, the harmed one was {harmed}")
        wrong += [f"{trial.name}: {words}" for words in _unharmed(world)]
        rows.append([trial.name, shown, " ".join(outcome), f"{time.monotonic() - began:.1f} s"])
        world.say(" | ".join(rows[-1]) + f" | {run.get('message', '')[:90]}")
    # As Helm applied it: other values would be conflicts for an upgrade.
    world.api.patch(carried.POLICY, {"spec": USUAL})
    print("\n" + table([["TRIAL", "WHAT THE API SHOWED", "CONCLUDED", "TIME"], *rows]) + "\n", flush=True)
    if wrong:
        raise TestbedError("; ".join(wrong))


def _perform(world: World, trial: Trial) -> tuple[str, Object, str]:
    """What the API showed of the pod at last, how the run ended, and the pod's UID."""
    world.api.patch(carried.POLICY, {"spec": USUAL})
    world.api.patch(carried.POLICY, {"spec": trial.policy})
    before = _last_run(world)
    with watching.pods(world.plane, namespace=NAMESPACE, selector=PROBE) as seen:
        carried.ask(world)
        pod = _harm(world, trial, seen)
        end = time.monotonic() + WITHIN
        while _last_run(world) == before:
            if time.monotonic() > end:
                raise TestbedError(f"{trial.name}: no judgement within {WITHIN:.0f} s; {_shown(seen)}")
            time.sleep(LOOK_SECONDS)
        if trial.after is not None:
            trial.after(world)
        world.until(lambda: not _probes(world), seconds=60, what=f"{trial.name}: the probe's pod to be gone")
    uid = (pod or seen[-1].pod)["metadata"]["uid"]
    return _shown([one for one in seen if one.pod["metadata"]["uid"] == uid]), _last_run(world), uid


def _harm(world: World, trial: Trial, seen: list[Event]) -> Object | None:
    """Wait until the probe runs, and do it; the pod, None where nothing is done to one."""
    if trial.harm is None:
        return None
    pod = world.until(
        lambda: next((event.pod for event in reversed(seen) if speaks(event.pod)), None),
        seconds=60,
        what=f"{trial.name}: the probe to run",
    )
    assert pod is not None
    trial.harm(world, pod)
    return pod


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
    return carried.last_run(world)


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
