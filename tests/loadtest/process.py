"""What the kernel says of a process: memory and CPU time, from /proc.  Linux only."""

from __future__ import annotations

import os
import re
from pathlib import Path


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident set now and at its highest (VmRSS, VmHWM), MiB.  OSError when the process has ended."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return parse_memory(status)


def parse_memory(status: str) -> tuple[float, float]:
    """VmRSS and VmHWM of the text of /proc/PID/status, MiB."""
    result = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
    return int(result["VmRSS"]) / 1024, int(result["VmHWM"]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time so far, all threads."""
    return parse_cpu(Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace"))


def parse_cpu(stat: str, *, ticks: int = os.sysconf("SC_CLK_TCK")) -> float:
    """Seconds of utime and stime in the text of /proc/PID/stat (fields 14 and 15; a name may hold spaces)."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks
