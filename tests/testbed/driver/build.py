"""Compile simulated NVML and CUDA, once per content, compiler and driver release, into the cache folder."""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from testbed.binaries import cache_folder
from testbed.driver.releases import abilities
from testbed.errors import BinaryError
from testbed.interruption import whole
from testbed.processes import output_of

SOURCE = Path(__file__).with_name("src")
LIBRARY, OBJECTS, CUDA = "libnvidia-ml.so.1", "nvml.o", "libcuda.so.1"
FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-pthread")


def find_compiler(env: Mapping[str, str]) -> str:
    names = [env["CC"]] if env.get("CC") else ["cc", "gcc", "clang"]
    for name in names:
        if result := shutil.which(name, path=env.get("PATH")):
            return result
    raise BinaryError(
        f"no C compiler found (tried {', '.join(names)}): the simulated GPU driver is a small C library. "
        "Install one (`apt-get install gcc libc6-dev`, `dnf install gcc`, `apk add gcc musl-dev`) or set CC."
    )


def library_folder(version: str) -> Path:
    compiler, cache_root = find_compiler(os.environ), cache_folder(os.environ)
    if any(character in str(cache_root) for character in ":;"):
        raise BinaryError(
            f"{cache_root} has a ':' or ';' in it and cannot stand in LD_LIBRARY_PATH: set NODEGAUGE_CACHE"
        )
    functions = abilities(version).functions
    library = cache_root / f"driver-{_digest(compiler, functions)}" / LIBRARY
    if not library.is_file():
        objects = cache_root / f"driver-{_digest(compiler, ())}" / OBJECTS
        if not objects.is_file():
            sources = [str(path) for path in _sources() if path.suffix == ".c"]
            command = [compiler, *FLAGS, "-r", "-nostdlib", *sources, "-o"]
            with whole(objects.parent) as fresh:
                output_of([*command, str(fresh / OBJECTS)])
        with whole(library.parent) as fresh:
            _link(compiler, objects, fresh / LIBRARY, functions=functions)
    return library.parent


def _sources() -> list[Path]:
    return sorted(SOURCE.glob("*.[ch]"))


@cache
def _digest(compiler: str, functions: tuple[str, ...]) -> str:
    version = output_of([compiler, "--version"])
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    digest.update("\0".join([*FLAGS, *functions, compiler, version]).encode())
    return digest.hexdigest()[:16]


def _link(compiler: str, objects: Path, target: Path, *, functions: Sequence[str]) -> None:
    exports = target.parent.parent / "exports.map"
    for made, names in ((target, functions), (target.with_name(CUDA), ["cu[A-Z]*"])):
        visible = "".join(f"    {name};\n" for name in names)
        exports.write_text(f"{{\n  global:\n{visible}  local: *;\n}};\n")
        script = ("-shared", f"-Wl,-soname,{made.name}", "-Xlinker", f"--version-script={exports}")
        output_of([compiler, *FLAGS, *script, "-o", str(made), str(objects), "-lm"])
