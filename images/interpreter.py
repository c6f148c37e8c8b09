"""Run the Python of an unpacked image without a container engine, without chroot and without root.

The image's own loader starts the image's own interpreter with the image's own C library: what pip installs
for it and the bytecode that it compiles are right for the image, whatever Python this machine has.
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
    """A script at the path `at` that is the Python of the image unpacked in `root`; `python` such as `3.11`.

    `more`: folders of libraries, before the image's own.  Processes that it starts through `sys.executable`
    are started through the script too.
    """
    loaders = sorted((root / "usr/lib").glob("*-linux-gnu/ld-linux-*.so.*"))
    if not loaders:
        raise BuildFailed(f"{root} holds no loader (ld-linux-*.so.*): its packages are not as expected")
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
    """This process's environment without what it says about Python; `path` is what Python may import from."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LD_"))}
    # The order of sets decides the bytes of compiled constants.
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    return {**kept, **fixed, **({"PYTHONPATH": str(path)} if path else {})}
