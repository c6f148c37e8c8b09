"""`python -m fleet SCENARIO`: 0 if all was as it should be, 1 with what was not, 130 after Ctrl-C."""

import argparse
import importlib
import os
import signal
import sys
from functools import partial

from testbed.interruption import exit_code, interruptible

SCENARIOS = {name: f"fleet.{name}" for name in ("life", "faults", "giveway", "upgrade")} | {
    "loadtest": "fleet.load.scenario"
}


def main() -> int:
    scenario = importlib.import_module(SCENARIOS[sys.argv[1]])
    parser = argparse.ArgumentParser(prog=f"make {sys.argv[1]}", description=scenario.__doc__)
    scenario.options(parser)
    chosen = parser.parse_args(sys.argv[2:])
    interruptible((signal.SIGTERM, signal.SIGINT))
    return exit_code(sys.argv[1], partial(scenario.run_scenario, chosen))


if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in SCENARIOS:
        sys.exit(f"python -m fleet SCENARIO, one of {', '.join(SCENARIOS)}; --help shows the options of each")
    if os.environ.get("PYTHONHASHSEED") != "0":  # which orders sets of names: a seed has to repeat all of it
        os.execve(
            sys.executable,
            [sys.executable, "-m", "fleet", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
