"""Make the checkout's virtual environment (`install STAMP`), or pin the newest versions (`pins`).  Standard
library only, because nothing is installed yet.  Two runs in one checkout wait for each other; an interrupted
one leaves no stamp, and the next begins anew."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CONSTRAINTS = Path("constraints.txt")
INPUTS = (Path("pyproject.toml"), CONSTRAINTS)
VENV = Path(".venv")
PROJECT = ["--group", "dev", "--editable", ".[operator,probes,loadtest]"]
SOURCES = ("operator/src", "probes/src", "tests")
BUILD_TOOLS = ("pip", "setuptools")
NOT_INSTALLED = "nccl"
"""An extra whose packages are pinned but in no checkout: 0.6 GB."""
ALONE = "# Of the NCCL image alone, in no checkout:\n"
PINS_HEADER = """\
# Exact versions of everything that is installed to build, run and test nodegauge.
# Written by `make constraints` (Python {python}); pip and setuptools are the tools that install and build it.
"""


class StepFailed(Exception):
    """A step of the set-up failed; the text says which, and the way out."""


def say(text: str) -> None:
    print(f"nodegauge set-up: {text}", flush=True)


def pinned() -> dict[str, str]:
    """Package name (lower case) to `name==version` of what a checkout installs, as in constraints.txt."""
    text = CONSTRAINTS.read_text(encoding="utf-8").split(ALONE)[0] if CONSTRAINTS.exists() else ""
    pins = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {pin.split("==", maxsplit=1)[0].lower(): pin for pin in pins}


def run(command: list[str], *, watch: Callable[[str], None], way_out: str) -> None:
    """Run `command`, each printed line goes to `watch`; `StepFailed` quotes the last ones and `way_out`.  pip
    compiles nothing: of 120 MB of modules few are ever imported, and Python compiles those."""
    ours = {"PIP_USER": "0", "PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = os.environ | ours
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                watch(lines[-1])
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode != 0:
        quoted = "\n".join(f"  | {line}" for line in lines[-25:])
        raise StepFailed(f"{' '.join(command)} failed:\n{quoted}\n{way_out}")


def counter(total: int) -> Callable[[str], None]:
    seen: set[str] = set()

    def watch(line: str) -> None:
        if line.startswith("WARNING"):
            say(line)
        collected = re.match(r"Collecting ([A-Za-z0-9._-]+)", line)
        if collected and collected.group(1).lower() not in seen:
            seen.add(collected.group(1).lower())
            if len(seen) % 10 == 0:
                say(f"  {len(seen)}{f' of {total}' if total else ''} packages found")
        if line.startswith("Installing collected packages"):
            say("  unpacking them")

    return watch


def create(folder: Path) -> str:
    """A fresh virtual environment in `folder`, with the pinned pip; the path of its Python."""
    quiet: Callable[[str], None] = lambda line: None  # noqa: E731
    say(f"[1/3] creating {folder} with Python {sys.version.split()[0]}")
    run(
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        watch=quiet,
        way_out="Python's venv module is not complete. Debian and Ubuntu: apt-get install python3-venv",
    )
    python = str(folder / "bin" / "python")
    pip = pinned().get("pip", "pip")
    say(f"[2/3] installing {pip}")
    run([python, "-m", "pip", "install", pip], watch=counter(0), way_out=NO_PACKAGES)
    return python


NO_PACKAGES = (
    "pip could not install what the project needs; its own words are above. Without a way to a package "
    "index, set one up for pip (pip config, or the variables PIP_INDEX_URL and PIP_CERT) and run make again."
)


def install(stamp: Path) -> None:
    """The checkout's environment; does nothing when another run made it while this one waited."""
    if stamp.exists() and all(stamp.stat().st_mtime >= path.stat().st_mtime for path in INPUTS):
        return
    python = create(VENV)
    total = len(pinned()) - len(BUILD_TOOLS)
    say(f"[3/3] installing {total} packages at the versions of {CONSTRAINTS} (a minute or two)")
    fixed = ["--constraint", str(CONSTRAINTS), "--build-constraint", str(CONSTRAINTS)]
    run([python, "-m", "pip", "install", *fixed, *PROJECT], watch=counter(total), way_out=NO_PACKAGES)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(
        subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    )
    # Folders in place of setuptools' finder, whose imports are half of an interpreter's start.
    paths = "".join(f"{Path(folder).resolve()}\n" for folder in SOURCES)
    (site / "nodegauge-checkout.pth").write_text(paths, encoding="utf-8")
    for finder in site.glob("__editable__.nodegauge-*.pth"):
        finder.unlink()
    stamp.touch()
    say("ready")


def only_pinned(python: str, report: Path) -> list[str]:
    """What the NCCL image installs and no checkout does; pip may have to download half a gigabyte for
    that."""
    say("      and what the NCCL image installs besides")
    dry = ["--dry-run", "--report", str(report), f".[{NOT_INSTALLED}]"]
    run([python, "-m", "pip", "install", *dry], watch=counter(0), way_out=NO_PACKAGES)
    chosen = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    pins = (f"{one['name']}=={one['version']}" for one in chosen if one["name"] != "nodegauge")
    return sorted(pins, key=str.lower)


def write_pins() -> None:
    """Resolve anew, without constraints, in a throw-away environment, and write constraints.txt."""
    with tempfile.TemporaryDirectory() as folder:
        python = create(Path(folder) / "venv")
        say("[3/3] resolving the newest versions that pyproject.toml allows")
        run(
            [python, "-m", "pip", "install", "--upgrade", *BUILD_TOOLS], watch=counter(0), way_out=NO_PACKAGES
        )
        run([python, "-m", "pip", "install", *PROJECT], watch=counter(0), way_out=NO_PACKAGES)
        command = [python, "-m", "pip", "freeze", "--all", "--exclude-editable"]
        frozen = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        extra = only_pinned(python, Path(folder) / "report.json")
    lines = sorted((line for line in frozen.splitlines() if "==" in line), key=str.lower)
    header = PINS_HEADER.format(python=".".join(str(part) for part in sys.version_info[:2]))
    text = "".join(f"{line}\n" for line in lines) + ALONE + "".join(f"{line}\n" for line in extra)
    CONSTRAINTS.write_text(header + text, encoding="utf-8")
    say(f"{CONSTRAINTS} now holds {len(lines)} versions: look at `git diff`, then make check and make test")


def main(arguments: list[str]) -> int:
    """The command line of the module's docstring; 1 for a failed step, 130 for Ctrl-C."""
    folder = os.open(".", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another make is setting up this checkout: waiting for it")
        fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        if arguments[:1] == ["pins"]:
            write_pins()
        else:
            install(Path(arguments[1]))
    except StepFailed as failure:
        print(f"\nnodegauge set-up: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next make begins anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
