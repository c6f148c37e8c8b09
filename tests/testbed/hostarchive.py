"""The archive that the Ansible collection brings to hosts, built once for all with the same source."""

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from testbed.binaries import cache_folder
from testbed.interruption import alone
from testbed.processes import output_of

ROOT = Path(__file__).resolve().parents[2]
BUILDER = ROOT / "ansible" / "archive"
SOURCES = (BUILDER, ROOT / "probes" / "src", ROOT / "operator" / "src")
PINS = (ROOT / "constraints.txt", ROOT / "pyproject.toml")
KEPT_S = 86_400.0
"""How long an archive of other sources stays in the cache: other checkouts may be using it."""


def host_archive() -> Path:
    folder = cache_folder(os.environ) / "host-archive"
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / _digest() / "nodegauge-host.pyz"
    with alone(folder / "lock"):
        if not built.exists():
            build(built)
            for other in folder.iterdir():
                if other.is_dir() and other != built.parent and time.time() - other.stat().st_mtime > KEPT_S:
                    shutil.rmtree(other, ignore_errors=True)
    return built


def build(out: Path, *options: str) -> None:
    output_of([sys.executable, str(BUILDER), str(out), *options])


def _digest() -> str:
    every = [path for top in SOURCES for path in sorted(top.rglob("*")) if path.suffix != ".pyc"]
    files = [path for path in every if path.is_file()]
    digest = hashlib.sha256()
    for path in (*files, *PINS):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
