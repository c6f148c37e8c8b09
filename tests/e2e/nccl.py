"""The benchmark on a real kubelet: it holds all GPUs, gives them to whoever comes, and outlives its engine.

The engine is the testbed's stand-in for NCCL, inside the benchmark's image; pods, priorities, preemption, the
file system under /dev/shm and the ends of processes are real.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from e2e import carried, containers
from e2e.carried import PREFIX
from e2e.pictures import ENGINE
from e2e.steps import container
from e2e.world import NAMESPACE, TRIALS, Object, World, terminated
from nodegauge_contract import decode
from testbed.errors import TestbedError
from testbed.likeness import watching
from testbed.likeness.watching import Event

GPU = "nvidia.com/gpu"
GPUS = 8
PROBE = f"{PREFIX}probe"
BUSBW = {"busbw-allreduce": 462, "busbw-allgather": 347, "busbw-reducescatter": 348}
"""GB/s: what the profile says of the machine."""
NOISE = 0.03
SHM_BYTES = 4 << 30
PRIORITY = -50
JOB = "train"
WITHIN = 60.0
AT_ONCE = 2.0
"""Seconds from asking for a job until it runs and no process of the benchmark is left."""
TIMELY = ("processes gone", "job running")
TRIES = 2
"""A machine that is busy for a moment is late once."""
LOOK_SECONDS = 0.02
HANGS_AFTER = "30,2,2"
"""Seconds for starting, measuring and ending, instead of 90, 45 and 10."""


def measures(world: World) -> None:
    """A pod that `restricted` admits gets all GPUs and a /dev/shm of its size; its numbers become labels."""
    with watching.pods(world.plane, namespace=NAMESPACE, selector=PROBE) as seen:
        if carried.probe(world, "nccl"):  # it was faster than this watch
            carried.ask(world)
        world.until(lambda: _ended(seen), seconds=WITHIN, what="the end of a benchmark's pod")
        _await_run(world, "read", after=0)
    pod = _ended(seen)
    holding = [e.pod for e in seen if _is(e, "nccl") and _bound(e) and not terminated(e.pod)]
    world.must_be(
        {(one["spec"]["nodeName"], _held(one), one["spec"]["priority"]) for one in holding},
        {(world.node.name, str(GPUS), PRIORITY)},
        what=f"node, {GPU} and priority of the benchmark's pod from binding to its end",
    )
    pulls = [e.pod for e in seen if _is(e, "pull")]
    world.must_be({"", *map(_held, pulls)}, {""}, what=f"{GPU} of the pod that brings its image")
    nccl = decode(terminated(pod)["message"]).nccl
    assert nccl is not None
    world.must_be((nccl.ranks, nccl.expected), (GPUS, GPUS), what="GPUs measured, and expected")
    memory = world.node_object()["status"]["allocatable"]["memory"].removesuffix("Ki")
    world.must_be(nccl.shm_bytes, min(SHM_BYTES, int(memory) << 10), what="the size of /dev/shm")
    world.until(lambda: _measured(world), seconds=WITHIN, what="labels of what was measured")
    run = carried.last_run(world, "nccl")
    world.say(
        f"the benchmark held {GPU}: {_held(holding[0])} with priority {PRIORITY} and a /dev/shm of"
        f" {nccl.shm_bytes} bytes from {run['startedAt']} to {run['finishedAt']}: {_numbers(world)}"
    )


def gives_way(world: World) -> None:
    """A job takes all GPUs from a benchmark at once; it is skipped, and what was measured stays."""
    for left in reversed(range(TRIES)):
        times = _take_over(world)
        words = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in times.items())
        world.say(f"after a job wanted {GPUS} GPUs: {words}")
        if all(times[what] < AT_ONCE for what in TIMELY):
            return
        if left:
            before = _number(world)
            _end_job(world)
            _await_run(world, "read", after=before)
    raise TestbedError(f"a job did not have a benchmark's GPUs within {AT_ONCE} s, {TRIES} times: {words}")


def hangs(world: World) -> None:
    """The benchmark comes back when the job is over; an engine that hangs is a finding, and nothing stays."""
    world.hardware.heal("nccl-in-real-time")
    world.hardware.fault("nccl-hang", arm="default")
    world.node.tell_gpu_containers(NODEGAUGE_NCCL_LIMITS=HANGS_AFTER)
    before = _number(world)
    if world.pod(JOB) is None:
        carried.ask(world)
    else:
        _end_job(world)
    run = _await_run(world, "read", after=before)
    world.must_be(containers.with_argument(ENGINE), [], what="processes of the engine")
    world.hardware.heal("nccl-hang")
    world.node.tell_gpu_containers()
    probe = carried.probe(world, "nccl")
    world.must_be([f["code"] for f in probe["findings"]], ["nccl-hang"], what="what was found")
    world.must_be(carried.taints(world), [], what="our taints after one hang")
    world.say(f"{probe['summary']} {probe['findings'][0]['message']}")
    _await_run(world, "read", after=run["number"])
    world.must_be(carried.probe(world, "nccl")["findings"], [], what="findings when nothing hangs")
    world.until(lambda: _measured(world), seconds=WITHIN, what="labels of what was measured")
    world.until(lambda: not _pods(world), seconds=WITHIN, what="the benchmark's pods to be gone")
    # What follows looks at health probes, and at pods of theirs alone.
    world.api.patch(carried.POLICY, {"spec": {"probes": {"nccl": {"enabled": False}}}})


def _take_over(world: World) -> dict[str, float]:
    """Let a job take a benchmark's GPUs while it measures; seconds from asking for the job to each event."""
    kept = _kept(world)
    world.hardware.fault("nccl-in-real-time")
    before = _number(world)
    carried.ask(world)
    with (
        watching.pods(world.plane, namespace=NAMESPACE, selector=f"{PROBE}=nccl") as ours,
        watching.pods(world.plane, namespace=TRIALS, selector=JOB) as jobs,
    ):
        victim = _measuring(world)
        asked = time.monotonic()
        world.api.create(f"/api/v1/namespaces/{TRIALS}/pods", _job(world))
        ended = _until_none(world)
        running = world.until(lambda: _at(jobs, _runs), seconds=WITHIN, what="the job to run")
        gone = world.until(
            lambda: _at(ours, lambda event: event.kind == "DELETED" and _uid(event.pod) == victim),
            seconds=WITHIN,
            what="the benchmark's pod to be gone",
        )
    bound = _at(jobs, _bound)
    world.hardware.heal("nccl-in-real-time")
    run = _await_run(world, "skipped", after=before)
    world.must_be((run["podUID"], run["reason"]), (victim, "Preempted"), what="the benchmark's end")
    world.must_be(_kept(world), kept, what="what was measured before")
    world.must_be(containers.with_argument(ENGINE), [], what="processes of the engine")
    moments = {"processes gone": ended, "job bound": bound, "job running": running, "pod gone": gone}
    return {what: at - asked for what, at in moments.items()}


