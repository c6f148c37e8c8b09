"""`make demo`: the main job, on a real control plane of its own, with simulated GPU nodes of every kind.

It says what it does, checks what it sees, and exits with 0 only if everything was seen: the labels and taints
that the hardware demands, jobs placed by them, a node tainted while it throttles under load and trusted again
once it is cool, and nothing left after `helm uninstall`.  Everything it starts ends with it, also on Ctrl-C;
its files stay only when something went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from testbed.binaries import find_or_build
from testbed.cluster import Testbed
from testbed.demo import bandwidth, heat, jobs, steps
from testbed.demo.session import Session
from testbed.errors import TestbedError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STEPS = (
    steps.install,
    steps.plug,
    steps.labels,
    bandwidth.benchmark,
    bandwidth.preempt,
    jobs.place,
    heat.heat,
    heat.avoid,
    heat.idle,
    heat.cool,
    steps.uninstall,
)


def run(directory: Path) -> None:
    """The whole demonstration below `directory`.  Raises `TestbedError` at the first thing not seen."""
    print("nodegauge demo: a real kube-apiserver, scheduler and controller-manager; simulated GPU hardware.")
    print(f"Everything lives in {directory} and ends with this program.\n", flush=True)
    find_or_build(progress=lambda line: print(line, flush=True))
    testbed = Testbed(directory, nodes={"system-1": None})
    demo = Session(testbed, directory)
    demo.say("starting the control plane, and one node without GPUs for the operator")
    with testbed:
        try:
            for step in STEPS:
                step(demo)
        except TestbedError as error:
            raise TestbedError(f"{error}{demo.last_words()}") from error
    demo.say("done: all of it was seen. `make testbed` keeps such a cluster to play with.")


def _interrupted(signum: int, _: FrameType | None) -> None:
    """Leave by way of the context managers; say so at once, and let no second signal interrupt them."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(sys.stderr.fileno(), b"\ninterrupted: ending everything that was started\n")
    raise KeyboardInterrupt(signal.Signals(signum).name)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 only if everything was seen, 1 with the reason if not, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="make demo", description="See nodegauge at work on simulated nodes."
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that went well")
    options = parser.parse_args(arguments)
    for number in SIGNALS:  # SIGINT too: a shell's background job inherits it as ignored
        signal.signal(number, _interrupted)
    directory = Path(tempfile.mkdtemp(prefix="nodegauge-demo-"))
    keep = True
    try:
        run(directory)
        keep = options.keep
    except (TestbedError, OSError) as error:
        keep = any(directory.iterdir())
        print(f"\ndemo failed: {error}" + f"\nIts logs are in {directory}" * keep, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        keep = False
        return 130
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
