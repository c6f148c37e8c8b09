"""`python -m life`: progress by the day, a table at the end; the seed repeats it."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence

from life.story import Size, live
from life.table import table


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every change had a cause, 1 if not, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="make life",
        description="Weeks of a disturbed cluster in virtual time; every change needs a cause.",
    )
    parser.add_argument("--nodes", type=int, default=500, metavar="N", help="default: 500")
    parser.add_argument("--days", type=float, default=60.0, metavar="N", help="default: 60")
    parser.add_argument("--seed", type=int, help="repeats a life; default: a new one")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(100_000)
    size = Size(nodes=options.nodes, days=options.days, seed=seed, fast_nodes=max(1, options.nodes // 100))
    print(f"{size.nodes} nodes, {size.days:g} days, --seed {seed}", flush=True)
    try:
        outcome = live(size, say=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        return 130
    print(f"\n{table(size, outcome)}")
    return 1 if outcome.oracle.violations else 0


def _with_fixed_hashes() -> None:
    """The order of sets of names follows Python's hashes: the same seed has to give the same life."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "life", *sys.argv[1:]], environment)


if __name__ == "__main__":
    _with_fixed_hashes()
    sys.exit(main())
