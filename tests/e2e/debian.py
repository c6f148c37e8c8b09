"""Fetch the container runtime: Debian's packages, downloaded and unpacked into the cache, never installed.

    <cache>/e2e/runtime/usr/...

They stay until that folder is removed.  No maintainer script runs and dpkg's database is not written to.  The
folder is there whole or not at all.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import TestbedError

CONFIG = """\
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""
PACKAGES = ("containerd", "runc", "containernetworking-plugins")
DOWNLOAD = ("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root")
WAY_OUT = "Where apt has never fetched its lists: apt-get update.  Behind a firewall set http_proxy."


class FetchFailed(TestbedError):
    """A package cannot be had; the message quotes apt or dpkg."""


class Runtime:
    """Where the unpacked programs are; `plugins`: the folder of CNI plugins, `path`: PATH to start them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.containerd, self.ctr = root / "usr/bin/containerd", root / "usr/bin/ctr"
        self.runc, self.plugins = root / "usr/sbin/runc", root / "usr/lib/cni"
        self.path = f"{root}/usr/bin:{root}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


def fetch(cache: Path, *, progress: Callable[[str], None]) -> Runtime:
    """The packages' programs, from the cache or downloaded now.  Raises FetchFailed."""
    runtime = Runtime(cache / "e2e" / "runtime")
    if not runtime.root.is_dir():
        progress(f"downloading Debian's {', '.join(PACKAGES)} (35 MB)")
        runtime.root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=runtime.root.parent) as folder:
            fresh = Path(folder) / "root"
            fresh.mkdir(mode=0o755)
            _run([*DOWNLOAD, *PACKAGES], cwd=Path(folder))
            for package in sorted(Path(folder).glob("*.deb")):
                _run(["dpkg", "-x", str(package), str(fresh)])
            try:
                fresh.rename(runtime.root)
            except OSError:  # another run was quicker
                if not runtime.root.is_dir():
                    raise
    for program in (runtime.containerd, runtime.ctr, runtime.runc, runtime.plugins / "bridge"):
        if not program.exists():
            raise FetchFailed(f"{program} is missing: remove {runtime.root} and try again")
    return runtime


def fetch_lists(cache: Path, *, progress: Callable[[str], None]) -> None:
    """Where apt's own lists are missing or too old: from now on apt programs started from here use lists of
    the cache, fetched now.  Nothing of the machine's apt is changed.  Raises FetchFailed."""
    folder = cache / "e2e" / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    config = folder / "apt.conf"
    config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    progress("fetching apt's lists into the cache: the machine's own are missing or out of date")
    os.environ["APT_CONFIG"] = str(config)
    _run(["apt-get", "update", "-q"])


def _run(command: Sequence[str], *, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchFailed(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}\n{WAY_OUT}")
