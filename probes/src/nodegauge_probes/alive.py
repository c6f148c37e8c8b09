"""What the kubelet asks of a watch container: does its main thread go on, and has a reading been written?

    python -m nodegauge_probes.alive FOLDER SECONDS [FILE]

The container touches the files; this compares their age with SECONDS, on the clock of the file system.
Exit code 0 if FILE (`alive` by default) was touched within them.  It imports nothing of the probe, and no
`pathlib`, which was a third of its CPU time (24 of 65 ms): it runs four times a minute on each node.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

ALIVE, READY = "alive", "ready"
"""Touched while the main thread goes on; the other one once a container of this pod has written a reading,
and while the API server takes them."""


def touch(folder: str, name: str) -> None:
    """Make the file, or make it young.  If that cannot be done, whoever asks sees an old one."""
    with contextlib.suppress(OSError):
        path = f"{folder}/{name}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        os.utime(path)


def is_young(path: str | os.PathLike[str], seconds: float) -> bool:
    """Whether the file was touched within so many seconds."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) <= seconds  # noqa: PTH116 (slow to load)
    except OSError:
        return False


if __name__ == "__main__":
    folder, limit, *rest = sys.argv[1:]
    sys.exit(not is_young(f"{folder}/{rest[0] if rest else ALIVE}", float(limit)))
