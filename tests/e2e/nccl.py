"""NCCL and load runs on a real kubelet; NCCL and CUDA are simulated, pods and preemption are real."""

import time

from e2e.cluster import NAMESPACE, PREFIX, WORKLOADS, Cluster, terminated
from e2e.node_parts import ENGINE
from nodegauge_contract import Result, decode
from nodegauge_probes.load.probe import CHILD
from testbed import watching
from testbed.marks import labels_of
from testbed.processes import with_argument
from testbed.rest import Object
from testbed.watching import Event

GPU = "nvidia.com/gpu"
GPUS = 8
PROBE = f"{PREFIX}probe"
BUSBW = {"busbw-allreduce": 462, "busbw-allgather": 347, "busbw-reducescatter": 348}
"""GB/s: what the profile says of the machine."""
NOISE = 0.03
SHM_BYTES = 4 << 30
PRIORITY = -50
JOB = "train"
LOAD = {"enabled": True, "duration": "15s", "deadline": "3m"}
HANGS_AFTER = "30,2,2"
"""Seconds for starting, measuring and ending, instead of 90, 45 and 10."""


def measures(cluster: Cluster) -> None:
    """A pod that `restricted` admits gets all GPUs and a /dev/shm of its size; its numbers become labels."""
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=PROBE) as seen:
        cluster.until(lambda: _number(cluster) > 0 or _ended(seen), what="the end of a first NCCL run")
        over = ""
        if not _holding(seen):  # it ended before this watch
            over = _await_run(cluster, "read", after=0)["podUID"]
            cluster.ask()
        cluster.until(lambda: _ended(seen, but=over), what="the end of an NCCL run's pod")
        pod = _ended(seen, but=over)
        assert pod is not None
        uid = pod["metadata"]["uid"]
        cluster.until(lambda: cluster.last_run("nccl").get("podUID") == uid, what=f"the run of pod {uid}")
    run = cluster.last_run("nccl")
    cluster.must_be(run["outcome"], "read", what=f"the outcome of NCCL run {run['number']} ({run})")
    holding = _holding(seen)
    cluster.must_be(
        {(one["spec"]["nodeName"], taken(one), one["spec"]["priority"]) for one in holding},
        {(cluster.node.name, cluster.all_gpus, PRIORITY)},
        what="node, GPUs and priority of the NCCL probe's pod from binding to its end",
    )
    pulls = [e.body for e in seen if _is(e, "pull")]
    cluster.must_be({"", *map(taken, pulls)}, {""}, what="GPUs of the pod that brings its image")
    nccl = _written(cluster, "nccl", pod).nccl
    assert nccl is not None
    cluster.must_be((nccl.ranks, nccl.expected), (GPUS, GPUS), what="GPUs measured, and expected")
    memory = cluster.node_object()["status"]["allocatable"]["memory"].removesuffix("Ki")
    cluster.must_be(nccl.shm_bytes, min(SHM_BYTES, int(memory) << 10), what="the size of /dev/shm")
    cluster.until(lambda: _measured(cluster), what="labels of what was measured")
    cluster.say(
        f"the NCCL run held {taken(holding[0])} with priority {PRIORITY} and a /dev/shm of"
        f" {nccl.shm_bytes} bytes from {run['startedAt']} to {run['finishedAt']}: {_numbers(cluster)}"
    )


def gives_way(cluster: Cluster) -> None:
    """A job takes all GPUs from an NCCL run at once; it is skipped, and what was measured stays."""
    kept, before = _kept(cluster), _number(cluster)
    cluster.hardware.fault("nccl-in-real-time")
    cluster.ask()
    with (
        watching.pods(cluster.plane, namespace=NAMESPACE, selector=f"{PROBE}=nccl") as ours,
        watching.pods(cluster.plane, namespace=WORKLOADS, selector=JOB) as jobs,
    ):
        cluster.until(lambda: with_argument(ENGINE), what="NCCL at work")
        [pod] = cluster.pods(f"{PROBE}%3Dnccl")
        victim, asked = pod["metadata"]["uid"], time.monotonic()
        cluster.make_pod(JOB, _job(cluster), train="")
        cluster.until(lambda: not with_argument(ENGINE), what="the engine's processes to be gone", every=0.05)
        ended = time.monotonic()
        running = cluster.until(
            lambda: next((e.at for e in jobs if e.body["status"].get("phase") == "Running"), 0.0),
            what="the job to run",
        )
        cluster.until(
            lambda: any(e.kind == "DELETED" and e.body["metadata"]["uid"] == victim for e in ours),
            what="the NCCL probe's pod to be gone",
        )
    cluster.hardware.heal("nccl-in-real-time")
    run = _await_run(cluster, "skipped", after=before)
    cluster.must_be((run["podUID"], run["reason"]), (victim, "Preempted"), what="the NCCL probe's end")
    cluster.must_be(_kept(cluster), kept, what="what was measured before")
    cluster.must_be(with_argument(ENGINE), [], what="processes of the engine")
    cluster.say(
        f"after a job wanted {GPUS} GPUs: processes gone {ended - asked:.1f} s,"
        f" job running {running - asked:.1f} s"
    )


