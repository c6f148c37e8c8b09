"""`python -m nodegauge_probes PROBE`: one run of one probe.  See probes/README.md for the contract.

Everything else is imported only once SIGTERM has an answer: the kernel ignores a signal for a container's
first process as long as that has no handler, and a preempted pod would wait for its grace to end.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

TERMINATED = 128 + signal.SIGTERM


def _at_once(number: int, frame: FrameType | None) -> None:
    """Nothing has been read yet, so there is nothing to say; the runner has a better answer later."""
    os._exit(TERMINATED)


def main() -> int:
    """The exit code of one run."""
    signal.signal(signal.SIGTERM, _at_once)
    from nodegauge_probes.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
