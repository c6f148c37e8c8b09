"""What the kubelet asks of a watch container: does its main thread go on, and has a reading been written?

    python -m nodegauge_probes.alive FOLDER SECONDS [FILE]

The container touches the files; this compares their age with SECONDS, on the clock of the file system.
Exit code 0 if FILE (`alive` by default) was touched within them.  It imports nothing of the probe: it runs
twice a minute.
"""

import contextlib
import sys
import time
from pathlib import Path

ALIVE, READY = "alive", "ready"
"""Touched while the main thread goes on; the other one once a container of this pod has written a reading,
and while none waits for long."""


def touch(folder: str, name: str) -> None:
    """Make the file, or make it young.  If that cannot be done, whoever asks sees an old one."""
    with contextlib.suppress(OSError):
        Path(folder, name).touch()


def is_young(path: Path, seconds: float) -> bool:
    """Whether the file was touched within so many seconds."""
    try:
        return abs(time.time() - path.stat().st_mtime) <= seconds
    except OSError:
        return False


if __name__ == "__main__":
    folder, limit, *rest = sys.argv[1:]
    sys.exit(not is_young(Path(folder, rest[0] if rest else ALIVE), float(limit)))
