"""`python ansible/archive OUT`: build the archive that carries the probes to hosts, and the judge.

See docs/adr/0028-an-archive-carries-probes-and-judge.md.  The first build downloads wheels with pip.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import contents
import wheels


def main() -> int:
    """Build it; the exit code."""
    parser = argparse.ArgumentParser(prog="python ansible/archive", description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write, such as ansible/files/nodegauge-host.pyz")
    parser.add_argument("--cache", type=Path, help="folder of wheels (default: $NODEGAUGE_CACHE/wheels)")
    parser.add_argument(
        "--nccl",
        metavar="PYTHON-MACHINE",
        help="with NCCL (0.4 GB) for hosts with this Python, such as 3.12-x86_64",
    )
    options = parser.parse_args()
    nccl = tuple(options.nccl.split("-", 1)) if options.nccl else None
    if nccl is not None and (len(nccl) != 2 or nccl[1] not in wheels.MACHINES):
        parser.error(f"--nccl {options.nccl}: write 3.12-x86_64, or another Python and machine")
    cache = options.cache or wheels.cache_folder() / "wheels"
    try:
        contents.build(options.out, cache=cache, nccl=nccl)
    except wheels.BuildError as error:
        print(f"archive: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
