"""The archive's commands, in the unpacked folder: each is a call of the package that does the work."""

import sys

VERSION = "@VERSION@"
CANNOT_RUN = 4
"""As in boot.py."""


def run(command, options):
    """Run one command; the exit code."""
    sys.argv = ["nodegauge-host.pyz " + command, *options]
    if command == "probe":
        from nodegauge_probes.__main__ import main

        return main()
    if command == "judge":
        from nodegauge_cli.judging_service import main

        return main(VERSION)
    if command == "page":
        from nodegauge_cli.page.hosts import main

        return main(VERSION)
    try:
        from nodegauge_cli.bmc import bmc
    except ModuleNotFoundError as missing:
        print(f"nodegauge: {sys.executable} has no package {missing.name}: `bmc` needs it", file=sys.stderr)
        return CANNOT_RUN

    return bmc.main(args=["--format", "json", *options], prog_name="nodegauge-host.pyz bmc")
