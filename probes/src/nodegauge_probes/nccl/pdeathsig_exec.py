"""Runs a program that dies with its parent: `python pdeathsig_exec.py PARENT PROGRAM ARGUMENT...`.

The kernel kills it when the parent dies for whatever reason (PR_SET_PDEATHSIG survives an exec), so no child
holds GPUs after its probe was killed.  The parent cannot set this between fork and exec, because it has
threads.  Executed as a file, with only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_START = 127
"""The exit code for a missing program, as in a shell."""


def main() -> int:
    parent, *program = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):
        return CANNOT_START
    try:
        os.execv(program[0], program)
    except OSError as error:
        print(f"{program[0]} cannot be started: {error.strerror}", file=sys.stderr)
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
