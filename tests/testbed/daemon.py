"""The testbed as a process that stays: whoever has locked `testbed.lock`, which says `ready` in the end."""

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.cluster import TESTS, Testbed
from testbed.errors import TestbedError
from testbed.interruption import interruptible
from testbed.wait import wait_for

STOP_SECONDS = 30.0
START_SECONDS = 1800.0
"""Only a failure waits so long: each part of the start has a deadline of its own."""
FLOCK = "hhqqi"
"""Linux's struct flock: kind of lock, whence, start, length, and the process that has it."""
PARTS = ("control-plane", "kubelet", "hardware", "helm", "helm-values.yaml", "bmc", "bin")
"""What a testbed puts into its directory, besides `testbed.lock` and `testbed.log`."""


Say = Callable[[str], object]
Furnish = Callable[[Testbed, Say], contextlib.AbstractContextManager[None]]


class Holder(NamedTuple):
    pid: int
    ready: bool


def holder(directory: Path) -> Holder | None:
    with contextlib.suppress(FileNotFoundError), (directory / "testbed.lock").open("rb") as file:
        question = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
        return Holder(pid, ready=bool(file.read())) if kind != fcntl.F_UNLCK else None
    return None


@contextlib.contextmanager
def holding(directory: Path, parts: Sequence[str] = PARTS) -> Iterator[Callable[[], object]]:
    """Hold a directory, without what an earlier holder left; what is given says that all is ready."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "testbed.lock", os.O_RDWR | os.O_CREAT, 0o600)  # closed by the process' end
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TestbedError(f"another process holds the testbed in {directory}") from error
    os.truncate(lock, 0)
    clear(directory, parts)
    yield lambda: os.write(lock, b"ready")


def serve(directory: Path, nodes: Mapping[str, str | None], furnish: Furnish | None = None) -> None:
    """`furnish`: what else there is, from before the testbed is ready until it ends."""

    def say(message: str) -> None:
        print(message, flush=True)

    with until_stopped() as wait, holding(directory) as ready, contextlib.ExitStack() as stack:
        testbed = stack.enter_context(Testbed(directory, nodes=nodes, progress=say))
        if furnish is not None:
            stack.enter_context(furnish(testbed, say))
        ready()
        wait()


@contextlib.contextmanager
def until_stopped() -> Iterator[Callable[[], None]]:
    interruptible((signal.SIGTERM, signal.SIGINT))

    def wait() -> None:
        while True:
            signal.pause()

    try:
        yield wait
    except KeyboardInterrupt:
        print("stopped", flush=True)


def start(directory: Path, arguments: Sequence[str], say: Say) -> None:
    """Start a detached holder (`serve` with these arguments) and wait until it is ready, saying what it says;
    nothing of it is left where that fails."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "testbed.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed", "--dir", str(directory), "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
    try:
        wait_ready(directory, lambda: process.poll() is None, say)
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        raise


def wait_ready(directory: Path, alive: Callable[[], bool], say: Say) -> None:
    log, shown = directory / "testbed.log", 0

    def ready() -> bool:
        return bool((known := holder(directory)) and known.ready)

    def over() -> bool:
        nonlocal shown
        done = ready() or not alive()
        *lines, _ = log.read_text(errors="replace").split("\n")
        for line in lines[shown:]:
            say(line)
        shown = len(lines)
        return done

    wait_for(over, seconds=START_SECONDS, what=f"a testbed that is ready, see {log}")
    if not ready():
        raise TestbedError(f"the testbed did not start: see {log}")


def stop(directory: Path) -> bool:
    known = holder(directory)
    if known is None:
        return False
    os.kill(known.pid, signal.SIGTERM)
    try:
        wait_for(lambda: holder(directory) is None, seconds=STOP_SECONDS, what="the testbed's end")
    except TestbedError:
        os.kill(known.pid, signal.SIGKILL)  # its processes end with it
    return True


def clear(directory: Path, parts: Sequence[str] = PARTS) -> None:
    for path in (directory / part for part in parts):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
