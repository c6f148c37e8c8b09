"""Compile the simulated NVML library, once per content, compiler and driver release, into the cache folder.

    <cache>/driver-<hash>/libnvidia-ml.so.1

The cache is $NODEGAUGE_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/nodegauge.  Several processes may build at once:
each builds aside and moves its folder into place, and whoever comes second uses the first one's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from testbed.binaries import cache_folder
from testbed.driver.releases import abilities
from testbed.errors import BinaryError

SOURCE = Path(__file__).with_name("src")
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-pthread")


class DriverBuildError(BinaryError):
    """The library could not be built; the message says what to do."""


def find_compiler(env: Mapping[str, str]) -> str:
    """The C compiler: $CC, or cc, gcc or clang on PATH."""
    names = [env["CC"]] if env.get("CC") else ["cc", "gcc", "clang"]
    for name in names:
        if found := shutil.which(name, path=env.get("PATH")):
            return found
    raise DriverBuildError(
        f"no C compiler found (tried {', '.join(names)}): the simulated GPU driver is a small C library. "
        "Install one (`apt-get install gcc libc6-dev`, `dnf install gcc`, `apk add gcc musl-dev`) or set CC."
    )


def library_folder(version: str, env: Mapping[str, str] | None = None) -> Path:
    """The folder with the library of this driver version, built if need be: a value for LD_LIBRARY_PATH.

    Raises DriverBuildError without a compiler, when it fails, or when the cache's path cannot stand in
    LD_LIBRARY_PATH (a colon or semicolon in it).
    """
    env = os.environ if env is None else env
    compiler = find_compiler(env)
    functions = abilities(version).functions
    folder = cache_folder(env).absolute() / f"driver-{_digest(compiler, functions)}"
    if any(character in str(folder) for character in ":;"):
        raise DriverBuildError(
            f"{folder} has a ':' or ';' in it and cannot stand in LD_LIBRARY_PATH: set NODEGAUGE_CACHE"
        )
    if not (folder / LIBRARY).is_file():
        _build(compiler, functions, folder)
    return folder


def _sources() -> list[Path]:
    return sorted(SOURCE.glob("*.[ch]"))


def _digest(compiler: str, functions: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    digest.update("\0".join([*FLAGS, *functions, compiler, _compiler_version(compiler)]).encode())
    return digest.hexdigest()[:16]


@cache
def _compiler_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _build(compiler: str, functions: Sequence[str], folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as aside:
        target = Path(aside) / "new"
        target.mkdir()
        exports = Path(aside) / "exports.map"
        exports.write_text(
            "{\n  global:\n" + "".join(f"    {name};\n" for name in functions) + "  local: *;\n};\n"
        )
        _compile(compiler, exports=exports, library=target / LIBRARY)
        try:
            target.rename(folder)
        except OSError:
            if not (folder / LIBRARY).is_file():
                raise


def _compile(compiler: str, *, exports: Path, library: Path) -> None:
    command = [
        *(compiler, *FLAGS, "-shared", f"-Wl,-soname,{LIBRARY}", "-Xlinker", f"--version-script={exports}"),
        *("-o", str(library), *(str(path) for path in _sources() if path.suffix == ".c"), "-lm"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DriverBuildError(
            f"{compiler} could not build the simulated GPU driver (exit {done.returncode}):\n{done.stderr}"
        )
