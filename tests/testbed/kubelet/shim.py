"""The parent process of one container, in place of containerd's shim and a PID namespace.  When the kubelet's
socket (descriptor 0) ends, or the container's first process does, all that it started is killed; a signal
without a handler is dropped, as for PID 1. In: a line of JSON (argv, env, cwd, log), then signal numbers as
bytes; out: {"pid": N} or {"error": "..."}, then {"exit": code}. Linux only."""

import contextlib
import ctypes
import json
import os
import select
import signal

from testbed import forkserver

PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def read_line(fd: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def send(message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        os.write(0, json.dumps(message).encode() + b"\n")


def start(argv: list[str], *, env: dict[str, str], cwd: str, log: str) -> int:
    shim = os.getpid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(argv, env=env, cwd=cwd, output=output, shim=shim)
        except OSError as error:
            os.write(write_end, f"{error.errno or 0} {error.strerror or error}".encode())
        finally:
            os._exit(127)
    os.close(write_end)
    os.close(output)
    failure = os.read(read_end, 4096).decode()
    os.close(read_end)
    if failure:
        os.waitpid(pid, 0)
        number, _, text = failure.partition(" ")
        raise OSError(int(number), text)
    return pid


def become(argv: list[str], *, env: dict[str, str], cwd: str, output: int, shim: int) -> None:
    os.setsid()
    prctl(forkserver.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:
        os._exit(127)  # the shim died before the line above took hold
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in forkserver.INHERITED_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(cwd)
    if argv[1:2] == ["-m"] and (call := forkserver.forked(argv, env)):
        forkserver.be(call, env)
    os.execve(argv[0], argv, env)


def descendants(*parents: int) -> set[int]:
    """Every process below these; a subreaper keeps those whose own parent ended."""
    table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs as much as the rest of the start
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                stat = file.read()
            table[int(name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
        except (OSError, ValueError):  # it ended while it was read
            continue
    result: set[int] = set()
    layer = set(parents)
    while layer:
        layer = {pid for pid, parent in table.items() if parent in layer} - result
        result |= layer
    return result


def kill_all() -> bool:
    below = descendants(os.getpid())
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(below)


def handles(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
            caught = next((line for line in file if line.startswith("SigCgt:")), "SigCgt: 0")
    except OSError:
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def deliver(pid: int, number: int) -> None:
    """SIGKILL ends the whole container; any other signal goes to its first process, if that handles it."""
    if number == signal.SIGKILL:
        kill_all()
    elif handles(pid, number):
        os.kill(pid, number)


def reap(main: int) -> int | None:
    """Collect ended children; the exit code once the first process is among them (128 + n for a signal n)."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main:
            plain = os.waitstatus_to_exitcode(status)
            code = plain if plain >= 0 else 128 - plain


def serve(pid: int, wakeup: int) -> int | None:
    while True:
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
        if (code := reap(pid)) is not None:
            return code
        if 0 in ready:
            try:
                numbers = os.read(0, 64)
            except OSError:
                numbers = b""
            if not numbers:
                return None
            for number in numbers:
                deliver(pid, number)


def main() -> int:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if not (line := read_line(0)):
        return 1
    spec = json.loads(line)
    try:
        pid = start(spec["argv"], env=spec["env"], cwd=spec["cwd"], log=spec["log"])
        send({"pid": pid})
        code = serve(pid, read_end)
    except OSError as error:
        send({"error": f"{spec['argv'][0]}: {error.strerror or error}"})
        return 1
    finally:
        with contextlib.suppress(ChildProcessError):
            while kill_all():
                os.waitpid(-1, 0)
    if code is not None:
        send({"exit": code})
    return 0
