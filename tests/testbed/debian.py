"""Programs of Debian's packages, unpacked into a folder, whole or not at all, and never installed."""

from functools import partial
from pathlib import Path

from testbed.interruption import whole
from testbed.processes import output_of

OPTIONS = ("-qq", "-o", "APT::Sandbox::User=root")
WAY_OUT = "Where apt has never fetched its lists: apt-get update.  Behind a firewall set http_proxy."


run = partial(output_of, advice=f"\n{WAY_OUT}")


def unpack(root: Path, *packages: str, missing: bool = False) -> Path:
    """The packages below `root`; `missing`: with those that they need and this machine lacks."""
    if root.is_dir():
        return root
    with whole(root) as fresh:
        folder = fresh.parent
        (folder / "partial").mkdir()
        fetch = _with_missing(folder) if missing else ("download", *OPTIONS)
        run(["apt-get", *fetch, *packages], cwd=folder)
        for package in sorted(folder.glob("*.deb")):
            run(["dpkg", "-x", str(package), str(fresh)], cwd=folder)
    return root


def _with_missing(folder: Path) -> tuple[str, ...]:
    """Only apt's solver knows what is missing; without locks it needs no root."""
    own = ("-o", f"Dir::Cache::Archives={folder}/", "-o", "Debug::NoLocking=1")
    return ("install", *OPTIONS, *own, "--yes", "--download-only", "--no-install-recommends")
