"""The program inside the namespaces: brings the node up, runs the steps, ends.  Started by init.py alone.

    python -m e2e.inside ORDER

Exit code 0 only if every step saw what it must.  It stops nothing: the end of the namespace does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from e2e import likeness, scenario, stage, steps, trials
from e2e import order as orders
from e2e.debian import Runtime
from e2e.node import Node
from e2e.order import PROFILE, Order
from e2e.plane import PodPlane
from e2e.world import World
from testbed import hardware
from testbed.binaries import find_or_build
from testbed.errors import TestbedError

Step = Callable[[World], None]

NODE = "gpu-1"
STEPS: tuple[Step, ...] = (
    steps.trivial_pod,
    likeness.the_common_pods,
    *scenario.BEFORE,
    trials.what_a_kubelet_does,
    *scenario.AFTER,
)


def run(order: Order) -> None:
    """Everything, in order.  Raises TestbedError at the first thing not seen."""
    directory = Path(order.directory)
    plane = PodPlane(directory / "plane", node=NODE, binaries=find_or_build(_silent), progress=_silent)
    runtime = Runtime(root=Path(order.runtime))
    node = Node(NODE, directory, runtime=runtime, kubelet=Path(order.kubelet))
    machine = hardware.plug(PROFILE, directory / "hardware")
    world = World(directory, plane=plane, node=node, hardware=machine, record=order.record)
    chosen = [step for step in STEPS if not order.steps or step.__name__ in order.steps]
    done: list[tuple[str, float]] = []
    try:
        for step in (
            partial(stage.prepare, directory),
            *(partial(step, world) for step in _begin(order)),
            *(partial(step, world) for step in chosen),
        ):
            name, began = step.func.__name__.replace("_", " "), time.monotonic()
            step()
            done.append((name, time.monotonic() - began))
            world.say(f"== {name}: {done[-1][1]:.1f} s")
    except TestbedError as error:
        raise TestbedError(f"{name}: {error}{_last_words(world)}") from error
    print("\nSteps and their seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in done))


def _begin(order: Order) -> list[Step]:
    """What all steps need: the node up."""

    def control_plane(world: World) -> None:
        world.plane.start()

    def containerd_and_images(world: World) -> None:
        world.node.start_containerd(world.hardware, wait=world.until)
        for archive in order.images:
            world.node.load(Path(archive))

    return [control_plane, containerd_and_images, steps.node_ready]


def _last_words(world: World) -> str:
    operator = world.node.logs("nodegauge", "nodegauge-").splitlines()[-15:]
    return world.node.last_words() + "".join(f"\n  operator | {line[:300]}" for line in operator)


def _silent(_: str) -> None:
    """Progress of what the outer program has made sure of."""


def main() -> int:
    """0, or 1 with the reason."""
    try:
        run(orders.read(Path(sys.argv[1])))
    except (TestbedError, OSError) as error:
        print(f"\ne2e failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
