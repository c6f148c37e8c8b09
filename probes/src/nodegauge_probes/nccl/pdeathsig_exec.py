"""A program that dies with its parent: `python leash.py PARENT PROGRAM ARGUMENT...`.

The kernel ends it when the parent is gone, however that went (PR_SET_PDEATHSIG outlives an exec), so no
benchmark goes on holding GPUs for a probe that was killed.  Between fork and exec of the parent itself this
cannot be done safely: the parent has threads.  Started as a file, with nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CANNOT_START = 127
"""The exit code of a program that is not there, as a shell has it."""


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