def _measuring(world: World) -> str:
    """Wait until a benchmark's engine is past its start, which takes its real time now; its pod's UID.

    A kubelet is slow to hear of a pod that it has just started: it looks at its containers once a second, and
    first ends what it was about.  Tried: 1.7 s from the order to SIGTERM, against 0.1 s later on.
    """
    world.until(lambda: containers.with_argument(ENGINE), seconds=WITHIN, what="NCCL at work")
    nccl = world.hardware.profile.nccl
    assert nccl is not None
    starts_until = time.monotonic() + nccl.init_seconds + nccl.load_seconds
    world.until(lambda: time.monotonic() > starts_until, seconds=WITHIN, what="NCCL to measure")
    [pod] = _pods(world)
    return _uid(pod)


def _until_none(world: World) -> float:
    """When the last process of the engine had gone."""
    end = time.monotonic() + WITHIN
    while containers.with_argument(ENGINE):
        if time.monotonic() > end:
            raise TestbedError(f"the engine's processes are still there after {WITHIN:.0f} s")
        time.sleep(LOOK_SECONDS)
    return time.monotonic()


def _job(world: World) -> Object:
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": world.node.name},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [container("import time; time.sleep(3600)", resources={"limits": {GPU: str(GPUS)}})],
    }
    return {"metadata": {"name": JOB, "labels": {JOB: ""}}, "spec": spec}


def _end_job(world: World) -> None:
    world.api.delete(f"/api/v1/namespaces/{TRIALS}/pods/{JOB}")
    world.until(lambda: world.pod(JOB) is None, seconds=WITHIN, what="the job to be gone")


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _at(events: list[Event], seen: Callable[[Event], bool]) -> float:
    """When the first such event came; 0.0 while there is none."""
    return next((event.at for event in events if seen(event)), 0.0)


def _runs(event: Event) -> bool:
    return bool(event.pod["status"].get("phase") == "Running")


def _bound(event: Event) -> bool:
    return bool(event.pod["spec"].get("nodeName"))


def _is(event: Event, probe: str) -> bool:
    return bool(event.pod["metadata"]["labels"][PROBE] == probe)


def _ended(events: list[Event]) -> Object | None:
    """The last that was seen of a benchmark's pod after its container ended."""
    return next((e.pod for e in reversed(events) if _is(e, "nccl") and terminated(e.pod)), None)


def _held(pod: Object) -> str:
    """GPUs that a pod asks for, and so has once it is bound."""
    found: str = pod["spec"]["containers"][0]["resources"]["requests"].get(GPU, "")
    return found


def _pods(world: World) -> list[Object]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={PROBE}%3Dnccl"
    found: list[Object] = world.api.get(path)["items"]
    return found


def _number(world: World) -> int:
    return int(carried.last_run(world, "nccl").get("number", 0))


def _await_run(world: World, outcome: str, *, after: int) -> Object:
    """The first benchmark after that number; TestbedError where it did not end so."""
    world.until(lambda: _number(world) > after, seconds=WITHIN, what=f"the benchmark after number {after}")
    run = carried.last_run(world, "nccl")
    world.must_be(run["outcome"], outcome, what=f"the outcome of benchmark {run['number']} ({run})")
    return run


def _numbers(world: World) -> dict[str, str]:
    return {k: v for k, v in carried.labels(world).items() if k.removeprefix(PREFIX) in BUSBW}


def _measured(world: World) -> bool:
    """Whether the labels are those of this machine."""
    found = carried.labels(world)
    near = [abs(int(found.get(f"{PREFIX}{name}", 0)) - gbps) <= gbps * NOISE for name, gbps in BUSBW.items()]
    return all(near) and found.get(f"{PREFIX}interconnect-evidence") == "measured"


def _kept(world: World) -> Object:
    """What was measured: labels and the report's numbers.  When health was last read is another matter."""
    labels = {k: v for k, v in carried.labels(world).items() if not k.endswith("/validated-at")}
    return {"labels": labels, "bandwidth": world.report()["bandwidth"]}
