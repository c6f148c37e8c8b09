"""`make fuzz`: a million inputs by default, two targets at a time, progress, and a table at the end."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SHARES = {"wire": 0.80, "documents": 0.05, "policies": 0.06, "reports": 0.05, "chassis": 0.02, "texts": 0.02}
"""Of all inputs.  The decoder alone is a hundred times faster than a whole round of the operator."""
NO_ATHERIS = (
    "make fuzz: atheris has no package for this machine: it needs Linux on x86-64 and Python 3.11 to 3.13"
)
PROGRESS_SECONDS = 20.0
COUNT = re.compile(r"^#(\d+)\s.*?cov: (\d+)", re.MULTILINE)


@dataclass
class Fuzzing:
    """One target in a process of its own."""

    name: str
    inputs: int
    folder: Path
    options: list[str]
    began: float = 0.0
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        command = [sys.executable, "-m", "fuzz.one", self.name, str(self.folder), *self.options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=TESTS, stdout=log, stderr=log)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    @property
    def counts(self) -> tuple[int, int]:
        """Inputs so far, and points of the code that they reached."""
        last = list(COUNT.finditer(self.text))
        return (int(last[-1][1]), int(last[-1][2])) if last else (0, 0)

    def ended(self) -> bool:
        """Whether it has ended; then its time is known."""
        if self.process is None or self.process.poll() is None:
            return False
        self.seconds = self.seconds or time.monotonic() - self.began
        return True

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self.process.returncode if self.process else None

    def good(self, *, replay: bool) -> bool:
        """Whether all inputs were tried and none broke a promise."""
        return self.code == 0 and (replay or self.counts[0] >= self.inputs)

    def why(self) -> Iterator[str]:
        """What broke, and how to see it again."""
        lines = self.text.splitlines()
        start = next((n for n, line in enumerate(lines) if "Uncaught Python exception" in line), -15)
        yield from (f"  {line}" for line in lines[start:][:40] if not line.startswith("#"))
        for input_file in sorted(self.folder.glob("*-*")):
            if input_file.is_file():
                yield f'  again: make fuzz ARGS="--targets {self.name} --replay {input_file}"'


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when no input broke a promise, 1 if one did, 2 without atheris, 130 on Ctrl-C."""
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print(NO_ATHERIS, file=sys.stderr)
        return 2
    folder = Path(options.folder or tempfile.mkdtemp(prefix="nodegauge-fuzz-"))
    total = sum(SHARES[name] for name in options.targets)
    runs = [
        _fuzzing(name, inputs=max(1, round(options.inputs * SHARES[name] / total)), folder=folder, to=options)
        for name in options.targets
    ]
    inputs = sum(run.inputs for run in runs)
    print(f"{inputs:,} inputs for {len(runs)} targets, --seed {options.seed}, below {folder}", flush=True)
    try:
        _run(runs, at_once=options.jobs)
    except KeyboardInterrupt:
        return 130
    finally:
        for run in runs:
            if run.process is not None and run.process.poll() is None:
                run.process.kill()
                run.process.wait()
    _table(runs, replay=bool(options.replay))
    return 0 if all(run.good(replay=bool(options.replay)) for run in runs) else 1


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


def _fuzzing(name: str, *, inputs: int, folder: Path, to: argparse.Namespace) -> Fuzzing:
    if to.replay:
        return Fuzzing(name, 1, folder / name, [str(Path(to.replay).resolve())])
    return Fuzzing(name, inputs, folder / name, [f"-runs={inputs}", f"-seed={to.seed}"])


def _run(runs: Sequence[Fuzzing], *, at_once: int) -> None:
    """Slow ones first, so many at once, until all have ended."""
    waiting = sorted(runs, key=lambda run: run.name == "wire")
    going: list[Fuzzing] = []
    shown = time.monotonic()
    while waiting or going:
        while waiting and len(going) < at_once:
            going.append(waiting.pop(0))
            going[-1].start()
        time.sleep(0.2)
        going = [run for run in going if not run.ended()]
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            parts = [f"{run.name} {run.counts[0]:,} of {run.inputs:,}" for run in going]
            print(", ".join(parts), flush=True)


def _table(runs: Sequence[Fuzzing], *, replay: bool) -> None:
    print(f"\n{'target':<10} {'inputs':>9} {'seconds':>8} {'per s':>7} {'reached':>8}  result")
    for run in runs:
        count, reached = run.counts
        speed = count / run.seconds if run.seconds else 0.0
        result = "ok" if run.good(replay=replay) else f"exit code {run.code}"
        print(f"{run.name:<10} {count:>9,} {run.seconds:>8.0f} {speed:>7.0f} {reached:>8,}  {result}")
    for run in runs:
        if not run.good(replay=replay):
            print(f"\n{run.name}:")
            print("\n".join(run.why()))


if __name__ == "__main__":
    sys.exit(main())
