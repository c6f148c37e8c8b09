"""The testbed's table of pods on this real kubelet, against what is written down of it.

The simulated kubelet is held against the same record by the ordinary suite, without root.
"""

from __future__ import annotations

from e2e.world import World
from testbed.errors import TestbedError
from testbed.likeness import recorded
from testbed.likeness.perform import again, perform
from testbed.likeness.samples import SAMPLES


def the_common_pods(world: World) -> None:
    """Run them all at once; write down what the API showed, or compare it with what is written down."""
    found = perform(world.plane, node=world.node.name, samples=SAMPLES, namespace="default")
    info = world.node_object()["status"]["nodeInfo"]
    versions = {
        "kubelet": info["kubeletVersion"],
        "containerd": info["containerRuntimeVersion"],
        "runc": world.node.runc_version(),
        "os": info["osImage"],
    }
    if world.record:
        recorded.write(found, versions=versions)
        world.say(f"written down: {len(SAMPLES)} pods on {versions}")
        return
    wanted = recorded.read()
    wrong = {pod for pod, _ in recorded.differences(wanted, found)}
    found = again(found, wrong=wrong, plane=world.plane, node=world.node.name, namespace="default")
    changed = recorded.differences(wanted, found)
    if changed:
        lines = [
            f"{pod}, {aspect}: {a!r} is written down, {b!r} is seen"
            for (pod, aspect), (a, b) in changed.items()
        ]
        raise TestbedError(
            f"the kubelet shows something else than what {recorded.FILE.name} holds of {recorded.versions()}"
            f" (here {versions}):\n  " + "\n  ".join(lines) + "\nIf it is right: make e2e ARGS=--record"
        )
    if wrong:
        world.say(f"only at the second try: {', '.join(sorted(wrong))}")
    world.say(f"{len(SAMPLES)} pods: as written down of {recorded.versions()}")
