"""`python -m nodegauge_operator`: read the environment and run until SIGTERM; print why if that fails."""

from __future__ import annotations

import asyncio
import gc
import os
import sys

from nodegauge_operator import logs
from nodegauge_operator.handlers.app import SweepDied, serve
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.settings import SettingsError, parse

COLLECT_AFTER = (50_000, 20, 50)
"""Thresholds of the garbage collector (gc.set_threshold).  Judging a result makes thousands of short-lived
objects and hardly a cycle: with Python's 700 a tenth of the operator's time went into looking for them."""


def main() -> int:
    """Exit code 0 after SIGTERM, 2 for bad settings, 1 for anything else."""
    try:
        settings = parse(os.environ)
    except SettingsError as error:
        print(f"nodegauge: {error}", file=sys.stderr)
        return 2
    logs.configure(level=settings.log_level, form=settings.log_format)
    gc.set_threshold(*COLLECT_AFTER)
    try:
        asyncio.run(serve(settings, os.environ))
    except (KubeError, OSError, SweepDied) as error:
        print(f"nodegauge: {logs.one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
