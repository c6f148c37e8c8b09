#!/usr/bin/python3
"""The stand-in as a file that is executed: it finds its package by its own place.

Executable, so that it can be an engine inside an image without a shell: mount this folder at
ANYWHERE/testbed/standin.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:] = [
    str(FOLDER.parents[1]),
    *(entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER),
]

from testbed.standin.program import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
