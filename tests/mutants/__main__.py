"""`python -m mutants`: which test fails for each fault that `mutants.yaml` describes, and for which none.

All quick tests are collected once.  Then each mutant gets a fork of this process, in which the changed code
is put into the loaded modules (`patch`).  Beside it lies a copy of the sources, for what tests start as
programs of their own.  The tests that are named with a mutant go first, then those of its module.  A kill
counts only if the same test passes without the mutant.
"""

import argparse
import ctypes
import gc
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mutants.patch import loaded, patched

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator/src", "probes/src")
LIST = Path(__file__).with_name("mutants.yaml")
TESTS = ("tests/unit", "tests/probes")
TEST_SECONDS, RUN_SECONDS = 300, 3600
"""A test, and all tests of a mutant, that take longer hang."""
OPTIONS = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--hypothesis-seed=0"]
OPTIONS += ["-m", "not slow", f"--timeout={TEST_SECONDS}"]
NEAR = 16
"""Files with which a mutant begins that needs a process of its own."""
FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
FRESH = (
    "import sys, pytest, {module} as mutated; assert mutated.__file__.startswith(sys.argv[1]);"
    "sys.exit(pytest.main(sys.argv[2:]))"
)
PASSED, FAILED, NO_TESTS = 0, 1, 5
PR_SET_PDEATHSIG = 1


