"""`python -m mutants`: which test fails for each fault that `mutants.yaml` describes, and for which none.

Each mutant gets a process of its own, which imports a copy of the sources with the changed file, as do the
programs that its tests start.  The tests that are named with a mutant go first, then those of its module.  A
kill counts only if the same test passes without the mutant.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator/src", "probes/src")
LIST = Path(__file__).with_name("mutants.yaml")
TESTS = ("tests/unit", "tests/probes")
TEST_SECONDS, RUN_SECONDS = 300, 3600
"""A test, and all tests of a mutant, that take longer hang."""
OPTIONS = ["-x", "-q", "--no-header", "--tb=line", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--hypothesis-seed=0"]
OPTIONS += ["-m", "not slow", f"--timeout={TEST_SECONDS}"]
NEAR = (2, 16)
"""So many files are tried before so many more, and these before all others: a start for each, and most
mutants need no second one."""
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", re.MULTILINE)
PROGRAM = (
    "import sys, pytest, {module} as mutated; assert mutated.__file__.startswith(sys.argv[1]);"
    "sys.exit(pytest.main(sys.argv[2:]))"
)
PASSED, NO_TESTS = 0, 5


class Mutant(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One fault: `new` instead of `old` in `file`.  `breaks`: what goes wrong then; `killer`: files to begin
    with, or tests (`FILE::TEST`), which may be slow ones."""

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

    named = [test for test in mutant.killer.split() if (ROOT / test.partition("::")[0]).is_file()]
    return list(dict.fromkeys([*named, *sorted(quick_tests(), key=rank)]))


def batches(tests: Sequence[str]) -> Iterator[Sequence[str]]:
    first, second = NEAR
    single, files = ([test for test in tests if ("::" in test) is named] for named in (True, False))
    yield from filter(None, (single, files[:first], files[first:second], files[second:]))


def outcome_of(mutant: Mutant, tests: Sequence[str]) -> Outcome:
    """Of these tests, or of all, until one fails."""
    began, outcome = time.monotonic(), Outcome()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copied(Path(name), mutant)
        for files in [tests] if tests else batches(tests_of(mutant)):
            outcome = tried(files, sources=Path(name), module=module_of(ROOT / mutant.file))
            if outcome.test or outcome.error:
                break
    outcome.seconds = time.monotonic() - began
    return outcome


def chosen(tests: Sequence[str]) -> list[str]:
    """Arguments of pytest; a test that is named may be slow."""
    return [*OPTIONS, *(["-m", ""] if any("::" in test for test in tests) else []), *tests]


def tried(tests: Sequence[str], *, sources: Path, module: str) -> Outcome:
    (temporary := sources / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {
        "PYTEST_DEBUG_TEMPROOT": str(temporary),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(sources / "hypothesis"),
        "PYTHONPATH": os.pathsep.join(str(sources / source) for source in SOURCES),
    }
    command = [sys.executable, "-c", PROGRAM.format(module=module), str(sources), *chosen(tests)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=RUN_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Outcome(test=f"the limit of {RUN_SECONDS} s")
    failed = FAILURE.search(done.stdout)
    if done.returncode in (PASSED, NO_TESTS) or failed:
        return Outcome(test=failed[1] if failed else "")
    return Outcome(error=f"{done.stdout[-1500:]}{done.stderr[-1500:]}")


def copied(folder: Path, mutant: Mutant) -> None:
    """The sources as links, but for the mutant; Python must not take the old bytecode for it."""
    for source in SOURCES:
        copytree(ROOT / source, folder / source, copy_function=os.symlink)
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Tests must fail for every mutant.")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="these, by id or by area")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="run these tests alone")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="default: mutants.yaml")
    options: Any = parser.parse_args(arguments)
    os.chdir(ROOT)
    areas = read(options.list)
    wanted = {
        mutant.id: mutant
        for area, mutants in areas.items()
        for mutant in mutants
        if not options.only or {area, mutant.id} & {*options.only}
    }
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(outcome_of, one, options.tests): one for one in wanted.values()}
        for number, ended in enumerate(as_completed(running), start=1):
            mutant = running[ended]
            outcomes[mutant.id] = outcome = ended.result()
            print(f"{number:3}/{len(wanted)} {line_of(mutant, outcome)}", flush=True)
    print(f"\n{table(areas, outcomes)}")
    killers = sorted({one.test.partition("[")[0] for one in outcomes.values() if one.test})
    if killers:
        command = [sys.executable, "-m", "pytest", *chosen(options.tests or killers)]
        sound = subprocess.run(command, capture_output=True, text=True, check=False)
        if sound.returncode != PASSED:
            print(f"This proves nothing: without a mutant they fail too.\n{sound.stdout[-3000:]}")
            return 1
    alive = [one for one in outcomes.values() if one.error or not one.test]
    return 1 if alive or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
