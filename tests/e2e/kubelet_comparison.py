"""The testbed's table of pods on this real kubelet, against what is written down of it.

The simulated kubelet is held against the same record by the ordinary suite, without root.
"""

from __future__ import annotations

from e2e.cluster import Cluster
from testbed.errors import TestbedError
from testbed.kubelet_comparison import facts
from testbed.kubelet_comparison.perform import compared
from testbed.kubelet_comparison.samples import SAMPLES


def the_common_pods(cluster: Cluster) -> None:
    """Run them all at once; write down what the API showed, or compare it with what is written down."""
    result, again = compared(cluster.plane, node=cluster.node.name)
    info = cluster.node_object()["status"]["nodeInfo"]
    versions = {
        "kubelet": info["kubeletVersion"],
        "containerd": info["containerRuntimeVersion"],
        "runc": cluster.node.runc_version(),
        "os": info["osImage"],
    }
    if cluster.record:
        facts.write(result, versions=versions)
        cluster.say(f"written down: {len(SAMPLES)} pods on {versions}")
        return
    changed = facts.differences(facts.read(), result)
    if changed:
        lines = [
            f"{pod}, {aspect}: {a!r} is written down, {b!r} is seen"
            for (pod, aspect), (a, b) in changed.items()
        ]
        raise TestbedError(
            f"the kubelet shows something else than what {facts.RECORDED.name} holds of {facts.versions()}"
            f" (here {versions}):\n  " + "\n  ".join(lines) + "\nIf it is right: make e2e ARGS=--record"
        )
    if again:
        cluster.say(f"only at the second try: {', '.join(sorted(again))}")
    cluster.say(f"{len(SAMPLES)} pods: as written down of {facts.versions()}")
