"""`python -m nodegauge_probes PROBE`: one run of one probe.  See probes/README.md for the contract.

All other modules are imported after SIGTERM has a handler: without one, the kernel drops the signal for a
container's first process, and a preempted pod would wait until its grace period ends.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

TERMINATED = 128 + signal.SIGTERM


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    """Nothing has been read yet; the runner installs a handler that writes the result."""
    os._exit(TERMINATED)


def main() -> int:
    """The exit code of one run."""
    signal.signal(signal.SIGTERM, _exit_at_once)
    from nodegauge_probes.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
