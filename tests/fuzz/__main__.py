"""`make fuzz`: a million inputs by default, several targets at a time; a failure shows the end of its log."""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SHARES = {
    "readings": 0.05,
    "policies": 0.06,
    "reports": 0.05,
    "chassis": 0.02,
    "texts": 0.02,
    "document": 0.80,
}
"""Of all inputs, slow targets first.  The decoder alone is several times faster than a whole round of the
operator."""
NO_ATHERIS = (
    "make fuzz: atheris has no package for this machine: it needs Linux on x86-64 and Python 3.11 to 3.13"
)
LAST_LINES = 40


def main(arguments: Sequence[str] | None = None) -> int:
    to = _parser().parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print(NO_ATHERIS, file=sys.stderr)
        return 2
    top = Path(tempfile.mkdtemp(prefix="nodegauge-fuzz-"))
    print(f"{to.inputs:,} inputs for {len(to.targets)} targets, --seed {to.seed}, below {top}", flush=True)

    def run(name: str) -> bool:
        inputs = max(1, round(to.inputs * SHARES[name] / sum(map(SHARES.__getitem__, to.targets))))
        options = [str(Path(to.replay).resolve())] if to.replay else [f"-runs={inputs}", f"-seed={to.seed}"]
        folder = top / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fuzz.one", name, str(folder), *options]
        with (folder / "log").open("wb") as log:
            code = subprocess.run(command, cwd=TESTS, stdout=log, stderr=log, check=False).returncode
        lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        shown = [f"{name}: exit code {code}", *lines[-LAST_LINES:]] if code else [f"{name}: {lines[-1]}"]
        again = [f'again: make fuzz ARGS="--targets {name} --replay {path}"' for path in folder.glob("*-*")]
        print("\n".join([*shown, *again]), flush=True)
        return code == 0

    try:
        with ThreadPoolExecutor(to.jobs) as pool:
            return 0 if all(list(pool.map(run, to.targets))) else 1
    except KeyboardInterrupt:  # the processes got it from the terminal as well
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make fuzz",
        description="Inputs that nobody meant to write, for everything that reads what strangers wrote.",
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="default: 1,000,000")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="repeats a run; default: 1")
    parser.add_argument("--targets", nargs="+", choices=list(SHARES), default=list(SHARES), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="default: cores")
    parser.add_argument("--replay", metavar="FILE", help="this input alone, for one of --targets")
    return parser


if __name__ == "__main__":
    sys.exit(main())
