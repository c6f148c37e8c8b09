"""Starts shims, and what they run, by fork from one process that has nodegauge loaded.

A container of nodegauge's costs so a tenth of the CPU time of an interpreter that imports the operator or the
probes.  What is not nodegauge, or has another module path, is executed as usual.

Run by `process.py` with the number of a socket, from which each message brings the descriptor of a channel to
a kubelet.  It ends with that process; its shims end with their channels.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

from testbed import forked
from testbed.kubelet import shim

PROGRAMS = {
    "nodegauge_probes": ("nodegauge_probes.cli",),
    "nodegauge_operator": ("nodegauge_operator.handlers.app",),
    "nodegauge_cli": ("nodegauge_cli.apply", "nodegauge_cli.check", "nodegauge_cli.cleanup.command"),
}
"""Modules with a `main` in `__main__`, and what they import once they run."""


def execute(path: str, argv: list[str], env: dict[str, str]) -> NoReturn:
    """As `os.execve`: what nodegauge's programs become is here already."""
    same = forked.python_variables(env) == forked.python_variables(os.environ)
    if argv[:2] == [sys.executable, "-m"] and argv[2] in PROGRAMS and same:
        forked.be(argv[1:], env)
    os.execve(path, argv, env)


def serve(orders: socket.socket) -> None:
    """A shim for each channel that comes, until nobody can send one any more."""
    for modules in PROGRAMS.values():
        for module in modules:
            importlib.import_module(module)
    forked.find_libraries_anew()
    shim.execute = execute
    gc.collect()
    gc.freeze()  # a collection in a child would copy all that is shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their ends are seen at their channels
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            _be_shim(descriptors[0])
        os.close(descriptors[0])


def _be_shim(channel: int) -> NoReturn:
    """With its channel as standard input; what goes wrong is on standard error, and leaves no process."""
    code = 1
    try:
        os.setsid()
        os.dup2(channel, 0)
        os.closerange(3, 1024)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = shim.main()
    except BaseException:
        traceback.print_exc()
        with contextlib.suppress(BaseException):
            shim.kill_all()
    finally:
        os._exit(code)


def main() -> None:
    """`serve` on the descriptor that the command line names."""
    serve(socket.socket(fileno=int(sys.argv[1])))
