"""Namespaces for one run: `init.py` ends, and with it everything inside, when the pipe closes or `unshare` is
killed.  Cgroups that a killed runc left are removed here: cgroupfs removes none with a process in it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testbed.errors import TestbedError

INIT = Path(__file__).with_name("init.py")
UNSHARE = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "--")
END_SECONDS = 120.0
PARENT, CGROUPS = "k8s.io", Path("/sys/fs/cgroup")
TASKS = "node/run/containerd/io.containerd.runtime.v2.task/k8s.io"


@contextlib.contextmanager
def sandboxed(command: Sequence[str], *, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program in namespaces of its own; leaves nothing running."""
    pipe, writing = os.pipe()
    process = subprocess.Popen(
        [*UNSHARE, sys.executable, "-I", "-S", str(INIT), *command],
        stdin=pipe,
        env=dict(environ),
        start_new_session=True,  # a terminal's Ctrl-C is for the outer program alone
    )
    os.close(pipe)
    try:
        yield process
    finally:
        os.close(writing)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # and with it, its child
            process.wait()
            raise TestbedError(f"the namespaces did not end in {END_SECONDS:.0f} s: killed") from None


def cgroup_parents() -> set[Path]:
    return {*CGROUPS.glob(f"*/{PARENT}"), *CGROUPS.glob(PARENT)}


def remove_cgroups(directory: Path, *, there_before: set[Path]) -> None:
    """Remove what containers of the run in `directory` left, and empty parents that are new."""
    tasks = directory / TASKS
    ids = [entry.name for entry in tasks.iterdir()] if tasks.exists() else []
    for parent in cgroup_parents():
        folders = [Path(folder) for name in ids for folder, _, _ in os.walk(parent / name, topdown=False)]
        for folder in [*folders, *([] if parent in there_before else [parent])]:
            with contextlib.suppress(OSError):
                folder.rmdir()
