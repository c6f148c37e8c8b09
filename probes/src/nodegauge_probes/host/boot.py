"""The machine's own identity for one run: boot id, and the clock that counters are compared against.

CLOCK_BOOTTIME runs on through suspend and is not moved by time synchronisation, so the growth of a counter
divided by its growth means something; the wall clock's does not.
"""

from __future__ import annotations

import time
from pathlib import Path

from nodegauge_contract import Text, Unavailable


def boot_id(procfs: Path) -> Text:
    """The kernel's random id of this boot."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text().strip()[:128]
    except (OSError, UnicodeDecodeError) as error:
        return Unavailable(f"boot_id: {type(error).__name__}")


def boottime_ms() -> int:
    """Milliseconds since boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
