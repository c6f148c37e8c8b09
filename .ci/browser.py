"""The browser that tests/page opens pages in: Debian's Chromium, with node and npm; installed if one of
them is missing and this is root on Debian.  Standard library only, as `steps.py`."""

from __future__ import annotations

import os
import shutil
import subprocess

PROGRAMS = {"chromium": "chromium", "node": "nodejs", "npm": "npm"}
"""Program, and Debian's package of it."""
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


def main() -> int:
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        environ = {**os.environ, **QUIET}
        subprocess.run(["apt-get", "--quiet", "update"], env=environ, check=False)
        install = ["apt-get", "--quiet", "--yes", "install", "--no-install-recommends", *missing]
        subprocess.run(install, env=environ, check=False)
    wanted = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    print(f"missing: {', '.join(wanted)}" if wanted else "chromium, node and npm are here")
    return 1 if wanted else 0


if __name__ == "__main__":
    raise SystemExit(main())
