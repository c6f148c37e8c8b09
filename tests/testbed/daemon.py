"""The testbed as a process that stays: started detached, found again by its pid and start time, ended.

`testbed.json` says who holds the testbed.  A pid alone is not believed: after a reboot or a crash it may
belong to somebody else, so the start time of /proc/PID/stat is recorded with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from testbed.cluster import TESTS, Testbed
from testbed.errors import TestbedError
from testbed.processes import log_tail
from testbed.wait import DEADLINE_SECONDS

START_SECONDS = DEADLINE_SECONDS
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05
PARTS = ("control-plane", "kubelet", "hardware", "helm", "bin")
"""What a testbed puts into its directory, besides `testbed.json` and `testbed.log`."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a testbed. `kubeconfig` is empty until it is ready."""

    pid: int
    started: str
    kubeconfig: str = ""

    @property
    def ready(self) -> bool:
        """Whether everything has been started."""
        return bool(self.kubeconfig)

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """Start of a process in clock ticks since boot; None when there is none (a zombie counts as none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def holder(directory: Path) -> Holder | None:
    """Who holds the testbed in this directory; None when nobody does any more."""
    try:
        result = Holder(**json.loads((directory / "testbed.json").read_text()))
    except FileNotFoundError:
        return None
    return result if result.alive() else None


def _write(directory: Path, state: Holder) -> None:
    fresh = directory / ".testbed.json.new"
    fresh.write_text(json.dumps(asdict(state), indent=1))
    fresh.replace(directory / "testbed.json")


def serve(directory: Path, nodes: Mapping[str, str | None]) -> None:
    """Hold a testbed until SIGTERM or SIGINT."""
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    me = os.getpid()
    mine = Holder(pid=me, started=start_time(me) or "")
    _write(directory, mine)
    for number in stop:
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop)
    try:
        with Testbed(directory, nodes=nodes, progress=lambda message: print(message, flush=True)) as testbed:
            _write(directory, replace(mine, kubeconfig=str(testbed.kubeconfig)))
            print("ready", flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        (directory / "testbed.json").unlink(missing_ok=True)


def _interrupt(number: int, frame: object) -> None:
    """Leave by way of the context managers; a second signal does not interrupt them."""
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def start(directory: Path, nodes: Mapping[str, str | None]) -> Holder:
    """Start a detached holder on a fresh directory and wait until it is ready.

    TestbedError with the end of its log when it does not get there; nothing of it is left then, nor when the
    wait is interrupted.
    """
    clear(directory)
    directory.mkdir(parents=True, exist_ok=True)
    plugs = [f"{name}={profile or ''}" for name, profile in nodes.items()]
    with (directory / "testbed.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed", "--dir", str(directory), "serve", *plugs],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
    try:
        return wait_ready(directory, lambda: process.poll() is None)
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        raise


def wait_ready(directory: Path, alive: Callable[[], bool]) -> Holder:
    """Wait while the holder is `alive`; TestbedError with the end of its log when it does not get ready."""
    until = time.monotonic() + START_SECONDS
    while alive() and time.monotonic() < until:
        if (result := holder(directory)) is not None and result.ready:
            return result
        time.sleep(LOOK_SECONDS)
    log = directory / "testbed.log"
    raise TestbedError(f"the testbed did not start; the end of {log}:\n{log_tail(log)}")


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Let no second program start or end a testbed in this directory at the same time."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stop(directory: Path) -> bool:
    """End the holder and what it started; whether there was one."""
    result = holder(directory)
    if result is None:
        return False
    os.kill(result.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS
    while result.alive():
        if time.monotonic() > until:
            os.kill(result.pid, signal.SIGKILL)  # its processes end with it
            break
        time.sleep(LOOK_SECONDS)
    return True


def clear(directory: Path) -> None:
    """Remove what an earlier testbed left in this directory, and nothing else."""
    for part in PARTS:
        shutil.rmtree(directory / part, ignore_errors=True)
    (directory / "testbed.json").unlink(missing_ok=True)
