"""The program inside the namespaces: brings the node up, runs the steps, ends.  It stops nothing: the end of
the namespace does.  Stages follow each other; the lanes of a stage run at the same time."""

import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from e2e import dra, mounts, nccl, pod_failures, scenario, watch
from e2e.cluster import Cluster, PodPlane
from e2e.node import Node
from e2e.node_parts import Runtime
from testbed import hardware
from testbed.errors import TestbedError

NODE = "gpu-1"
PROFILE = "h100-sxm-8"

Lane = tuple[Callable[[Cluster], None], ...]
Stage = tuple[Lane, ...]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the outer program tells this one.  `steps`: which to run, empty for all.  `containerd`, `plugin`:
    of a node with DRA alone, a containerd that knows CDI and the DRA driver; else empty."""

    directory: str
    runtime: str
    kubelet: str
    images: tuple[str, ...]
    containerd: str = ""
    plugin: str = ""
    steps: tuple[str, ...] = ()


def control_plane(cluster: Cluster) -> None:
    cluster.plane.start()


def containerd_and_images(cluster: Cluster) -> None:
    cluster.node.start_containerd(cluster.hardware, wait=cluster.until)


BEGIN: tuple[Stage, ...] = (
    ((control_plane,), (containerd_and_images,), (scenario.host_prepared,)),
    ((scenario.node_ready,),),
)
STAGES: tuple[Stage, ...] = (
    (scenario.BEFORE,),
    ((nccl.measures, nccl.gives_way, nccl.hangs, nccl.loads), (scenario.helm_test,)),
    ((pod_failures.what_a_kubelet_does, pod_failures.drains),),
    ((watch.watches, watch.survives),),
    (scenario.AFTER,),
)
"""A new step goes where what it needs is there, in a lane of its own if it disturbs nobody."""
DRA_BEGIN: tuple[Stage, ...] = (((control_plane,), (containerd_and_images,)), ((dra.node_with_dra,),))
DRA_STAGES: tuple[Stage, ...] = (
    ((dra.claims_bring_the_driver, dra.jobs_share_with_admins, dra.runs_by_claims),),
)
"""A node with DRA alone, in namespaces and with a control plane of its own, at the same time as the other."""


def names_of(stages: Sequence[Stage]) -> list[str]:
    return [step.__name__ for stage in stages for lane in stage for step in lane]


def chosen(stages: Sequence[Stage], names: Collection[str]) -> list[Stage]:
    """The stages with the named steps alone; without any, all."""
    result = []
    for stage in stages:
        lanes = [tuple(step for step in lane if not names or step.__name__ in names) for lane in stage]
        if left := tuple(lane for lane in lanes if lane):
            result.append(left)
    return result


def run(order: Order) -> None:
    directory = Path(order.directory)
    mounts.prepare(directory)
    plane = PodPlane(directory / "plane", node=NODE)
    node = Node(
        NODE,
        directory,
        runtime=Runtime(Path(order.runtime), containerd=Path(order.containerd) if order.containerd else None),
        kubelet=Path(order.kubelet),
        images=order.images,
        plugin=Path(order.plugin) if order.plugin else None,
    )
    machine = hardware.plug(PROFILE, directory / "hardware")
    cluster = Cluster(directory, plane=plane, node=node, hardware=machine)
    done: list[tuple[str, float]] = []
    begin, stages = (DRA_BEGIN, DRA_STAGES) if order.plugin else (BEGIN, STAGES)
    for one in (*begin, *chosen(stages, order.steps)):
        with ThreadPoolExecutor(max_workers=len(one)) as pool:
            for lane in [pool.submit(_walk, cluster, lane, done) for lane in one]:
                lane.result()
    print("\nSteps and their seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in done))


def _walk(cluster: Cluster, lane: Lane, done: list[tuple[str, float]]) -> None:
    for step in lane:
        name, began = step.__name__.replace("_", " "), time.monotonic()
        try:
            step(cluster)
        except (TestbedError, OSError) as error:
            if isinstance(error, OSError):  # its words alone do not say where
                traceback.print_exception(error)
            print(_last_words(cluster), file=sys.stderr)  # before the reason, which a cut log must not lose
            raise TestbedError(f"{name}: {error}") from error
        done.append((name, time.monotonic() - began))
        cluster.say(f"== {name}: {done[-1][1]:.1f} s")


def _last_words(cluster: Cluster) -> str:
    operator = cluster.node.logs("nodegauge", "nodegauge-").splitlines()[-15:]
    return cluster.node.last_words() + "".join(f"\n  operator | {line[:300]}" for line in operator)


def main() -> int:
    try:
        run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order))
    except (TestbedError, OSError) as error:
        print(f"\ne2e failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
