"""Starts processes from one server, which ends them with the process that asked for them.  A program of
`LOADED`, or `-c CODE`, is a fork of the server, which has it loaded: a start costs a tenth of an
interpreter's CPU time.  `lasting` processes see to their end themselves.  Of a fork, /proc/PID/environ and
cmdline are the server's, `atexit` does not run, threads are not joined.  Linux only."""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROBES = (
    *("api_client", "cli", "delivery", "load.probe", "nccl.probe", "once", "page.page", "progress", "pull"),
    *("feed.probe", "watch.outbox", "watch.probe"),
)
LOADED = {
    "nodegauge_probes": tuple(f"nodegauge_probes.{name}" for name in PROBES),
    "nodegauge_operator": ("nodegauge_operator.handlers.app",),
    "nodegauge_cli": ("nodegauge_cli.apply", "nodegauge_cli.check", "nodegauge_cli.cleanup.command"),
}
"""Modules with a `main` in `__main__`, and what they import once they run."""
PROGRAMS = {str(Path(sys.executable).with_name("ansible-playbook")): "testbed.ansible"}
"""Programs, and the module whose `main` is one of them, once it is imported."""
CODE = LOADED["nodegauge_probes"]
"""What `-c CODE` imports, as a rule."""
TESTS = Path(__file__).resolve().parents[1]
PACKED = 4
"""Bytes of a pid, and of a wait status."""
ORDER_BYTES = 1 << 17
"""Of one order: arguments and environment.  A probe with longer ones is started as usual."""
SIMPLE = frozenset({"args", "env", "cwd", "stdin", "stdout", "stderr", "text", "encoding", "errors"})
MORE = frozenset({"start_new_session", "bufsize", "universal_newlines", "close_fds"})
PR_SET_PDEATHSIG = 1
INHERITED_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the Python interpreter ignores, and which an exec would pass on as ignored."""
CANNOT_EXECUTE = 127


def popen(command: Sequence[str], server: "Server | None" = None, **options: Any) -> subprocess.Popen[Any]:
    environment, own = options.get("env") or os.environ, server.environment if server else None
    forks = forked([*command], environment, own) and options.keys() <= SIMPLE | MORE
    if forks and len(json.dumps([*command, *environment.items()])) < ORDER_BYTES:
        return Forked(command, server, **options)
    process: subprocess.Popen[Any] = subprocess.Popen(command, **options)
    return process


def run(
    command: Sequence[str], *, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.wait(), output, errors)


def forked(
    argv: Sequence[str], environment: Mapping[str, str], own: Mapping[str, str] | None = None
) -> list[str]:
    """What `be` makes of a fork of a process with environment `own`, in place of `argv`; empty where
    it can't: this is nothing known, or the interpreter's variables are others."""
    known = argv[1:2] == ["-c"] or (argv[1:2] == ["-m"] and argv[2] in LOADED)
    call = argv[1:] if known and argv[0] == sys.executable else []
    call = ["-m", PROGRAMS[argv[0]], *argv[1:]] if argv[0] in PROGRAMS else call
    ours, its = (
        {name: value for name, value in variables.items() if name.startswith("PYTHON")}
        for variables in (os.environ if own is None else own, environment)
    )
    return [*call] if ours == its else []


def needs(call: Sequence[str]) -> Sequence[str]:
    """Modules that a server has loaded before it forks for this."""
    return LOADED.get(call[1], call[1:2] if call[1] in PROGRAMS.values() else CODE) if call else ()


class Forked(subprocess.Popen[Any]):
    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *more: Any) -> None:
        _pass_fds, cwd, env, _info, _flags, _shell, *pipes = more
        stdin, _, _, stdout, _, stderr = pipes[:6]
        environment = dict(os.environ if env is None else env)
        arguments = [str(word) for word in args]
        call = forked(arguments, environment, self._server.environment if self._server else None)
        server = self._server or server_for(needs(call), *_servers)
        order = {
            "arguments": arguments,
            "environment": environment,
            "cwd": os.fspath(cwd or Path.cwd()),
            "session": self._wants_session,
            "call": call,
        }
        descriptors = [number if pipe == -1 else pipe for number, pipe in enumerate((stdin, stdout, stderr))]
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                server.order(order, [*descriptors, theirs.fileno()], loaded=needs(call))
            answer = self._status.recv(PACKED)
        except BaseException:
            self._status.shutdown(socket.SHUT_WR)  # the server ends what it may have started, and hangs up
            while self._status.recv(PACKED):
                pass
            self._status.close()
            raise
        if not answer:
            server.forget()
            raise OSError("the fork server ended before it started this process")
        self.pid = int.from_bytes(answer, "little")
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]

    def __init__(self, args: Any, server: "Server | None" = None, **options: Any) -> None:
        self._server = server
        self._wants_session = bool(options.pop("start_new_session", False))
        super().__init__(args, **options)

    def _wait(self, timeout: float | None = None) -> int:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if self.returncode is None and not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                answer = self._status.recv(PACKED)
                # Without an answer the server was killed, and its children with it.
                status = int.from_bytes(answer, "little") if answer else int(signal.SIGKILL)
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def __del__(self, *more: Any) -> None:
        super().__del__(*more)
        if self.returncode is not None:  # no other thread waits for it
            self._status.close()

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


class Server:
    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = environment
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None

    def forget(self) -> None:
        with self._lock:
            self._orders = None

    def order(self, order: dict[str, Any], descriptors: list[int], *, loaded: Iterable[str] = ()) -> None:
        """By a process with these modules loaded; the last descriptor is a socket for pid and wait status."""
        with self._lock:
            if self._orders is None:
                self._orders = self._start()
            socket.send_fds(self._orders, [json.dumps(order | {"loaded": [*loaded]}).encode()], descriptors)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\nfrom testbed.forkserver import main\nmain()"
        with theirs:
            # Its end is the end of this process, which closes `ours`: nobody waits for it.
            server = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )
            server.returncode = 0
        return ours


_servers = Server(), Server()


def server_for(modules: Iterable[str], small: Server, large: Server) -> Server:
    """The small one loads what a probe needs, and no more: what takes time in a fork is to copy pages."""
    return small if {*modules} <= {*CODE} else large


class _Serving:
    """The server's side: forks for every order, and says how the children end, until nobody orders more."""

    def __init__(self) -> None:
        self._living: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, orders: socket.socket) -> None:
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (orders, woken):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj: key.data for key, _ in self._selector.select()}
            if ready.pop(woken, self) is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if ready.pop(orders, self) is None:
                message, descriptors, _, _ = socket.recv_fds(orders, 2 * ORDER_BYTES, 4)
                if not message:
                    break
                self._obey(json.loads(message), descriptors)
            for pid in ready.values():  # nobody will ever ask how they end
                if pid in self._living and self._living[pid] in self._selector.get_map():
                    self._selector.unregister(self._living[pid])
                    os.kill(pid, signal.SIGKILL)
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)

    def _obey(self, order: dict[str, Any], descriptors: list[int]) -> None:
        status = socket.socket(fileno=descriptors.pop())
        for module in order["loaded"]:
            if module not in sys.modules:
                importlib.import_module(module)
                gc.collect()
                gc.freeze()  # a collection in a child would copy all that is shared
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            _become(order, descriptors, parent)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # who ordered may be gone
            status.send(pid.to_bytes(PACKED, "little"))
        if order.get("lasting"):
            status.close()
        else:
            self._living[pid] = status
            self._selector.register(status, selectors.EVENT_READ, pid)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (status := self._living.pop(ended[0], None)) is not None:
                    if status in self._selector.get_map():
                        self._selector.unregister(status)
                    with status, contextlib.suppress(OSError):
                        status.send(ended[1].to_bytes(PACKED, "little"))


