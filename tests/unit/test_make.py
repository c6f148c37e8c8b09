"""The Makefile and the set-up behind it: what a newcomer meets first, and is told when it fails."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(re.findall(r"(?m)^\.PHONY: (.+)$", (ROOT / "Makefile").read_text("utf-8"))[0].split()) - {
    "need-cc"
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the set-up reads, in a folder whose path has a space."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    return folder


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    environment |= {"PATH": path} if path else {}
    command = [str(shutil.which("make")), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_make_alone_lists_every_target_with_a_line(checkout: Path) -> None:
    """`make` without a word lists every target but the internal one, each with what it does."""
    done = make(checkout)
    assert done.returncode == 0, done.stderr
    assert {m[0] for m in re.findall(r"^  make (\w+) +(\w.*)$", done.stdout, re.MULTILINE)} == TARGETS


def test_a_python_that_is_too_old_is_named_with_the_way_out(checkout: Path) -> None:
    """An old Python ends the set-up before anything is made, with what was found and what to do."""
    old = script(checkout / "old python", '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    done = make(checkout, "demo", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert "apt-get install python3" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_told_which_package_to_install(checkout: Path) -> None:
    """Where `python -m venv` fails its own words are shown, and the package that brings it."""
    program = "import runpy, sys; sys.executable = '/bin/false'; sys.argv.pop(0); "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    shell = f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec "{sys.executable}" -c "{program}" "$@"\n'
    crippled = script(checkout / "python", shell)
    done = make(checkout, "demo", f"PYTHON={crippled}")
    assert done.returncode != 0
    assert "/bin/false -m venv" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_a_missing_compiler_is_named(checkout: Path) -> None:
    """Without `cc` on PATH a target that needs it says so, and which package brings it."""
    (checkout / "bin").mkdir()
    for tool in ("sh", "pwd", "cksum", "cut"):
        (checkout / "bin" / tool).symlink_to(str(shutil.which(tool)))
    done = make(checkout, "need-cc", f"PYTHON={sys.executable}", path=str(checkout / "bin"))
    assert done.returncode != 0
    assert "apt-get install gcc" in done.stderr


def test_ci_runs_what_the_readme_says() -> None:
    """.ci/run is executable and runs the checks and the whole test suite."""
    run = ROOT / ".ci/run"
    assert os.access(run, os.X_OK)
    text = run.read_text(encoding="utf-8")
    assert "make check" in text
    assert "make test" in text
