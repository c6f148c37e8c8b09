"""The Makefile, the set-up behind it and `.ci/run`: what newcomers meet first, and are told when it fails."""

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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
    done = make(checkout)
    assert done.returncode == 0, done.stderr
    assert {m[0] for m in re.findall(r"^  make (\w+) +(\w.*)$", done.stdout, re.MULTILINE)} == TARGETS


def test_a_python_that_is_too_old_is_named_with_the_way_out(checkout: Path) -> None:
    old = script(checkout / "old python", '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    done = make(checkout, "demo", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert "apt-get install python3" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_told_which_package_to_install(checkout: Path) -> None:
    program = "import runpy, sys; sys.executable = '/bin/false'; sys.argv.pop(0); "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    shell = f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec "{sys.executable}" -c "{program}" "$@"\n'
    crippled = script(checkout / "python", shell)
    done = make(checkout, "demo", f"PYTHON={crippled}")
    assert done.returncode != 0
    assert "/bin/false -m venv" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_a_missing_compiler_is_named(checkout: Path) -> None:
    (checkout / "bin").mkdir()
    for tool in ("sh", "pwd", "cksum", "cut"):
        (checkout / "bin" / tool).symlink_to(str(shutil.which(tool)))
    done = make(checkout, "need-cc", f"PYTHON={sys.executable}", path=str(checkout / "bin"))
    assert done.returncode != 0
    assert "apt-get install gcc" in done.stderr


@pytest.fixture
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_steps", ROOT / ".ci" / "steps.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_steps"] = module
    spec.loader.exec_module(module)
    return module


def test_a_failed_step_stops_no_other_and_is_shown_last(
    steps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code is that of the run; the table has every step with its last line."""
    first, second = {"bad": "echo broken; exit 3", "next": "echo fine"}, {"other": "echo whole"}
    lanes = [{name: ["sh", "-c", command] for name, command in lane.items()} for lane in (first, second)]
    monkeypatch.setattr(steps, "LANES", lanes)
    assert steps.Run([], tmp_path).everything() == 3
    output = capsys.readouterr().out
    failed, table = output.index("bad failed; it printed:\nbroken"), output.index("steps, their seconds")
    assert max(output.index("next printed:\nfine"), output.index("other printed:\nwhole")) < failed < table
    assert [line.split()[3:] for line in sorted(output[table:].splitlines()[1:])] == [
        ["FAILED", "(3)", "broken"],
        ["ok", "fine"],
        ["ok", "whole"],
    ]
