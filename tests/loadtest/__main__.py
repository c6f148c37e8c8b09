"""`python -m loadtest`: one line per phase, one table at the end; everything it starts ends with it."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from loadtest import stage, validation
from loadtest.figures import Figures, summary
from loadtest.measured import BURST, RATE, Defaults, chart_defaults
from nodegauge_operator.kube.client import connect
from nodegauge_operator.kube.errors import KubeError
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError
from testbed.operatorprocess import CHECKOUT

SIZES = (100, 1_000, 5_000)
LARGEST = 20_000


class Clock:
    """Lines of progress with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """One line, at once."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {text}", flush=True)


def sizes(text: str) -> list[int]:
    """`100,1000,5000` as numbers; what argparse shows when it is not that."""
    try:
        result = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give counts such as 100,1000") from None
    if not all(1 <= one <= LARGEST for one in result):
        raise argparse.ArgumentTypeError(f"{text!r}: counts from 1 to {LARGEST:,}")
    return result


def run(wanted: Sequence[int], directory: Path) -> None:
    """All sizes, each on a control plane of its own below `directory`."""
    clock, defaults = Clock(), chart_defaults()
    print("nodegauge load test: a real control plane, and nodes without kubelets.")
    print(
        f"This machine: {os.cpu_count()} cores, shared by the API server, etcd and the operator; "
        f"load average before the start: {os.getloadavg()[0]:.1f}."
    )
    print(
        f"The operator has the chart's settings ({defaults.workers} nodes at a time), but for the limit of "
        f"its API calls:\n{RATE:,}/s and {BURST:,} at once here; the chart sets {defaults.rate:g}/s and "
        f"{defaults.burst}.\n",
        flush=True,
    )
    find_or_build(progress=clock.say)
    result = [
        one_size(count, directory / f"{count}-nodes", defaults=defaults, clock=clock) for count in wanted
    ]
    print(f"\n{summary(result)}\n")
    for figures in result:
        print(
            f"{figures.nodes:,} nodes: {figures.node_kilobytes:.1f} KB each; "
            f"{figures.operator.writes_per_node:.2f} writes a node, {figures.conflicts} conflicts; "
            f"latency of {figures.calm.samples} and {figures.busy.samples} results"
        )
    print(f"Writes of a first run: {result[-1].first}")
    print(f"Of a run that found the same: {result[-1].unchanged}")
    print(
        "The ratios are the message. Absolute numbers are of this machine, and of what else it did meanwhile."
    )


def one_size(count: int, directory: Path, *, defaults: Defaults, clock: Clock) -> Figures:
    """One size on a fresh control plane; its data is removed afterwards."""

    def say(text: str) -> None:
        clock.say(f"{count:,} nodes: {text}")

    say("starting a control plane")
    with ControlPlane(directory) as plane:
        result = asyncio.run(_measure(plane, count, defaults=defaults, say=say))
    shutil.rmtree(directory, ignore_errors=True)
    return result


async def _measure(plane: ControlPlane, count: int, *, defaults: Defaults, say: stage.Say) -> Figures:
    client = await connect(environ={"KUBECONFIG": str(plane.kubelet_kubeconfig)})
    try:
        scene = stage.Stage(plane, client, count=count, defaults=defaults, say=say)
        return await scene.run(stage.crds(CHECKOUT / "crds"))
    finally:
        await client.close()


def _interrupted(signum: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(signum).name)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with the reason if not, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="make loadtest", description="Measure the operator against a bare loop, on a real API server."
    )
    parser.add_argument(
        "--nodes", type=sizes, default=list(SIZES), metavar="N,N", help="sizes (default: 100,1000,5000)"
    )
    parser.add_argument(
        "--nccl", action="store_true", help="measure only the cost of a validation next to NCCL"
    )
    parser.add_argument("--quick", action="store_true", help="100 nodes only, about half a minute")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGINT, _interrupted)  # a shell's background job inherits it as ignored
    directory = Path(tempfile.mkdtemp(prefix="nodegauge-loadtest-"))
    try:
        if not options.nccl:
            run([100] if options.quick else options.nodes, directory)
        print(f"\n{validation.summary(validation.measure(directory))}")
    except (TestbedError, KubeError) as error:
        print(f"\nloadtest failed: {error}\nLogs are in {directory}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: everything that was started has been ended", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
        return 130
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