class Mutant(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One fault: `new` instead of `old` in `file`.  `breaks`: what goes wrong then; `killer`: tests to begin
    with."""

    id: str
    file: str
    old: str
    new: str
    breaks: str
    killer: str = ""

    @property
    def text(self) -> str:
        return (ROOT / self.file).read_text("utf-8").replace(self.old, self.new)


class Outcome(msgspec.Struct):
    """`test` that failed first; empty if none did.  `error`: why that says nothing."""

    test: str = ""
    error: str = ""
    seconds: float = 0.0


def read(path: Path) -> dict[str, list[Mutant]]:
    areas = msgspec.yaml.decode(path.read_bytes(), type=dict[str, list[Mutant]])
    every = [mutant for mutants in areas.values() for mutant in mutants]
    ids = [mutant.id for mutant in every]
    stale = [f"{one}: two mutants have this id" for one in sorted(set(ids)) if ids.count(one) > 1]
    for mutant in every:
        source = ROOT / mutant.file
        times = source.read_text("utf-8").count(mutant.old) if source.is_file() else 0
        if times != 1 or mutant.old == mutant.new:
            why = f"its `old` text is there {times} times" if times != 1 else "it changes nothing"
            stale.append(f"{mutant.id} is stale: {why} in {mutant.file}")
    if stale:
        sys.exit("\n".join(stale))
    return areas


def module_of(path: Path) -> str:
    """The name by which the file is imported."""
    folder = next(ROOT / part for part in SOURCES if path.is_relative_to(ROOT / part))
    return ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


@cache
def quick_tests() -> dict[str, str]:
    """The text of every file of quick tests."""
    paths = (path for part in TESTS for path in sorted((ROOT / part).rglob("test_*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}


def tests_of(mutant: Mutant) -> list[str]:
    """All files of quick tests: those named with the mutant, then those with the words of its module."""
    stem = (ROOT / mutant.file).stem
    parts = [word.rstrip("s") for word in stem.split("_")]

    def rank(file: str) -> tuple[int, bool]:
        foreign = sum(part not in Path(file).stem for part in parts)
        return foreign, re.search(rf"\b{stem}\b", quick_tests()[file]) is None

    named = [file for file in mutant.killer.split() if (ROOT / file).is_file()]
    return list(dict.fromkeys([*named, *sorted(quick_tests(), key=rank)]))


class Mutants:
    """A plugin of pytest: instead of the collected tests it runs them once for each mutant, in forks."""

    def __init__(self, mutants: Sequence[Mutant], options: Any) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.unsound = Outcome()
        self.unproven: set[str] = set()
        """Ids that killed a mutant and that are no test's."""
        self._waiting = list(mutants)
        self._options = options
        self._out = os.fdopen(os.dup(1), "w")  # pytest captures what is printed
        self._session: pytest.Session
        self._failed = ""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)  # a failure need not be the smallest
        settings.register_profile("mutants", phases=phases)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or (report.nodeid if report.failed else "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        loaded(), quick_tests()  # once, for all forks
        gc.freeze()
        count, running = len(self._waiting), dict[int, tuple[Mutant, Child]]()
        while self._waiting or running:
            while self._waiting and len(running) < self._options.jobs:
                mutant = self._waiting.pop(0)
                child = Child(partial(self._run, mutant))
                running[child.ends] = mutant, child
            ended, _, _ = select.select(list(running), [], [], 60)
            for descriptor, (mutant, child) in list(running.items()):
                if descriptor in ended or child.is_overdue():
                    del running[descriptor]
                    self.outcomes[mutant.id] = outcome = child.outcome()
                    number = len(self.outcomes)
                    print(f"{number:3}/{count} {line_of(mutant, outcome)}", file=self._out, flush=True)
        killers = {one.test for one in self.outcomes.values()} - {""}
        known = tuple(item.nodeid for item in session.items)
        self.unproven = {killer for killer in killers if not any(one.startswith(killer) for one in known)}
        healthy = Child(partial(self._tests, [item for item in session.items if item.nodeid in killers]))
        select.select([healthy.ends], [], [], RUN_SECONDS)
        self.unsound = healthy.outcome()
        return True

    def _run(self, mutant: Mutant, folder: Path) -> Outcome:
        """In the fork: all tests, until one fails."""
        path = ROOT / mutant.file
        copied(folder, mutant)
        items = self._session.items
        if not self._options.tests:
            ranks = {file: rank for rank, file in enumerate(tests_of(mutant))}
            items = [item for item in items if item.location[0] in ranks]
            items.sort(key=lambda item: ranks[item.location[0]])
        if patched(path, mutant.text):
            return self._tests(items, folder)
        files = list(dict.fromkeys(item.location[0] for item in items))
        outcome = self._fresh(files[:NEAR], folder, mutant=mutant)
        return outcome if outcome.test or outcome.error else self._fresh(files[NEAR:], folder, mutant=mutant)

    def _fresh(self, files: Sequence[str], folder: Path, *, mutant: Mutant) -> Outcome:
        """In a process that imports the mutant."""
        if not files:
            return Outcome()
        command = [sys.executable, "-c", FRESH.format(module=module_of(ROOT / mutant.file)), str(folder)]
        command += [*OPTIONS, "-rfE", *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        failed = FAILURE.search(done.stdout)
        if done.returncode in (PASSED, NO_TESTS) or failed:
            return Outcome(test=failed[1] if failed else "")
        return Outcome(error=f"{done.stdout[-1500:]}{done.stderr[-1500:]}")

    def _tests(self, items: list[pytest.Item], _folder: Path) -> Outcome:
        from _pytest.main import pytest_runtestloop

        self._session.items = items
        with suppress(pytest.Session.Failed, pytest.Session.Interrupted):
            pytest_runtestloop(self._session)
        return Outcome(test=self._failed)


class Child:
    """A fork that works in a folder of its own; its output goes there too."""

    def __init__(self, work: Callable[[Path], Outcome]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self._began, parent = time.monotonic(), os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._work(work, parent)
        self.ends = os.pidfd_open(self._pid)

    def _work(self, work: Callable[[Path], Outcome], parent: int) -> None:
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            output = os.open(self._folder / "output", os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(output, stream)
            (self._folder / "tmp").mkdir()
            os.environ |= {
                "PYTEST_DEBUG_TEMPROOT": str(self._folder / "tmp"),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
                "PYTHONPATH": os.pathsep.join(str(self._folder / source) for source in SOURCES),
            }
            answer = work(self._folder) if os.getppid() == parent else Outcome()
            (self._folder / "answer").write_bytes(msgspec.json.encode(answer))
        except BaseException as error:
            (self._folder / "answer").write_bytes(msgspec.json.encode(Outcome(error=repr(error))))
        finally:
            os._exit(0)

    def is_overdue(self) -> bool:
        return time.monotonic() - self._began > RUN_SECONDS

    def outcome(self) -> Outcome:
        """What it answered; it is ended if it still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.ends)
        answer = self._folder / "answer"
        if answer.exists():
            outcome = msgspec.json.decode(answer.read_bytes(), type=Outcome)
        elif self.is_overdue():
            outcome = Outcome(test=f"the limit of {RUN_SECONDS} s")
        else:
            output = (self._folder / "output").read_text("utf-8", "replace")
            outcome = Outcome(error=f"its process ended without an answer: {output[-1500:]}")
        shutil.rmtree(self._folder, ignore_errors=True)
        outcome.seconds = time.monotonic() - self._began
        return outcome


def copied(folder: Path, mutant: Mutant) -> None:
    """The sources as links, but for the mutant; Python must not take the old bytecode for it."""
    for source in SOURCES:
        shutil.copytree(ROOT / source, folder / source, copy_function=os.symlink)
    path = folder / mutant.file
    for old in (path, *(path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")):
        old.unlink()
    path.write_text(mutant.text, "utf-8")


def line_of(mutant: Mutant, outcome: Outcome) -> str:
    """One line about a mutant, and why nothing is known of it."""
    if outcome.error:
        return f"ERROR     {mutant.id}: {outcome.error}"
    if outcome.test:
        return f"killed    {mutant.id} by {outcome.test} in {outcome.seconds:.1f} s"
    return f"SURVIVED  {mutant.id} ({mutant.breaks}) after {outcome.seconds:.0f} s"


def table(areas: dict[str, list[Mutant]], outcomes: dict[str, Outcome]) -> str:
    lines = [f"{'area':20} mutants  killed  survived"]
    for area, mutants in areas.items():
        ran = [mutant for mutant in mutants if mutant.id in outcomes]
        killed = sum(bool(outcomes[mutant.id].test) for mutant in ran)
        if ran:
            lines.append(f"{area:20} {len(ran):7} {killed:7} {len(ran) - killed:9}")
    return "\n".join(lines)


def quietly(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    with tempfile.TemporaryFile() as printed:
        terminal = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            status = work()
        finally:
            os.dup2(terminal, 1)
        if status not in (PASSED, pytest.ExitCode.INTERRUPTED):
            printed.seek(0)
            print(printed.read().decode("utf-8", "replace")[-3000:])
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Tests must fail for every mutant.")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="these, by id or by area")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="run these tests alone")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="default: mutants.yaml")
    options: Any = parser.parse_args(arguments)
    os.chdir(ROOT)
    areas = read(options.list)
    wanted = [
        mutant
        for area, mutants in areas.items()
        for mutant in mutants
        if not options.only or {area, mutant.id} & {*options.only}
    ]
    plugin = Mutants(wanted, options)
    command = [*OPTIONS, *(options.tests or TESTS)]
    status = quietly(partial(pytest.main, command, plugins=[plugin]))
    outcomes, unsound = plugin.outcomes, plugin.unsound
    if len(outcomes) < len(wanted):
        return 130 if status == pytest.ExitCode.INTERRUPTED else 2
    print(f"\n{table(areas, outcomes)}")
    if unsound.test or unsound.error:
        print(f"This proves nothing: without a mutant {unsound.test or unsound.error} fails too.")
    if plugin.unproven:
        print(f"These are no tests that could be run without a mutant: {', '.join(sorted(plugin.unproven))}")
    alive = [one for one in wanted if outcomes[one.id].error or not outcomes[one.id].test]
    return 1 if alive or plugin.unproven or unsound.test or unsound.error or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
