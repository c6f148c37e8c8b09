"""`python -m images`, in the repository's root: builds the images without a container engine.

    python -m images archives [operator] [probe] [nccl] [--out FOLDER] [--registry NAME] [--again]
    python -m images tree operator|probe|nccl FOLDER

`archives` writes OCI archives and prints their paths.  `tree` fills a folder with the files of an image; the
Dockerfiles use it.  Exit code 1: a step failed, and the message says how to fix it; 2: wrong arguments; 3:
this machine has no Debian packages to build from.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from images import build
from images.spec import ALL, IMAGES, NCCL
from images.steps import BuildFailed, Unavailable, say


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m images", description="Build nodegauge's container images without a container engine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    archives = commands.add_parser("archives", help="write OCI archives for ctr, docker, podman and skopeo")
    archives.add_argument(
        "names",
        nargs="*",
        metavar="IMAGE",
        help="operator, probe or nccl (0.6 GB); operator and probe by default",
    )
    archives.add_argument(
        "--out", type=Path, default=Path("dist/images"), help="output folder (default: %(default)s)"
    )
    archives.add_argument(
        "--registry", default="localhost", help="registry in the image names (default: %(default)s)"
    )
    archives.add_argument("--again", action="store_true", help="rebuild even if the inputs have not changed")
    tree = commands.add_parser("tree", help="write the files of one image to an empty folder")
    tree.add_argument("name", choices=sorted(ALL), help="the image")
    tree.add_argument("root", type=Path, metavar="FOLDER", help="a folder that is empty or missing")
    given = parser.parse_args()
    if given.command == "archives" and not set(given.names) <= set(ALL):
        known = f"{', '.join(IMAGES)} and {NCCL.name}"
        parser.error(f"the images are {known}, not {' '.join(given.names)}")
    return given


def main() -> int:
    """The exit code (see above), or 130 after Ctrl-C."""
    given = arguments()
    try:
        if given.command == "tree":
            build.tree(ALL[given.name], root=given.root.resolve(), environ=os.environ)
        else:
            names = given.names or list(IMAGES)
            made = build.archives(names, out=given.out, registry=given.registry, again=given.again)
            print("\n".join(str(path) for path in made))
    except BuildFailed as failure:
        print(f"\nimages: {failure}", file=sys.stderr)
        return 3 if isinstance(failure, Unavailable) else 1
    except KeyboardInterrupt:
        say("interrupted; no incomplete archive is left")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
