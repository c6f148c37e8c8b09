"""Programs of Debian's packages, unpacked into a folder, whole or not at all, and never installed."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import TestbedError

OPTIONS = ("-qq", "-o", "APT::Sandbox::User=root")
WAY_OUT = "Where apt has never fetched its lists: apt-get update.  Behind a firewall set http_proxy."
SECONDS = 600.0


class NotUnpacked(TestbedError):
    """apt or dpkg failed, or is not there; the message quotes it."""


def unpack(root: Path, *packages: str, missing: bool = False) -> Path:
    """The packages below `root`; `missing`: with those that they need and this machine lacks."""
    if root.is_dir():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        folder, fresh = Path(name), Path(name) / "root"
        (folder / "partial").mkdir()
        fresh.mkdir(mode=0o755)
        _run(["apt-get", *(_with_missing(folder) if missing else ("download", *OPTIONS)), *packages], folder)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(fresh)], folder)
        try:
            fresh.rename(root)
        except OSError:  # another run was quicker
            if not root.is_dir():
                raise
    return root


def _with_missing(folder: Path) -> tuple[str, ...]:
    """Only apt's solver knows what is missing; without locks it needs no root."""
    own = ("-o", f"Dir::Cache::Archives={folder}/", "-o", "Debug::NoLocking=1")
    return ("install", *OPTIONS, *own, "--yes", "--download-only", "--no-install-recommends")


def _run(command: Sequence[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotUnpacked(f"{command[0]}: {error}") from error
    if done.returncode:
        message = f"{done.stdout}{done.stderr}".strip()
        raise NotUnpacked(f"{shlex.join(command)} failed ({done.returncode}):\n{message}\n{WAY_OUT}")
