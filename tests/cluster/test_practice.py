"""docs/practice.md line by line on a testbed: every command, and what the page shows of its output."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.binaries import build_kubectl
from testbed.demo.fleet import FLEET
from testbed.processes import output_of
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "practice.md").read_text("utf-8")
DRILLS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.M))
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", re.M)
ONLY_SHOWS = re.compile(r"kubectl (get|nodegauge (explain|status|ticket)) ")
"""Asked again until it shows what the page says: what a command before it caused may take a moment."""
OF_KUBECTL = re.compile(r"^[IW]\d{4} .*\n", re.M)
"""Its log: `kubectl wait` may end with a line about the watch that it ends itself."""
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DEADLINE = 900.0

Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A terminal of 80 columns after the page's first two lines, with the machines that the page names."""
    sources = (ROOT / "tests", ROOT / "operator" / "src", ROOT / "probes" / "src")
    path = f"{build_kubectl().parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PYTHONPATH": os.pathsep.join(map(str, sources)), "PATH": path, "COLUMNS": "80"}
    env = os.environ | own | {"NODEGAUGE_TESTBED": str(tmp_path_factory.mktemp("practice"))}
    testbed = [sys.executable, "-m", "testbed"]

    def run(command: str) -> str:
        bash = ["bash", "-c", f"exec 2>&1\n{exports}{command}"]
        return subprocess.run(bash, env=env, capture_output=True, text=True, timeout=DEADLINE).stdout

    try:
        output_of([*testbed, "up", *(name for name in FLEET if name in PAGE)], env=env)
        exports = output_of([*testbed, "env"], env=env)
        yield run
    finally:
        output_of([*testbed, "down"], env=env)


@pytest.mark.parametrize("drill", DRILLS)
def test_a_drill_goes_as_the_page_says(shell: Shell, drill: str) -> None:
    commands = COMMAND.findall(DRILLS[drill])
    assert len(commands) > 2
    for command, shown in commands:

        def seen(command: str = command, shown: str = shown) -> str:
            """What it prints, or nothing where that is as shown."""
            printed = OF_KUBECTL.sub("", shell(command))
            return "" if doctest.OutputChecker().check_output(shown, printed, ALIKE) else printed

        if ONLY_SHOWS.match(command):
            wait_for(lambda: not seen(), every=2.0, what=f"`{command}` as the page shows it")
        else:
            assert seen() == "", command
