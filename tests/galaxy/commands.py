"""Runs one program to its end, and takes everything that it started along when that is cut short.

Must not know what the programs check.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.playbook import Ansible

GRACE_S = 5.0
QUOTED_LINES = 40


class CheckFailed(Exception):
    """A check found something; the message holds what, and what to do where that is not plain."""


class NotRun(Exception):
    """A check could not be made on this machine; the message says why and what to install."""


@dataclass(frozen=True)
class Done:
    """What a program that ended printed (both streams together), and its exit code."""

    code: int
    output: str

    def expect(self, what: str) -> str:
        """The output; CheckFailed with its last lines where the program failed."""
        if self.code:
            raise CheckFailed(f"{what} failed (exit code {self.code}):\n{quoted(self.output)}")
        return self.output


def quoted(text: str) -> str:
    """The last lines, indented."""
    lines = text.rstrip().splitlines()
    left_out = [f"  | ... {len(lines) - QUOTED_LINES} lines before"] if len(lines) > QUOTED_LINES else []
    return "\n".join([*left_out, *(f"  | {line}" for line in lines[-QUOTED_LINES:])])


def run(command: Sequence[object], *, cwd: Path, env: Mapping[str, str], seconds: float) -> Done:
    """Run it in a session of its own; CheckFailed after `seconds`. Whatever happens, nothing of it stays."""
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with _ended(process):
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CheckFailed(f"{Path(str(command[0])).name} did not end in {seconds:.0f} s") from None
    return Done(process.returncode, output)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """SIGINT to the whole session, so that programs clean up, and SIGKILL to what is still there."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


@dataclass(frozen=True)
class Core(Ansible):
    """One ansible-core: its programs, and a folder with the installed collection as its home."""

    version: str = field(default="")

    def run(
        self, program: str, *options: str, more: Mapping[str, str] | None = None, seconds: float = 1800
    ) -> subprocess.CompletedProcess[str]:
        """One of Ansible's programs until its end; nothing of it outlives an interruption."""
        done = run([self.tools / program, *options], cwd=self.folder, env=self.env(more), seconds=seconds)
        return subprocess.CompletedProcess([program, *options], done.code, done.output, "")

    def expect(self, program: str, *options: str, more: Mapping[str, str] | None = None) -> str:
        """The same; its output, or CheckFailed."""
        done = self.run(program, *options, more=more)
        return Done(done.returncode, done.stdout).expect(f"{program} of ansible-core {self.version}")
