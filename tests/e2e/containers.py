"""The processes of a pod's containers, found in /proc: the node's are all in this PID namespace."""

from __future__ import annotations

import signal
from pathlib import Path

from e2e.cluster import Object
from testbed.errors import TestbedError
from testbed.kubelet_comparison.perform import process_field, processes_of


def speaks(pod: Object) -> bool:
    """Whether the probe's own process has come so far that SIGTERM makes it say what it has read.

    It answers SIGTERM from its first moment on, at first by ending alone; its last words are there when it
    starts the thread that measures.
    """
    status = (pod["status"].get("containerStatuses") or [{}])[0]
    if "running" not in status.get("state", {}):
        return False
    result = _find(pod)
    return result is not None and process_field(result, "Threads", base=10) > 1


def process(pod: Object) -> int:
    """The container's first process.  Raises TestbedError where there is none."""
    result = _find(pod)
    if result is None:
        raise TestbedError(f"no process of pod {pod['metadata']['name']} is to be found")
    return result


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


def _find(pod: Object) -> int | None:
    """The process of this pod that is process 1 in its own namespace."""
    first = (n for n in processes_of(pod["metadata"]["name"]) if process_field(n, "NSpid", at=-1) == 1)
    return next(first, None)
