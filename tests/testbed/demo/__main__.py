"""`make demo`: nodegauge on a control plane with sixteen simulated GPU nodes; 0 if every check passed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from testbed.binaries import find_or_build
from testbed.cluster import Testbed
from testbed.demo import bandwidth, device, gang, heat, jobs, power, steps
from testbed.demo.recording import Recording
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.interruption import exit_code, interruptible, scratch

STEPS = (
    steps.install,
    steps.plug,
    steps.labels,
    bandwidth.measure,
    bandwidth.preempt,
    steps.explain,
    steps.decide,
    jobs.run_by_labels,
    heat.heat,
    steps.graph,
    heat.avoid,
    heat.idle,
    heat.cool,
    gang.classes,
    gang.schedule,
    device.gate,
    device.heal,
    power.supplies,
    power.load,
    steps.overview,
    steps.uninstall,
)


def run(directory: Path, recording: Recording | None = None) -> None:
    print("nodegauge demo: a real kube-apiserver, scheduler and controller-manager; simulated GPU hardware.")
    print(f"Everything lives in {directory} and ends with this program.\n", flush=True)
    find_or_build(progress=lambda line: print(line, flush=True))
    testbed = Testbed(directory, nodes={"system-1": None})
    demo = Session(testbed, directory)
    demo.say("starting the control plane, and one node without GPUs for the operator")
    with testbed, ExitStack() as demo.whole:
        try:
            for step in STEPS:
                step(demo)
                if recording is not None and step is not steps.uninstall:
                    recording.take(step.__name__, demo)
        except TestbedError as error:
            raise TestbedError(f"{error}{demo.log_tail()}") from error
    demo.say("done: every check passed. `make testbed` starts such a cluster for you to use.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Run nodegauge on simulated GPU nodes.")
    parser.add_argument("--record", type=Path, help="write the operator's metrics after each step here")
    options = parser.parse_args(arguments)
    interruptible(says="interrupted: stopping everything that was started")

    def work() -> int:
        recording = Recording() if options.record else None
        with scratch("demo") as directory:
            run(directory, recording)
        if recording is not None:
            recording.write(options.record)
        return 0

    return exit_code("demo", work)


if __name__ == "__main__":
    sys.exit(main())
