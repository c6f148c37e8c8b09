"""Run the Python of an unpacked image without a container engine, without chroot and without root.

The image's loader starts the image's interpreter with the image's C library.  So pip installs packages, and
the interpreter compiles bytecode, for the image's Python, whatever Python this machine has.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from images.steps import BuildFailed

SCRIPT = """\
#!/bin/sh
export PYTHONHOME={home}
exec {loader} --argv0 "$0" --library-path {libraries} {python} "$@"
"""


def wrapper(root: Path, *, at: Path, python: str, more: Sequence[Path] = ()) -> Path:
    """Write a script to `at` that runs the image's Python; `python`: its version, such as `3.11`.

    `root`: the unpacked image; `more`: library folders that come before the image's own.  `sys.executable`
    is the script, so child processes use it too.
    """
    loaders = sorted((root / "usr/lib").glob("*-linux-gnu/ld-linux-*.so.*"))
    if not loaders:
        raise BuildFailed(f"{root} has no loader (ld-linux-*.so.*): its Debian packages are incomplete")
    libraries = [*more, loaders[0].parent, root / "usr/lib"]
    text = SCRIPT.format(
        home=shlex.quote(str(root / "usr")),
        loader=shlex.quote(str(loaders[0])),
        libraries=shlex.quote(":".join(str(path) for path in libraries)),
        python=shlex.quote(str(root / f"usr/bin/python{python}")),
    )
    at.write_text(text, encoding="utf-8")
    at.chmod(0o755)
    return at


def environment(*, path: Path | None = None) -> dict[str, str]:
    """This process's environment without Python variables; `path` becomes PYTHONPATH."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LD_"))}
    # The hash seed determines the order of sets, and with it the bytes of compiled constants.
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    return {**kept, **fixed, **({"PYTHONPATH": str(path)} if path else {})}
