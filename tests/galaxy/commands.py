"""Runs programs to their end, and takes everything that they started along when that is cut short."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.playbook import Ansible
from testbed.processes import Process

GRACE_S = 5.0
QUOTED_LINES = 40


class CheckFailed(Exception):
    """A check found something; the message holds what, and what to do where that is not plain."""


class NotRun(Exception):
    """A check could not be made on this machine; the message says why and what to install."""


class Done(subprocess.CompletedProcess[str]):
    def expect(self, what: str) -> str:
        """The output; CheckFailed with its last lines where the program failed."""
        if self.returncode:
            raise CheckFailed(f"{what} failed (exit code {self.returncode}):\n{quoted(self.stdout)}")
        return self.stdout


def quoted(text: str) -> str:
    lines = text.rstrip().splitlines()
    left_out = [f"  | ... {len(lines) - QUOTED_LINES} lines before"] if len(lines) > QUOTED_LINES else []
    return "\n".join([*left_out, *(f"  | {line}" for line in lines[-QUOTED_LINES:])])


@contextlib.contextmanager
def started(
    command: Sequence[object], *, cwd: Path, env: Mapping[str, str]
) -> Iterator[Callable[[float], Done]]:
    """Call what is given to wait for its end; what stays of it ends with the block."""
    line = [str(part) for part in command]
    name = Path(line[0]).name
    with tempfile.TemporaryDirectory() as folder:
        process = Process(name, line, log=Path(folder) / "output", environ=env, cwd=cwd)
        process.start()

        def wait(seconds: float) -> Done:
            if not process.wait(seconds):
                raise CheckFailed(f"{name} did not end in {seconds:.0f} s")
            output = process.log.read_text("utf-8", errors="replace")
            return Done(line, process.exit_code or 0, output, "")

        try:
            yield wait
        finally:
            process.stop_group(grace=GRACE_S)


def run(command: Sequence[object], *, cwd: Path, env: Mapping[str, str], seconds: float) -> Done:
    """Run it to its end; CheckFailed after `seconds`."""
    with started(command, cwd=cwd, env=env) as wait:
        return wait(seconds)


@dataclass(frozen=True)
class Core(Ansible):
    version: str = field(default="")

    @property
    def collection(self) -> Path:
        return self.folder / "ansible_collections" / "nodegauge" / "gpu"

    def run(
        self, program: str, *options: str, more: Mapping[str, str] | None = None, seconds: float = 1800
    ) -> Done:
        """One of Ansible's programs until its end; nothing of it outlives an interruption."""
        return run([self.tools / program, *options], cwd=self.folder, env=self.env(more), seconds=seconds)

    def expect(self, program: str, *options: str, more: Mapping[str, str] | None = None) -> str:
        """The same; its output, or CheckFailed."""
        return self.run(program, *options, more=more).expect(f"{program} of ansible-core {self.version}")