def hangs(cluster: Cluster) -> None:
    """The NCCL run comes back when the job is over; an engine that hangs is a finding, and nothing stays."""
    cluster.hardware.heal("nccl-in-real-time")
    cluster.hardware.fault("nccl-hang", arm="default")
    cluster.node.tell_gpu_containers(NODEGAUGE_NCCL_LIMITS=HANGS_AFTER)
    before = _number(cluster)
    if cluster.pod(JOB) is None:
        cluster.ask()
    else:
        cluster.delete_pod(JOB)
    run = _await_run(cluster, "read", after=before)
    cluster.must_be(with_argument(ENGINE), [], what="processes of the engine")
    cluster.hardware.heal("nccl-hang")
    cluster.node.tell_gpu_containers()
    probe = cluster.probe("nccl")
    cluster.must_be([f["code"] for f in probe["findings"]], ["nccl-hang"], what="what was found")
    cluster.must_be(cluster.taints(), [], what="our taints after one hang")
    cluster.say(f"{probe['summary']} {probe['findings'][0]['message']}")
    _await_run(cluster, "read", after=run["number"])
    cluster.must_be(cluster.probe("nccl").get("findings", []), [], what="findings when nothing hangs")
    cluster.until(lambda: _measured(cluster), what="labels of what was measured")
    cluster.until(lambda: not cluster.pods(f"{PROBE}%3Dnccl"), what="the NCCL probe's pods to be gone")
    # What follows looks at health probes, and at pods of theirs alone.
    cluster.policy(probes={"nccl": {"enabled": False}})


def loads(cluster: Cluster) -> None:
    """A load run takes all GPUs, every GPU computes right, and the report says so."""
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=f"{PROBE}=load") as seen:
        cluster.policy(probes={"load": LOAD})
        cluster.ask()
        # Before that, it looks whether the GPUs are free.
        cluster.until(lambda: with_argument(CHILD), what="the process that drives the GPUs")
        cluster.hardware.load(100)
        cluster.until(lambda: _ended(seen, "load"), what="the end of the load run")
        cluster.hardware.load(0)
    pod = _ended(seen, "load")
    assert pod is not None
    asked = (taken(pod), pod["spec"]["priority"])
    cluster.must_be(asked, (cluster.all_gpus, PRIORITY), what="GPUs, and priority")
    load = _written(cluster, "load", pod).load
    assert load is not None
    ends = {(gpu.ended, gpu.mismatches, gpu.memory_mismatches) for gpu in load.gpus}
    cluster.must_be((len(load.gpus), ends), (GPUS, {("done", 0, 0)}), what="how each GPU ended, and errors")
    cluster.until(lambda: cluster.last_run("load"), what="the run in the report")
    probe = cluster.probe("load")
    cluster.must_be((probe["verdict"], cluster.taints()), ("pass", []), what="verdict and taints")
    cluster.say(f"the load run held {cluster.all_gpus} with priority {PRIORITY}: {probe['summary']}")
    cluster.policy(probes={"load": {"enabled": False}})


def _job(cluster: Cluster) -> Object:
    by_claim = {"name": "gpus", "resourceClaimTemplateName": cluster.all_gpus}
    claims = [] if cluster.all_gpus.startswith(GPU) else [by_claim]
    return {
        "nodeSelector": {"kubernetes.io/hostname": cluster.node.name},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": claims,
        "containers": [
            {
                "name": "main",
                "image": "localhost/nodegauge/probe:0.1.0",
                "command": ["python", "-c", "import time; time.sleep(3600)"],
                "resources": {"claims": [{"name": "gpus"}]} if claims else {"limits": {GPU: str(GPUS)}},
            }
        ],
    }


def _is(event: Event, probe: str) -> bool:
    return bool(event.body["metadata"]["labels"][PROBE] == probe)


def _ended(events: list[Event], probe: str = "nccl", *, but: str = "") -> Object | None:
    """The last that was seen of a run's ended pod; not of the pod with the UID `but`."""
    pods = (e.body for e in reversed(events) if _is(e, probe) and e.body["metadata"]["uid"] != but)
    return next((pod for pod in pods if terminated(pod)), None)


def _holding(events: list[Event]) -> list[Object]:
    bound = [e.body for e in events if _is(e, "nccl") and e.body["spec"].get("nodeName")]
    return [pod for pod in bound if not terminated(pod)]


def _written(cluster: Cluster, part: str, pod: Object | None) -> Result:
    assert pod is not None
    written = cluster.reading(part)
    cluster.must_be(written.get("podUID"), pod["metadata"]["uid"], what=f"who wrote the part {part}")
    cluster.must_be(terminated(pod).get("message", ""), "", what="the message of a pod that wrote")
    return decode(written["reading"])


def taken(pod: Object) -> str:
    """The GPUs that a pod asks for, by resource and by claim: see `Cluster.all_gpus`."""
    [resources] = [one.get("resources", {}) for one in pod["spec"]["containers"]]
    by_resource = [f"{GPU}: {resources['requests'][GPU]}"] if GPU in resources.get("requests", {}) else []
    return ", ".join(
        by_resource + [one["resourceClaimTemplateName"] for one in pod["spec"].get("resourceClaims", ())]
    )


def _number(cluster: Cluster) -> int:
    return int(cluster.last_run("nccl").get("number", 0))


def _await_run(cluster: Cluster, outcome: str, *, after: int) -> Object:
    cluster.until(lambda: _number(cluster) > after, what=f"the NCCL run after number {after}")
    run = cluster.last_run("nccl")
    cluster.must_be(run["outcome"], outcome, what=f"the outcome of NCCL run {run['number']} ({run})")
    return run


def _numbers(cluster: Cluster) -> dict[str, str]:
    return {k: v for k, v in cluster.labels().items() if k.removeprefix(PREFIX) in BUSBW}


def _measured(cluster: Cluster) -> bool:
    result = cluster.labels()
    near = [abs(int(result.get(f"{PREFIX}{name}", 0)) - gbps) <= gbps * NOISE for name, gbps in BUSBW.items()]
    return all(near) and result.get(f"{PREFIX}interconnect-evidence") == "measured"


def _kept(cluster: Cluster) -> Object:
    return {"labels": labels_of(cluster.labels()), "bandwidth": cluster.report()["bandwidth"]}
