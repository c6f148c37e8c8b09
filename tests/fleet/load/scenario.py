"""Measure the operator on a real API server in mode Watch: a line per phase, a table at the end."""

import argparse
import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from fleet.load.devices import DeviceStage
from fleet.load.figures import Rows, summary
from fleet.load.kubelets import ManyClients
from fleet.load.measured import split
from fleet.load.stage import Stage
from nodegauge_operator.kube.errors import KubeError
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError
from testbed.interruption import scratch
from testbed.wait import Progress

LARGEST = 5_000
"""The most that Kubernetes itself is tested with."""
ON_ALL_CORES = {"GOGC": "200"}
"""Of the control plane's programs: what is measured here must not wait for them."""


def sizes(text: str) -> list[int]:
    try:
        result = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give counts such as 100,1000") from None
    if not all(1 <= one <= LARGEST for one in result):
        raise argparse.ArgumentTypeError(f"{text!r}: counts from 1 to {LARGEST:,}")
    return result


def run(wanted: Sequence[int], directory: Path, *, stage: type[Stage], limited: bool) -> None:
    clock, cores = Progress(), split(os.sched_getaffinity(0))
    print("nodegauge load test: a real control plane, and nodes without kubelets.")
    print(f"This machine: {os.cpu_count()} cores, {os.getloadavg()[0]:.1f} load average before the start.")
    print(cores)
    but = "" if limited else ", but without the limit of its API calls"
    print(f"The operator has the chart's account and settings{but}; all admission policies are in force.\n")
    find_or_build(progress=clock.say)

    async def measure(plane: ControlPlane, count: int) -> Rows:
        async with ManyClients.of(plane) as client:
            say = lambda text: clock.say(f"{count:,} nodes: {text}")  # noqa: E731
            return await stage(plane, client, count=count, cores=cores, limited=limited, say=say).run()

    result: dict[int, Rows] = {}
    for count in wanted:
        with ControlPlane(directory / f"{count}-nodes", environ=ON_ALL_CORES) as plane:
            result[count] = asyncio.run(measure(plane, count))
        shutil.rmtree(plane.directory, ignore_errors=True)
    print(f"\n{summary(result)}\n")
    print("Absolute numbers are of this machine, and of what else it did meanwhile.")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=sizes, default=[100, 1_000, 5_000], metavar="N,N", help="default: 100,1000,5000"
    )
    parser.add_argument(
        "--limited", action="store_true", help="leave the operator the chart's limit of its API calls"
    )
    parser.add_argument(
        "--devices",
        action="store_true",
        help="from a finding to a device rule, with GPUs by DRA, and no more",
    )


def run_scenario(chosen: argparse.Namespace) -> int:
    with scratch("loadtest") as directory:
        try:
            stage = DeviceStage if chosen.devices else Stage
            run(chosen.nodes, directory, stage=stage, limited=chosen.limited)
        except KubeError as error:
            raise TestbedError(str(error)) from error
    return 0
