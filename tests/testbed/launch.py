"""Becomes another program, which dies with the process that ordered it.

    python -I -S launch.py PARENT PROGRAM ARG...

Run as a plain script (standard library only, about 20 ms) by `processes.py`.  PR_SET_PDEATHSIG survives exec
and is sent, as SIGKILL, when the *thread* that forked this process ends; `processes.py` forks from a thread
that lives as long as its process, however that ends.  No supervisor stays in between, so the pid is the
program's own.  Linux only.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever is interrupted here ends, without a traceback

import ctypes  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

PR_SET_PDEATHSIG = 1
PARENT_GONE = 3
CANNOT_EXECUTE = 127
INHERITED_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the Python interpreter ignores, and which exec would pass on as ignored."""


def bind_to(parent: int) -> None:
    """Ask the kernel for SIGKILL when `parent` ends; exit when it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(PARENT_GONE)


def become(command: list[str]) -> None:
    """Exec; a failure is written to standard error."""
    for number in INHERITED_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_EXECUTE)


if __name__ == "__main__":
    bind_to(int(sys.argv[1]))
    become(sys.argv[2:])
