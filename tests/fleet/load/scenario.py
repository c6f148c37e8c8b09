"""Measure the operator against a bare loop, on a real API server: a line per phase, a table at the end."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fleet.load import stage
from fleet.load.figures import Figures, summary
from fleet.load.measured import Defaults, Options, chart_defaults, split
from fleet.progress import Progress
from nodegauge_operator.kube.client import connect
from nodegauge_operator.kube.errors import KubeError
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError

SIZES = (100, 1_000, 5_000)
LARGEST = 5_000
"""The most that Kubernetes itself is tested with."""


def sizes(text: str) -> list[int]:
    """`100,1000,5000` as numbers; what argparse shows when it is not that."""
    try:
        result = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give counts such as 100,1000") from None
    if not all(1 <= one <= LARGEST for one in result):
        raise argparse.ArgumentTypeError(f"{text!r}: counts from 1 to {LARGEST:,}")
    return result


def run(wanted: Sequence[int], directory: Path, options: Options) -> None:
    """All sizes, each on a control plane of its own below `directory`."""
    clock, defaults = Progress(), chart_defaults()
    print("nodegauge load test: a real control plane, and nodes without kubelets.")
    print(
        f"This machine: {os.cpu_count()} cores, {os.getloadavg()[0]:.1f} load average before the start.\n"
        f"{options.cores}"
    )
    limits = f"{defaults.rate:g}/s and {defaults.burst} at once"
    if options.limited:
        print(f"The operator has the chart's settings, also the limit of its API calls: {limits}.\n")
    else:
        print(f"The operator has the chart's settings, but for the limit of its API calls, {limits}.\n")
    find_or_build(progress=clock.say)
    result = [
        one_size(count, directory / f"{count}-nodes", defaults=defaults, options=options, clock=clock)
        for count in wanted
    ]
    print(f"\n{summary(result)}\n")
    for figures in result:
        print(f"{figures.nodes:,} nodes of {figures.node_kilobytes:.1f} KB. Steady state, writes a second:")
        print(f"  {figures.steady}")
        print(f"  a full list: {figures.relist}")
    print("Absolute numbers are of this machine, and of what else it did meanwhile.")


def one_size(
    count: int, directory: Path, *, defaults: Defaults, options: Options, clock: Progress
) -> Figures:
    """One size on a fresh control plane; its data is removed afterwards."""

    def say(text: str) -> None:
        clock.say(f"{count:,} nodes: {text}")

    say("starting a control plane")
    with ControlPlane(directory) as plane:
        result = asyncio.run(_measure(plane, count, defaults=defaults, options=options, say=say))
    shutil.rmtree(directory, ignore_errors=True)
    return result


async def _measure(
    plane: ControlPlane, count: int, *, defaults: Defaults, options: Options, say: stage.Say
) -> Figures:
    client = await connect(environ={"KUBECONFIG": str(plane.kubelet_kubeconfig)})
    try:
        scene = stage.Stage(plane, client, count=count, defaults=defaults, options=options, say=say)
        return await scene.run()
    finally:
        await client.close()


def options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument(
        "--nodes", type=sizes, default=list(SIZES), metavar="N,N", help="sizes (default: 100,1000,5000)"
    )
    parser.add_argument(
        "--limited", action="store_true", help="leave the operator the chart's limit of its API calls"
    )
    parser.add_argument("--quick", action="store_true", help="100 nodes only, about four minutes")


def run_scenario(chosen: argparse.Namespace) -> int:
    """0 when everything was measured; files stay only after a failure."""
    directory = Path(tempfile.mkdtemp(prefix="nodegauge-loadtest-"))
    try:
        own = Options(cores=split(os.sched_getaffinity(0)), limited=chosen.limited)
        run([100] if chosen.quick else chosen.nodes, directory, own)
    except (TestbedError, KubeError) as error:
        raise TestbedError(f"loadtest failed: {error}\nLogs are in {directory}") from error
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)
    return 0
