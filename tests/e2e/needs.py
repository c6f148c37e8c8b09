"""What the machine must have; where it has not, the run is skipped with the reason.

Must not change anything, nor look at anything slow.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import TestbedError

PROGRAMS = {
    "unshare": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "apt-get": "apt (the container runtime comes from Debian's packages)",
    "dpkg": "dpkg",
    "cc": "gcc libc6-dev",
}
CAP_SYS_ADMIN, CAP_NET_ADMIN = 21, 12
HIDDEN = (Path("/var"), Path("/run"))
"""Folders that the node has as its own: what it needs of the machine must not lie below them."""


def missing() -> str:
    """Why it cannot be run here, in one line; empty when it can."""
    if platform.system() != "Linux":
        return f"it needs Linux, and this is {platform.system()}"
    if os.geteuid() != 0:
        return "it needs root, to make namespaces and run a container runtime in them"
    lines = Path("/proc/self/status").read_text().splitlines()
    capabilities = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
    for number, name in ((CAP_SYS_ADMIN, "CAP_SYS_ADMIN"), (CAP_NET_ADMIN, "CAP_NET_ADMIN")):
        if not capabilities >> number & 1:
            return f"root has no {name} here (a container without privilege?)"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"there is no `{program}` on PATH; Debian and Ubuntu: apt-get install {package}"
    return ""


def check_folders(folders: Sequence[Path]) -> None:
    """Raises TestbedError for a folder that the node would not see."""
    for folder in folders:
        for hidden in HIDDEN:
            if folder.resolve().is_relative_to(hidden.resolve()):
                raise TestbedError(
                    f"{folder} is below {hidden}, which the node has as its own: set TMPDIR, NODEGAUGE_CACHE"
                    " or the checkout's place to a folder elsewhere"
                )
