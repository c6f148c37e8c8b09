"""How a program ends, on a signal too, and how runs that share a folder take turns."""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from testbed.errors import TestbedError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interruptible(numbers: Sequence[signal.Signals] = SIGNALS, *, says: str = "") -> None:
    """The first of these signals is a KeyboardInterrupt with its name; no second one interrupts the end."""

    def interrupt(number: int, _: object) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(sys.stderr.fileno(), f"\n{says}\n".encode() if says else b"")
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in numbers:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def scratch(program: str, *, keep: bool = False) -> Iterator[Path]:
    """A temporary folder for the logs of `make PROGRAM`; what is in it stays after a failure."""
    directory = Path(tempfile.mkdtemp(prefix=f"nodegauge-{program}-"))
    try:
        yield directory
    except BaseException as error:
        keep = isinstance(error, (TestbedError, OSError)) and any(directory.iterdir())
        raise
    finally:
        if keep:
            print(f"The logs of {program} are in {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def exit_code(program: str, work: Callable[[], int]) -> int:
    try:
        return work()
    except (TestbedError, OSError) as error:
        print(f"\n{program} failed: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: everything that was started has been ended", file=sys.stderr)
        return 130


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """What is made in a new folder takes the place of `folder`, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as name:
        fresh = Path(name) / "new"
        fresh.mkdir(mode=0o755)
        yield fresh
        try:
            fresh.rename(folder)
        except OSError:  # another run was quicker
            if not folder.is_dir():
                raise


@contextlib.contextmanager
def alone(lock: Path, *, waits: Callable[[], object] = lambda: None) -> Iterator[None]:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