def _become(order: dict[str, Any], descriptors: list[int], parent: int) -> NoReturn:
    """Be what was ordered: by exec, or as an interpreter that was started for it would be."""
    arguments, environment = order["arguments"], order["environment"]
    try:
        if not order.get("lasting"):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        if order["session"]:
            os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, 1024)
        os.chdir(order["cwd"])
        if order["call"]:
            be(order["call"], environment)
        for number in INHERITED_IGNORES:
            signal.signal(number, signal.SIG_DFL)
        os.execve(arguments[0], arguments, environment)
    except OSError as error:
        os.write(2, f"cannot execute {arguments[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_EXECUTE)


def be(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """`-m MODULE ARGUMENT...` or `-c CODE ARGUMENT...`."""
    code = 1
    try:
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(environment)
        code = _main(*arguments)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _main(option: str, subject: str, *arguments: str) -> int:
    sys.argv = [subject if option == "-m" else option, *arguments]
    try:
        if option == "-c":
            exec(subject, {"__name__": "__main__"})
            return 0
        module = importlib.import_module(f"{subject}.__main__" if subject in LOADED else subject)
        return int(module.main() or 0)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _find_libraries_anew() -> None:
    """Have libraries found by the LD_LIBRARY_PATH of now: the loader reads it once, when a process starts."""
    load = ctypes.CDLL.__init__

    def load_anew(self: ctypes.CDLL, name: str | None, *arguments: Any, **options: Any) -> None:
        if name is not None and "/" not in name:
            folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
            name = next((str(at) for folder in folders if (at := Path(folder) / name).exists()), name)
        load(self, name, *arguments, **options)

    ctypes.CDLL.__init__ = load_anew  # type: ignore[method-assign]


def main() -> None:
    _find_libraries_anew()
    _Serving().run(socket.socket(fileno=int(sys.argv[1])))
