"""`python -m nodegauge_operator`: read the environment and run until SIGTERM; print why if that fails."""

from __future__ import annotations

import asyncio
import os
import sys

from nodegauge_operator import logs
from nodegauge_operator.handlers.app import SweepDied, serve
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.settings import SettingsError, parse


def main() -> int:
    """Exit code 0 after SIGTERM, 2 for bad settings, 1 for anything else."""
    try:
        settings = parse(os.environ)
    except SettingsError as error:
        print(f"nodegauge: {error}", file=sys.stderr)
        return 2
    logs.configure(level=settings.log_level, form=settings.log_format)
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
