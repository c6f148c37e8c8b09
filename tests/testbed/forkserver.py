"""Starts probes by fork from one process that has them loaded: a start costs a tenth of an interpreter's.

    from testbed import forkserver
    process = forkserver.popen([sys.executable, "-m", "nodegauge_probes", "health"], env=env, stdout=PIPE)
    done = forkserver.run([sys.executable, "-m", "nodegauge_probes", "health"], env=env, capture_output=True)

Both take what `subprocess.Popen` and `subprocess.run` take and return what they return; the process is a real
one with its own pid, group, signals, and descriptors.  `-c CODE` is forked, too.  What cannot be forked is
started as usual: another program, other PYTHON* variables, options such as `preexec_fn`.

The server is a child of the process that first asks for it, and ends with it; all that it started ends with
it, too.  It has imported the probes and nothing else: it has no thread and no driver library open.

Linux only.  Must not know what the probes are, but for the module's name.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from testbed import forked

MODULE = "nodegauge_probes"
PACKED = 4
"""Bytes of a pid, and of a wait status."""
ORDER_BYTES = 1 << 17
"""Of one order: arguments and environment.  What is longer is started as usual."""
SIMPLE = frozenset({"args", "env", "cwd", "stdin", "stdout", "stderr", "text", "encoding", "errors"})
MORE = frozenset({"start_new_session", "bufsize", "universal_newlines", "close_fds"})
PR_SET_PDEATHSIG = 1


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """The process, as `subprocess.Popen` gives it."""
    kind = Forked if _can_fork(command, options) else subprocess.Popen
    process: subprocess.Popen[Any] = kind(command, **options)
    return process


def run(
    command: Sequence[str], *, timeout: float | None = None, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """The end of the process, as `subprocess.run` gives it."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        code = process.wait()
    if check and code:
        raise subprocess.CalledProcessError(code, command, output, errors)
    return subprocess.CompletedProcess(command, code, output, errors)


def _can_fork(command: Sequence[str], options: dict[str, Any]) -> bool:
    environment = options.get("env") or os.environ
    return (
        ([*command][:3] == [sys.executable, "-m", MODULE] or [*command][:2] == [sys.executable, "-c"])
        and options.keys() <= SIMPLE | MORE
        and forked.python_variables(environment) == forked.python_variables(os.environ)
        and len(json.dumps([*command, *environment.items()])) < ORDER_BYTES
    )


class Forked(subprocess.Popen[Any]):
    """A process that the server forks.  It is the server's child, which says how it ended."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *more: Any) -> None:
        _pass_fds, cwd, env, _info, _flags, _shell, *pipes = more
        stdin, _, _, stdout, _, stderr = pipes[:6]
        order = {
            "arguments": [str(word) for word in args],
            "environment": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd or Path.cwd()),
            "session": self._wants_session,
        }
        descriptors = [number if pipe == -1 else pipe for number, pipe in enumerate((stdin, stdout, stderr))]
        self._status = _server.order(order, descriptors)
        answer = self._status.recv(PACKED)
        if not answer:
            _server.forget()
            raise OSError("the fork server ended before it started this process")
        self.pid = int.from_bytes(answer, "little")
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]

    def __init__(self, args: Any, **options: Any) -> None:
        self._wants_session = bool(options.pop("start_new_session", False))
        super().__init__(args, **options)

    def _wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            answer = self._status.recv(PACKED)
            self._status.close()
            # Without an answer the server was killed, and its children with it.
            status = int.from_bytes(answer, "little") if answer else int(signal.SIGKILL)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


class _Server:
    """Starts the server when it is first needed, and passes orders on; safe for threads and forks."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None

    def forget(self) -> None:
        """It has ended: the next order starts another one."""
        with self._lock:
            self._orders = None

    def order(self, order: dict[str, Any], descriptors: list[int]) -> socket.socket:
        """Have it done; returns where the pid and, at the end, the wait status come."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            if self._orders is None:
                self._orders = self._start()
            sent = [*descriptors, theirs.fileno()]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))]
            self._orders.sendmsg([json.dumps(order).encode()], rights)
        return ours

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its end is the end of this process, which closes `ours`: nobody waits for it.
            server = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            server.returncode = 0
        return ours


_server = _Server()


def serve(orders: socket.socket) -> None:
    """Fork for every order, and say how the children end, until nobody can order any more."""
    import nodegauge_probes.cli

    assert nodegauge_probes.cli
    forked.find_libraries_anew()
    gc.collect()
    gc.freeze()  # a collection in a child would copy all that is shared
    living: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                _reap(living)
            if orders in ready:
                message, rights, _, _ = socket.recv_fds(orders, 2 * ORDER_BYTES, 4)
                if not message:
                    break
                _obey(json.loads(message), rights, living)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _obey(order: dict[str, Any], descriptors: list[int], living: dict[int, socket.socket]) -> None:
    """Fork, and say who it is."""
    status = socket.socket(fileno=descriptors.pop())
    parent = os.getpid()
    if (pid := os.fork()) == 0:
        _become(order, descriptors, parent)
    for descriptor in descriptors:
        os.close(descriptor)
    living[pid] = status
    with contextlib.suppress(OSError):  # who ordered may be gone
        status.send(pid.to_bytes(PACKED, "little"))


def _reap(living: dict[int, socket.socket]) -> None:
    while living:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with living.pop(pid) as status, contextlib.suppress(OSError):
            status.send(ended.to_bytes(PACKED, "little"))


def _become(order: dict[str, Any], descriptors: list[int], parent: int) -> NoReturn:
    """Be the probe, as an interpreter that was started for it would be (`forked`)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if order["session"]:
            os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.chdir(order["cwd"])
        forked.be(order["arguments"][1:], order["environment"])
    finally:
        os._exit(1)


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules would hide others
    serve(socket.socket(fileno=int(sys.argv[1])))
