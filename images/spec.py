"""The images as data: what they install, import and start, and how large they may be.

Two are built by default.  The NCCL probe's image, ten times as large as the health probe's, is built on
request (`make images NCCL=1`).  tests/images checks the size limits on built archives; MB are 10^6 bytes,
unpacked.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER = 65532
PREFIX = "opt/nodegauge"
"""Folder of the project and its libraries in an image: `lib` is in PYTHONPATH, `bin` in PATH."""
LICENSE = "Apache-2.0"


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image: `extra` of pyproject.toml, the nodegauge `packages` that it keeps, and its `entrypoint`.

    `debian`: distribution packages in addition to the base's; `libraries`: further library folders for the
    loader; `left_out`: globs below PREFIX/lib of unused files; `loads`: Python code that must run in the
    image, without a GPU and without a driver.
    """

    name: str
    extra: str
    title: str
    packages: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: str | None
    limit_mb: int
    debian: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    loads: str = ""

    @property
    def repository(self) -> str:
        """The chart's default repository of this image."""
        return f"nodegauge/{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a container of it starts with."""
        paths = ":".join(f"/{folder}" for folder in self.libraries)
        return ENVIRONMENT | ({"LD_LIBRARY_PATH": paths} if paths else {})


IMAGES = {
    image.name: image
    for image in (
        Image(
            name="operator",
            extra="operator",
            title="nodegauge operator",
            packages=(
                "nodegauge_contract",
                "nodegauge_probes",
                "nodegauge_judge",
                "nodegauge_bmc",
                "nodegauge_operator",
                "nodegauge_cli",
            ),
            entrypoint=("python", "-m", "nodegauge_operator"),
            command="nodegauge_cli",
            limit_mb=250,
        ),
        Image(
            name="probe",
            extra="probes",
            title="nodegauge probes",
            packages=("nodegauge_contract", "nodegauge_probes"),
            entrypoint=("python", "-m", "nodegauge_probes"),
            command=None,
            limit_mb=90,
        ),
    )
}

ENVIRONMENT = {
    "PATH": f"/{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": f"/{PREFIX}/lib",
    # The root file system is read-only and already contains bytecode; output must not be buffered.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


NCCL = Image(
    name="nccl",
    extra="probes,nccl",
    title="nodegauge probes with NCCL",
    packages=("nodegauge_contract", "nodegauge_probes"),
    entrypoint=("python", "-m", "nodegauge_probes"),
    command=None,
    limit_mb=900,
    debian=("libgcc-s1", "libstdc++6"),
    # nccl4py looks for NCCL next to site-packages, which the image does not have.
    libraries=(f"{PREFIX}/lib/nvidia/nccl/lib",),
    left_out=("nvidia/nccl/lib/*.bc", "nvidia/nccl/lib/*.ltoir"),
    loads="import nccl.core; from nccl.bindings import nccl; assert nccl.get_version() > 20000",
)
ALL = IMAGES | {NCCL.name: NCCL}


def version() -> str:
    """The project's version, as in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])
