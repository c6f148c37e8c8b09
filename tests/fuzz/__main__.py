"""`make fuzz`: a million inputs by default, several targets at a time, and a row for each that has ended."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
COUNT = re.compile(r"^#(\d+)\s.*?cov: (\d+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Fuzzing:
    name: str
    folder: Path
    options: list[str]
    least: int
    """Inputs that it has to try; 0 for a replay."""

    def run(self) -> bool:
        """Whether all inputs were tried and none broke a promise; says so on a row."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log, began = self.folder / "log", time.monotonic()
        command = [sys.executable, "-m", "fuzz.one", self.name, str(self.folder), *self.options]
        with log.open("wb") as file:
            code = subprocess.run(command, cwd=TESTS, stdout=file, stderr=file, check=False).returncode
        seconds, text = time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace")
        tried, reached = map(int, COUNT.findall(text)[-1]) if COUNT.search(text) else (0, 0)
        good = code == 0 and tried >= self.least
        result = "ok" if good else f"exit code {code}"
        row = f"{self.name:<10} {tried:>9,} {seconds:>8.0f} {tried / seconds:>7.0f} {reached:>8,}  {result}"
        print("\n".join([row, *([] if good else self.why(text))]), flush=True)
        return good

    def why(self, text: str) -> Iterator[str]:
        lines = text.splitlines()
        start = next((n for n, line in enumerate(lines) if "Uncaught Python exception" in line), -15)
        yield from (f"  {line}" for line in lines[start:][:40] if not line.startswith("#"))
        for path in filter(Path.is_file, sorted(self.folder.glob("*-*"))):
            yield f'  again: make fuzz ARGS="--targets {self.name} --replay {path}"'


def main(arguments: Sequence[str] | None = None) -> int:
    to = _parser().parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print(NO_ATHERIS, file=sys.stderr)
        return 2
    folder = Path(to.folder or tempfile.mkdtemp(prefix="nodegauge-fuzz-"))
    runs = []
    for name in to.targets:
        inputs = max(1, round(to.inputs * SHARES[name] / sum(map(SHARES.__getitem__, to.targets))))
        options = [str(Path(to.replay).resolve())] if to.replay else [f"-runs={inputs}", f"-seed={to.seed}"]
        least = 0 if to.replay else inputs
        runs.append(Fuzzing(name=name, folder=folder / name, options=options, least=least))
    print(f"{to.inputs:,} inputs for {len(runs)} targets, --seed {to.seed}, below {folder}")
    print(f"\n{'target':<10} {'inputs':>9} {'seconds':>8} {'per s':>7} {'reached':>8}  result", flush=True)
    try:
        with ThreadPoolExecutor(to.jobs) as pool:
            return 0 if all(list(pool.map(Fuzzing.run, runs))) else 1
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
    parser.add_argument("--folder", metavar="DIR", help="for logs and failing inputs; default: a new one")
    parser.add_argument("--replay", metavar="FILE", help="this input alone, for one of --targets")
    return parser


if __name__ == "__main__":
    sys.exit(main())
