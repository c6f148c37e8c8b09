"""The images, as data: what is installed, what must import, what starts, what they may weigh.

Two are made by default; the one for benchmarks, ten times as large as the probe's, when it is asked for.

The limits are checked by tests/images on the built archives.  MB are 10^6 bytes, unpacked.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER = 65532
PREFIX = "opt/nodegauge"
"""Where the project and its libraries lie in an image: `lib` is on Python's path, `bin` on the shell's."""
LICENSE = "Apache-2.0"


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image: `extra` of pyproject.toml, `packages` of ours that it keeps, its `entrypoint`.

    `debian`: packages of the distribution beside the base's; `libraries`: folders below the root in which the
    loader looks as well; `left_out`: globs below PREFIX/lib of what no run needs; `loads`: Python that must
    run in it, without a GPU and without a driver.
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
    # The root file system is read-only and bytecode is there already; output leaves at once.
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
    # Libraries are looked for beside site-packages, which an image has none of.
    libraries=(f"{PREFIX}/lib/nvidia/nccl/lib",),
    left_out=("nvidia/nccl/lib/*.bc", "nvidia/nccl/lib/*.ltoir"),
    loads="import nccl.core; from nccl.bindings import nccl; assert nccl.get_version() > 20000",
)
ALL = IMAGES | {NCCL.name: NCCL}


def version() -> str:
    """The project's version, as in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])
