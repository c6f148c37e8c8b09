"""The archive's commands, in the unpacked folder: each is a call of the package that does the work."""

import sys

VERSION = "@VERSION@"


def run(command, options):
    """Run one command; the exit code."""
    sys.argv = ["nodegauge-host.pyz " + command, *options]
    if command == "probe":
        from nodegauge_probes.__main__ import main

        return main()
    if command == "judge":
        from nodegauge_cli.judging_service import main

        return main(VERSION)
    from nodegauge_cli.bmc import bmc

    return bmc.main(args=[*options, "--format", "json"], prog_name="nodegauge-host.pyz bmc")
