"""The processes of a pod's containers, found in /proc: the node's are all in this PID namespace."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from e2e.cluster import Object, runs
from e2e.hoststate import CGROUPS
from testbed.errors import TestbedError
from testbed.kubelet_comparison.perform import process_field, processes_of

HOG = """\
import os, sys
procs, victim = sys.argv[1:]
open(procs, "w").write(str(os.getpid()))
taken = []
while os.path.exists(victim):
    taken.append(b"x" * (4 << 20))
"""


def find(pod: Object) -> int | None:
    """The process of this pod that is process 1 in its own namespace; None while there is none."""
    first = (n for n in processes_of(pod["metadata"]["name"]) if process_field(n, "NSpid", at=-1) == 1)
    return next(first, None)


def process(pod: Object) -> int:
    """The container's first process.  Raises TestbedError where there is none."""
    if (result := find(pod)) is None:
        raise TestbedError(f"no process of pod {pod['metadata']['name']} is to be found")
    return result


def speaks(pod: Object) -> bool:
    """Whether the probe's own process has come so far that SIGTERM makes it say what it has read.

    It answers SIGTERM from its first moment on, at first by ending alone; its last words are there when it
    starts the thread that measures.
    """
    result = find(pod) if runs(pod) else None
    return result is not None and process_field(result, "Threads") > 1


def alive(number: int) -> bool:
    """Whether the process has not ended."""
    return Path(f"/proc/{number}").exists()


def pending(number: int, sent: signal.Signals) -> bool:
    """Whether a signal waits for a process that is held still."""
    waiting = process_field(number, "SigPnd", base=16) | process_field(number, "ShdPnd", base=16)
    return bool(waiting >> (sent - 1) & 1)


def with_argument(argument: str) -> list[int]:
    """Processes that were started with this among their arguments."""
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                result.append(int(entry.name))
        except OSError:
            continue
    return result


def use_up_memory(pod: Object) -> None:
    """Have the kernel kill the container's first process because its memory is used up: a process of this
    program enters the container's memory cgroup and takes what is left of its limit."""
    number = process(pod)
    # Killed first, as a pod that requests less than it may use is on any node.
    Path(f"/proc/{number}/oom_score_adj").write_text("1000")
    lines = Path(f"/proc/{number}/cgroup").read_text().splitlines()
    paths = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    v1 = "memory" in paths
    cgroup = CGROUPS / "memory" / paths["memory"][1:] if v1 else CGROUPS / paths[""][1:]
    command = [sys.executable, "-c", HOG, str(cgroup / "cgroup.procs"), f"/proc/{number}"]
    subprocess.run(command, timeout=60, check=False)  # the kernel may kill it, too
