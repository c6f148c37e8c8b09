"""`python -m nodegauge_operator.bmc_reader`: read the environment and run until SIGTERM; print why it fails.

The process holds passwords: it leaves no core dump, and no other process of its user may look into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import sys

from nodegauge_operator import logs
from nodegauge_operator.bmc_reader.app import serve
from nodegauge_operator.bmc_reader.settings import parse
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.settings import SettingsError

PR_SET_DUMPABLE = 4
"""linux/prctl.h; with 0 there is no core dump, and ptrace and /proc/PID/mem are for root (prctl(2))."""


def main() -> int:
    """Exit code 0 after SIGTERM, 2 for bad settings, 1 for anything else."""
    keep_memory_private()
    try:
        settings = parse(os.environ)
    except SettingsError as error:
        print(f"nodegauge: {error}", file=sys.stderr)
        return 2
    collect_seldom()
    logs.configure(level=settings.log_level, form=settings.log_format)
    try:
        asyncio.run(serve(settings, os.environ))
    except (KubeError, OSError) as error:
        print(f"nodegauge: {logs.one_line(str(error))}", file=sys.stderr)
        return 1
    return 0


def keep_memory_private() -> None:
    """No core dumps and no tracing by others."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def collect_seldom() -> None:
    """Let the garbage collector run seldom: requests make many objects and few cycles.

    Its passes took a third of the CPU time with 1,000 BMCs (docs/loadtest.md), and saved no memory.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    sys.exit(main())
