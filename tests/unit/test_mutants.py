"""`make mutants`: what it calls killed is so, or it would hide gaps."""

import subprocess
import sys
from pathlib import Path

import pytest

from mutants.__main__ import LIST, ROOT, read

BUDGET = "operator/src/nodegauge_operator/core/budget.py"
MUTANT = "  - {{id: {id}, file: {file}, old: {old!r}, new: {new!r}, breaks: it}}\n"


def mutant(name: str, old: str, new: str) -> str:
    return MUTANT.format(id=name, file=BUDGET, old=old, new=new)


IN_FUNCTION = mutant("in-function", "1 + well - badly", "2 + well - badly")
IN_MODULE = mutant("in-module", "RETRY_SHARE = 5", "RETRY_SHARE = 1")
UNNOTICED = ("unnoticed", "unread // nodes if nodes", "unread // nodes if nodes > 0")
TESTS = """
from nodegauge_operator.core.budget import retry_slots, slow_start

def test_slow_start():
    assert slow_start(well=1, badly=0) == 2

def test_retry_slots():
    assert retry_slots(10, unread=0, nodes=10) == 2
"""


def mutants(folder: Path, *listed: str) -> subprocess.CompletedProcess[str]:
    (folder / "mutants.yaml").write_text("area:\n" + "".join(listed), "utf-8")
    (folder / "test_some.py").write_text(TESTS, "utf-8")
    options = ["--list", str(folder / "mutants.yaml"), "--tests", str(folder / "test_some.py")]
    command = [sys.executable, "-m", "mutants", *options, "--jobs", "1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_fault_of_the_table_is_one_place_in_the_source() -> None:
    """A text that is gone, or there twice, stops the whole table."""
    assert read(LIST)


@pytest.mark.slow
def test_killed_mutants_and_survivors_are_told_apart(tmp_path: Path) -> None:
    """A mutant in a function, and one in what a module does while it is imported, are killed by the test that
    fails for them; a survivor is named and fails the run.  The checkout stays as it is."""
    before = (ROOT / BUDGET).read_text("utf-8")
    done = mutants(tmp_path, IN_FUNCTION, IN_MODULE, mutant(*UNNOTICED))
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = [line.split()[1:5] for line in done.stdout.splitlines()[:3]]
    assert [[*first, last.rpartition("::")[2]] for *first, last in outcomes] == [
        ["killed", "in-function", "by", "test_slow_start"],
        ["killed", "in-module", "by", "test_retry_slots"],
        ["SURVIVED", "unnoticed", "(it)", "after"],
    ]
    assert (ROOT / BUDGET).read_text("utf-8") == before
