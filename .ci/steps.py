"""The steps of `.ci/run [STEP...]`, in lanes beside each other.  A line a minute says how each gets on; a
step that fails stops no other, and its output comes last, above the table of all.  Exit code 0 if all passed.
Standard library only, because nothing is installed yet."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

PLACING = ("tests/cluster/placing/test_pod_groups.py", "tests/cluster/placing/test_kueue.py")
OLDER = ("tests/cluster/test_crds.py", "tests/cluster/admission", "tests/cluster/slice", *PLACING)
"""Tests of what differs between releases of Kubernetes, which run on the older one, too, by
two workers, for each starts a control plane."""
LANES: Sequence[Mapping[str, Sequence[str]]] = (
    {"browser": [sys.executable, ".ci/browser.py"], "test": ["make", "test"]},
    {
        "check": ["make", "check"],
        "collection": ["make", "collection"],  # the Ansible collection, with three versions of ansible-core
        "faults": ["make", "faults", "ARGS=--short"],
    },
    {
        "e2e": ["make", "e2e"],  # skips itself without root or Linux
        "older": ["env", "NODEGAUGE_KUBERNETES=1.36", "make", "test", f"ARGS=-n 2 {' '.join(OLDER)}"],
    },
)
"""Lanes of steps that follow each other.  The tests compute, the others mostly wait; whoever first needs the
environment or the control plane makes it, and the others wait for that."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MINUTE = 60.0
GRACE = 60.0
"""Seconds that an interrupted step has to clean up."""


class Interrupted(Exception):
    """By one of SIGNALS."""


class Step:
    def __init__(self, name: str, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.name, self._log, self._began = name, log, time.monotonic()
        self.seconds = 0.0
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environ, start_new_session=True
            )
        say(f"{name} begins: {' '.join(command)}")

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def outcome(self) -> str:
        code = self.process.returncode
        return "interrupted" if code is None else f"FAILED ({code})" if code else "ok"

    def wait(self) -> None:
        self.process.wait()
        self.seconds = time.monotonic() - self._began

    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace").rstrip()

    def last_line(self) -> str:
        return (self.text().splitlines() or [""])[-1].strip(" =")[:100]

    def progress(self) -> str:
        return f"{self.name}: {time.monotonic() - self._began:.0f} s so far: {self.last_line()}"

    def end(self) -> None:
        """As Ctrl-C would, and by force if that takes too long."""
        for number, grace in ((signal.SIGINT, GRACE), (signal.SIGKILL, None)):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(grace)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


class Run:
    def __init__(self, wanted: Sequence[str], folder: Path) -> None:
        self._wanted, self._folder = wanted, folder
        self._environ = {**os.environ, "NODEGAUGE_CHANGED_SINCE": base(), "NODEGAUGE_BROWSER": "required"}
        say(f"the matrix compares with {base() or 'no earlier commit: git has none here'}")
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ending = False
        self.steps: list[Step] = []

    def everything(self) -> int:
        lanes = [threading.Thread(target=self._walk, args=[lane]) for lane in LANES]
        for lane in lanes:
            lane.start()
        last_progress = time.monotonic()
        while any(lane.is_alive() for lane in lanes):
            for lane in lanes:
                lane.join(1.0 / len(lanes))
            if time.monotonic() - last_progress >= MINUTE:
                last_progress = time.monotonic()
                say("; ".join(step.progress() for step in self.steps if step.runs))
        failed = [step for step in self.steps if step.process.returncode]
        for step in failed:
            print(f"\n== {step.name} failed; it printed:\n{step.text()}")
        width = max((len(step.name) for step in self.steps), default=0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu, seconds = used.ru_utime + used.ru_stime, time.monotonic() - self._began
        print(f"\n== nodegauge CI: {seconds:.0f} s with {cpu:.0f} s of CPU")
        print("== nodegauge CI: steps, their seconds and last lines")
        for step in self.steps:
            print(f"{step.name:<{width}} {step.seconds:6.0f} s  {step.outcome:<10} {step.last_line()}")
        begun = {step.name for step in self.steps}
        wanted = self._wanted or [name for lane in LANES for name in lane]
        missing = [name for name in wanted if name not in begun]
        if missing:  # a lane died: no make on PATH, no process to be had
            print(f"never began: {', '.join(missing)}")
        return failed[0].process.returncode if failed else int(bool(missing))

    def _walk(self, lane: Mapping[str, Sequence[str]]) -> None:
        for name, command in lane.items():
            if self._wanted and name not in self._wanted:
                continue
            with self._lock:  # no step begins once all are being ended
                if self._ending:
                    return
                self.steps.append(Step(name, command, self._folder / f"{name}.log", self._environ))
                step = self.steps[-1]
            step.wait()
            with self._lock:
                if not step.process.returncode:
                    print(f"\n== {name} printed:\n{step.text()}\n", flush=True)
                say(f"{name}: {step.outcome} after {step.seconds:.0f} s")

    def end(self) -> None:
        """Every step that runs."""
        with self._lock:
            self._ending = True
        endings = [threading.Thread(target=step.end) for step in self.steps if step.runs]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join()


def base() -> str:
    """The commit that the matrix compares with: where this one left main, its parent on main, else none."""
    for revision in ("origin/main", "main"):
        fork, head = git("merge-base", "HEAD", revision), git("rev-parse", "HEAD")
        if fork and fork != head:
            return fork
    return git("rev-parse", "--verify", "--quiet", "HEAD^")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def say(message: str) -> None:
    print(f"== {message}", flush=True)


def interrupt(number: int, _: FrameType | None) -> None:
    """Leave the wait; let no second signal interrupt the ending."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def main(arguments: Sequence[str]) -> int:
    """The command line of the module's docstring; 130 when interrupted."""
    known = [name for lane in LANES for name in lane]
    if unknown := sorted({*arguments} - {*known}):
        print(f"no such step: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    say(f"nodegauge CI: {git('log', '-1', '--format=%h %s') or 'no git history'}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="nodegauge-ci-") as folder:
        run = Run(arguments, Path(folder))
        for number in SIGNALS:
            signal.signal(number, interrupt)
        try:
            return run.everything()
        except Interrupted as signalled:
            say(f"{signalled}: ending every step")
            run.end()
            return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
