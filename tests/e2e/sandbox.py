"""Namespaces for one run: made by `unshare`, ended with their first process, whatever happens outside.

The first process (`init.py`) ends when a pipe closes that only the outer program holds; `--kill-child` ends
it when `unshare` is killed.  Its end is the end of everything in its PID namespace, and so of the mounts and
the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.errors import TestbedError

INIT = Path(__file__).with_name("init.py")
END_SECONDS = 120.0


class Sandbox:
    """A program in namespaces of its own; a context manager that leaves nothing running."""

    def __init__(self, command: Sequence[str], *, environ: Mapping[str, str]) -> None:
        unshare = shutil.which("unshare") or "unshare"
        flags = ["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
        self._pipe, self._write = -1, -1
        self._pipe, self._write = os.pipe()
        os.set_inheritable(self._write, False)
        self._process = subprocess.Popen(
            [unshare, *flags, "--", sys.executable, "-I", "-S", str(INIT), *command],
            stdin=self._pipe,
            env=dict(environ),
            # A terminal's Ctrl-C is for the outer program alone.
            start_new_session=True,
        )
        os.close(self._pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait(self) -> int:
        """Until the program ends; its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """End everything in it; returns when it has ended.  Harmless when it has ended before."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and with it, its child
            self._process.wait()
            raise TestbedError(
                f"the namespaces did not end within {END_SECONDS:.0f} s and were killed"
            ) from None
