"""The load run on a real kubelet: it holds all GPUs, and its program drives them through libcuda.

CUDA is the testbed's simulated library, which the node's runtime brings into the container as the NVIDIA
runtime does; the program, its processes and its pod are real.  The machine is mounted read-only, so this step
says in its place that the GPUs work.
"""

from __future__ import annotations

from e2e import containers, node_marks
from e2e.cluster import NAMESPACE, Cluster, Object, terminated
from e2e.nccl import GPU, GPUS, PRIORITY, PROBE
from nodegauge_contract import decode
from nodegauge_probes.load.probe import CHILD
from testbed.kubelet_comparison import watching
from testbed.kubelet_comparison.watching import Event

LOAD = {"enabled": True, "duration": "15s", "deadline": "3m"}


def loads(cluster: Cluster) -> None:
    """Somebody asks for a run: one pod takes all GPUs, every GPU computes right, the report says so."""
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=f"{PROBE}=load") as seen:
        cluster.api.patch(node_marks.POLICY, {"spec": {"probes": {"load": LOAD}}})
        node_marks.ask(cluster)
        # Before that, it looks whether the GPUs are free.
        cluster.until(lambda: containers.with_argument(CHILD), what="the process that drives the GPUs")
        cluster.hardware.load(100)
        cluster.until(lambda: _ended(seen), what="the end of the load run")
        cluster.hardware.load(0)
    pod = _ended(seen)
    assert pod is not None
    asked = pod["spec"]["containers"][0]["resources"]["requests"].get(GPU)
    cluster.must_be((asked, pod["spec"]["priority"]), (str(GPUS), PRIORITY), what=f"{GPU}, and priority")
    load = decode(terminated(pod)["message"]).load
    assert load is not None
    ends = {(gpu.ended, gpu.mismatches, gpu.memory_mismatches) for gpu in load.gpus}
    cluster.must_be((len(load.gpus), ends), (GPUS, {("done", 0, 0)}), what="how each GPU ended, and errors")
    cluster.until(lambda: node_marks.last_run(cluster, "load"), what="the run in the report")
    probe = node_marks.probe(cluster, "load")
    cluster.must_be((probe["verdict"], node_marks.taints(cluster)), ("pass", []), what="verdict and taints")
    cluster.say(f"the load run held {GPU}: {GPUS} with priority {PRIORITY}: {probe['summary']}")
    cluster.api.patch(node_marks.POLICY, {"spec": {"probes": {"load": {"enabled": False}}}})


def _ended(events: list[Event]) -> Object | None:
    return next((event.pod for event in reversed(events) if terminated(event.pod)), None)
