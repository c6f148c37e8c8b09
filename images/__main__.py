"""`python -m images`, from the repository's root: the images without a container engine.

    python -m images archives [operator] [probe] [nccl] [--out FOLDER] [--registry NAME] [--again]
    python -m images tree operator|probe|nccl FOLDER

`archives` writes OCI archives and prints their paths; `tree` fills a folder with an image's files, which is
how the Dockerfiles make theirs.  Exit code 1 for a step that failed, with the way out; 2 for wrong arguments;
3 where this machine cannot give the base.
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
    """The command line of the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m images", description="Build nodegauge's images.")
    words = parser.add_subparsers(dest="word", required=True)
    archives = words.add_parser("archives", help="OCI archives for ctr, docker, podman, skopeo and crane")
    archives.add_argument(
        "names",
        nargs="*",
        metavar="IMAGE",
        help="operator, probe, nccl (0.9 GB); the first two when none is named",
    )
    archives.add_argument(
        "--out", type=Path, default=Path("dist/images"), help="folder (default: %(default)s)"
    )
    archives.add_argument(
        "--registry", default="localhost", help="first part of the names (default: %(default)s)"
    )
    archives.add_argument("--again", action="store_true", help="build also what is there of the same inputs")
    tree = words.add_parser("tree", help="the files of one image, in an empty folder")
    tree.add_argument("name", choices=sorted(ALL))
    tree.add_argument("root", type=Path)
    given = parser.parse_args()
    if given.word == "archives" and not set(given.names) <= set(ALL):
        known = f"{', '.join(IMAGES)} and {NCCL.name}"
        parser.error(f"the images are {known}, not {' '.join(given.names)}")
    return given


def main() -> int:
    """The exit code of the module's docstring, or 130 after Ctrl-C."""
    given = arguments()
    try:
        if given.word == "tree":
            build.tree(ALL[given.name], root=given.root.resolve(), environ=os.environ)
        else:
            names = given.names or list(IMAGES)
            made = build.archives(names, out=given.out, registry=given.registry, again=given.again)
            print("\n".join(str(path) for path in made))
    except BuildFailed as failure:
        print(f"\nimages: {failure}", file=sys.stderr)
        return 3 if isinstance(failure, Unavailable) else 1
    except KeyboardInterrupt:
        say("interrupted; nothing half-made is left")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
