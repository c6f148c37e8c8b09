"""Starts shims, and what they run, by fork from one process that has nodegauge loaded.

A container of nodegauge's costs so a tenth of the CPU time of an interpreter that imports the operator or the
probes.  What is not nodegauge, or has another module path, is executed as usual.  What a forked container has
not: `/proc/PID/environ` and `cmdline` are this process's.

Run by `process.py` with the number of a socket, from which each message brings the descriptor of a channel to
a kubelet.  It ends with that process; its shims end with their channels.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from testbed.kubelet import shim

PROGRAMS = {
    "nodegauge_probes": ("nodegauge_probes.cli",),
    "nodegauge_operator": ("nodegauge_operator.handlers.app",),
    "nodegauge_cli": ("nodegauge_cli.apply", "nodegauge_cli.check", "nodegauge_cli.cleanup.command"),
}
"""Modules with a `main` in `__main__`, and what they import once they run."""


def can_fork(argv: list[str], env: dict[str, str]) -> bool:
    """Whether this process is what an interpreter would become for it."""
    own = {key: value for key, value in os.environ.items() if key.startswith("PYTHON")}
    asked = {key: value for key, value in env.items() if key.startswith("PYTHON")}
    return argv[:2] == [sys.executable, "-m"] and argv[2] in PROGRAMS and own == asked


def execute(path: str, argv: list[str], env: dict[str, str]) -> NoReturn:
    """As `os.execve`."""
    if can_fork(argv, env):
        run(argv, env)
    os.execve(path, argv, env)


def run(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Be the program, as `exec` would be; descriptors, folder and signals are set already."""
    code = 1
    try:
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = argv[2:]
        code = int(importlib.import_module(f"{argv[2]}.__main__").main() or 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def find_libraries_anew() -> None:
    """Have libraries found by the LD_LIBRARY_PATH of now: the loader reads it once, when a process starts."""
    load = ctypes.CDLL.__init__

    def load_anew(self: ctypes.CDLL, name: str | None, *arguments: object, **options: object) -> None:
        if name is not None and "/" not in name:
            folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
            name = next((str(at) for folder in folders if (at := Path(folder) / name).exists()), name)
        load(self, name, *arguments, **options)  # type: ignore[arg-type]

    ctypes.CDLL.__init__ = load_anew  # type: ignore[method-assign]


def serve(orders: socket.socket) -> None:
    """A shim for each channel that comes, until nobody can send one any more."""
    for modules in PROGRAMS.values():
        for module in modules:
            importlib.import_module(module)
    find_libraries_anew()
    shim.execute = execute
    gc.collect()
    gc.freeze()  # a collection in a child would copy all that is shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their ends are seen at their channels
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setsid()
                os.dup2(descriptors[0], 0)
                os.closerange(3, 1024)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                code = shim.main()
            os._exit(code)
        os.close(descriptors[0])


def main() -> None:
    """`serve` on the descriptor that the command line names."""
    serve(socket.socket(fileno=int(sys.argv[1])))
