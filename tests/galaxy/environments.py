"""The oldest and the newest ansible-core that the collection supports, kept in the cache by the digest of
pins and Python."""

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from galaxy.commands import CheckFailed, NotRun, run
from support.archive import interpreter

PINS = Path(__file__).with_name("pins")
INSTALL_SECONDS = 1800.0
TARGETS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""Versions of Python that a supported ansible-core can use on hosts."""


def pinned(name: str, package: str) -> str:
    pins = (PINS / f"{name}.txt").read_text("utf-8")
    return next(line for line in pins.splitlines() if line.startswith(f"{package}==")).partition("==")[2]


@dataclass(frozen=True)
class Wanted:
    name: str
    pythons: tuple[str, ...]

    @property
    def pins(self) -> Path:
        return PINS / f"{self.name}.txt"

    @property
    def version(self) -> str:
        return pinned(self.name, "ansible-core")


OLDEST = Wanted("oldest", ("3.11", "3.12", "3.10"))
NEWEST = Wanted("newest", ("3.13", "3.12", "3.14"))


def environment(wanted: Wanted, cache: Path) -> Path:
    versions = {version: program for version in wanted.pythons if (program := interpreter(version))}
    if not versions:
        listed = " or ".join(f"python{version}" for version in wanted.pythons)
        raise NotRun(
            f"ansible-core {wanted.version} needs {listed}; none is on PATH: install one, or name its folder"
            " in NODEGAUGE_PYTHONS"
        )
    version, python = next(iter(versions.items()))
    digest = hashlib.sha256(f"{python}\0{wanted.pins.read_text('utf-8')}".encode()).hexdigest()[:12]
    folder = cache / f"ansible-core-{wanted.version}-python{version}-{digest}"
    stamp = folder / "ready"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _create(folder, python, wanted.pins)
        stamp.touch()
    return folder / "bin"


def _create(folder: Path, python: Path, pins: Path) -> None:
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}
    made = run([python, "-m", "venv", folder], cwd=pins.parent, env=env, seconds=INSTALL_SECONDS)
    if made.returncode:
        raise NotRun(f"{python.name} -m venv failed; Debian and Ubuntu: apt-get install {python.name}-venv")
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", pins]
    installed = run(command, cwd=pins.parent, env=env, seconds=INSTALL_SECONDS)
    if installed.returncode:
        last = "\n".join(installed.stdout.splitlines()[-8:])
        raise CheckFailed(
            f"pip could not install the versions of {pins.name}. Is there a package index?\n{last}"
        )


def pythons(folder: Path) -> list[str]:
    """Links `python3.X` in `folder` to every Python that works here, made once; their versions."""
    if not folder.exists():
        folder.mkdir()
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        for version in TARGETS:
            if program := Path(sys.executable) if version == own else interpreter(version):
                (folder / f"python{version}").symlink_to(program.resolve())
    return [version for version in TARGETS if (folder / f"python{version}").exists()]
