"""How build steps report progress, run programs and fail: every error says how to fix it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class BuildFailed(Exception):
    """A step failed; the text has the program, its output and how to fix it."""


class Unavailable(BuildFailed):
    """This machine cannot build the base: no Debian tools, no package archive, or its Python is too old."""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"images: {text}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path],
    *,
    way_out: str,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    failure: type[BuildFailed] = BuildFailed,
) -> str:
    """Standard output of `command`, run in `folder`; `failure` has its last 20 lines and `way_out`."""
    arguments = [str(word) for word in command]
    try:
        done = subprocess.run(
            arguments,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise failure(f"{arguments[0]} is not installed. {way_out}") from None
    if done.returncode != 0:
        last = (done.stdout + done.stderr).rstrip().splitlines()[-20:]
        quoted = "\n".join(f"  | {line}" for line in last)
        raise failure(f"{' '.join(arguments)} failed with exit code {done.returncode}:\n{quoted}\n{way_out}")
    return done.stdout
