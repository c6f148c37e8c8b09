"""The archive that the collection brings to hosts, built once for all tests of the same source.

Must not know what its commands do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.probing import probe_environment
from testbed.binaries import cache_folder
from testbed.hardware import Hardware

ROOT = Path(__file__).resolve().parents[2]
BUILDER = ROOT / "ansible" / "archive"
SOURCES = (BUILDER, ROOT / "probes" / "src", ROOT / "operator" / "src")
PINS = (ROOT / "constraints.txt", ROOT / "pyproject.toml")
KEPT_S = 86_400.0
"""How long an archive of other sources stays in the cache: other checkouts may be using it."""
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def host_archive() -> Path:
    """The archive of this checkout, from the cache or built; workers wait for the one that builds."""
    folder = cache_folder(os.environ) / "host-archive"
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / _digest() / "nodegauge-host.pyz"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build(built)
            for other in folder.iterdir():
                if other.is_dir() and other != built.parent and time.time() - other.stat().st_mtime > KEPT_S:
                    shutil.rmtree(other, ignore_errors=True)
    return built


def build(out: Path, *options: str) -> None:
    """Build the archive; AssertionError, with the builder's words, if that fails."""
    command = [sys.executable, str(BUILDER), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr


def _digest() -> str:
    files = [path for top in SOURCES for path in sorted(top.rglob("*")) if path.suffix in (".py", ".yaml")]
    digest = hashlib.sha256()
    for path in (*files, *PINS):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def interpreter(version: str) -> Path | None:
    """A Python of this version: in a folder of $NODEGAUGE_PYTHONS, on PATH, or of pyenv if its shims are on
    PATH (a shim works only for versions that are switched on); None where none works."""
    name = f"python{version}"
    path = os.pathsep.join([os.environ.get("NODEGAUGE_PYTHONS", ""), os.environ.get("PATH", "")])
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
    pyenv = [
        each for shims in folders if shims.name == "shims" for each in shims.parent.glob("versions/*/bin")
    ]
    for folder in (*folders, *sorted(pyenv)):
        program = folder / name
        if program.exists() and _version_of(program) == version:
            return program
    return None


def _version_of(program: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([str(program), "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


@dataclass(frozen=True)
class Host:
    """A simulated machine, and the archive on it; it unpacks below `unpacked`."""

    archive: Path
    hardware: Hardware
    folder: Path

    @property
    def unpacked(self) -> Path:
        return self.folder / "unpacked"

    def env(self) -> dict[str, str]:
        own = {"TMPDIR": str(self.unpacked), "PYTHONPATH": "", "HOME": str(self.folder)}
        return {**probe_environment(self.hardware, self.folder / "termination-log", {}), **own}

    def start(self, *command: str, python: str | Path = sys.executable) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(python), str(self.archive), *command],
            env=self.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, python: str | Path = sys.executable) -> subprocess.CompletedProcess[str]:
        running = self.start(*command, python=python)
        out, err = running.communicate(timeout=120)
        return subprocess.CompletedProcess(command, running.returncode, out, err)

    def left(self) -> list[str]:
        """What is in the folder for temporary files."""
        return sorted(path.name for path in self.unpacked.iterdir())
