#!/usr/bin/python3
"""The simulated NCCL as a file to execute, also in an image without a shell: it finds its package itself."""

import os
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent
above = ModuleType("testbed")
above.__path__ = [str(FOLDER.parent)]
sys.modules["testbed"] = above
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER]

from testbed.simulated_nccl.program import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
