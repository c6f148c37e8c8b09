"""What the kubelet asks of a watch container: does its main thread go on, and has a reading been written?

    python -m nodegauge_probes.alive FOLDER SECONDS [FILE]

The container touches the files; this compares their age with SECONDS, on the clock of the file system.  Exit code
0 if FILE (`alive` by default) was touched within them.  It imports nothing of the probe: it runs twice a minute.
"""

import os
import sys
import time

ALIVE, READY = "alive", "ready"
"""Touched while the main thread goes on; made when the first reading of this container was written."""


def touch(folder: str, name: str) -> None:
    """Make the file, or make it young."""
    path = os.path.join(folder, name)
    with open(path, "ab"):
        os.utime(path)


def is_young(path: str, seconds: float) -> bool:
    """Whether the file was touched within so many seconds."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) <= seconds
    except OSError:
        return False


if __name__ == "__main__":
    folder, limit, *rest = sys.argv[1:]
    sys.exit(not is_young(os.path.join(folder, rest[0] if rest else ALIVE), float(limit)))
