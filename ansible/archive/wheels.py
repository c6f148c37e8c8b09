"""The packages that the archive carries, from the package index or from the cache.

Versions are pinned: msgspec and the pure packages by `constraints.txt`, and by `OLDER` where a Python needs
an older release.  A wheel that is in the cache is not asked for again, so a second build needs no index.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.17"
"""The oldest glibc that the wheels run with (manylinux2014).  There are none for musl: NVIDIA's driver
library needs glibc, so no such host could be measured."""
OLDER = {("msgspec", "3.9"): "0.20.0"}
"""The last release for a Python that newer ones leave out."""
NCCL = ("nccl4py", "nvidia-nccl-cu12", "cuda-core", "cuda-bindings", "cuda-pathfinder", "numpy")
"""What the extra `nccl` of pyproject.toml installs besides."""
NCCL_GLIBC = "2.28"
"""The oldest glibc that these run with."""
PURE = ("PyYAML", "nvidia-ml-py", "click")
"""Packages of which only Python source is taken, from one wheel."""


class BuildError(Exception):
    """The archive cannot be built; the message says why and what to do."""


class Compiled(NamedTuple):
    """msgspec for one Python and machine: the folder's name in the archive, and its wheel."""

    tag: str
    wheel: Path


def cache_folder() -> Path:
    """Where wheels are kept: $NODEGAUGE_CACHE, or `nodegauge` below $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("NODEGAUGE_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "nodegauge"


def pinned(package: str, python: str = "") -> str:
    """The version of a package, for one Python."""
    if (package, python) in OLDER:
        return OLDER[package, python]
    match = re.search(rf"(?mi)^{re.escape(package)}==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"))
    if match is None:
        raise BuildError(f"constraints.txt does not pin {package}: run `make constraints`")
    return match[1]


def compiled(cache: Path) -> list[Compiled]:
    """msgspec for every Python and machine."""
    return [
        Compiled(
            tag=f"cp{python.replace('.', '')}-{machine}",
            wheel=msgspec_of(cache, python=python, machine=machine),
        )
        for python in PYTHONS
        for machine in MACHINES
    ]


def pure(cache: Path) -> list[Path]:
    """One wheel of each pure package."""
    return [_wheel(cache, package, pinned(package), python="3.11", machine="x86_64") for package in PURE]


def msgspec_of(cache: Path, *, python: str, machine: str, platforms: tuple[str, ...] = ()) -> Path:
    """msgspec for one Python and machine; `platforms`: as pip names those other than Linux."""
    version = pinned("msgspec", python)
    return _wheel(cache, "msgspec", version, python=python, machine=machine, platforms=platforms)


def nccl(cache: Path, *, python: str, machine: str) -> list[Path]:
    """NCCL and NVIDIA's packages that drive it, for one Python and machine: 0.4 GB."""
    return [
        _wheel(cache, package, pinned(package), python=python, machine=machine, glibc=NCCL_GLIBC)
        for package in NCCL
    ]


def _wheel(
    cache: Path,
    package: str,
    version: str,
    *,
    python: str,
    machine: str,
    glibc: str = GLIBC,
    platforms: tuple[str, ...] = (),
) -> Path:
    """The one wheel in its folder of the cache; downloaded if it is not there.  `platforms`: other than
    Linux with this glibc."""
    system = f"-{platforms[0].partition('_')[0]}" if platforms else ""
    folder = cache / f"{package}-{version}-{python}-{machine}{system}"
    if not (there := sorted(folder.glob("*.whl"))):
        folder.mkdir(parents=True, exist_ok=True)
        _download(
            folder, f"{package}=={version}", python=python, platforms=platforms or _linux(machine, glibc)
        )
        there = sorted(folder.glob("*.whl"))
    return there[0]


def _linux(machine: str, glibc: str) -> tuple[str, ...]:
    """The platforms whose wheels run with this glibc."""
    minors = range(17, int(glibc.split(".")[1]) + 1)
    return (f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in minors))


def _download(folder: Path, requirement: str, *, python: str, platforms: tuple[str, ...]) -> None:
    of = f"for Python {python} on {platforms[0]}"
    print(f"archive: downloading {requirement} {of}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    command += [option for platform in (*platforms, "any") for option in ("--platform", platform)]
    command += ["--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[-400:]
        raise BuildError(
            f"{requirement} {of} could not be downloaded: {why}. Give pip an "
            "index (PIP_INDEX_URL), or copy the cache of a machine that has one and name it with --cache"
        )
