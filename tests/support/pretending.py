"""A machine on which the control plane's programs are looked for or built, with scripts in their place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed.binaries import ETCD, HELM, KUBERNETES, find_or_build

KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
OURS = {"etcd": ETCD, "helm": HELM} | dict.fromkeys(KUBERNETES_PROGRAMS, KUBERNETES)

GO = r"""#!/bin/sh
echo "$@" >> "$CALLS"
if [ "$1" = env ]; then echo "${GO_SAYS:-go1.26.8}"; exit 0; fi
if [ -n "$GO_FAILS" ]; then seq 1 100 | sed 's/^/line /'; echo "reading proxy: connection refused"; exit 1; fi
if [ -n "$GO_HANGS" ]; then sleep 1000 & echo $! > "$GO_HANGS"; wait; fi
while [ "$1" != -o ]; do shift; done
sleep "${GO_TAKES:-0}"
printf '#!/bin/sh\n' > "$2"; chmod +x "$2"
"""


def script(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def program(folder: Path, name: str, version: str) -> Path:
    """A script that says its version as the real program does."""
    words = {
        "etcd": f"etcd Version: {version}",
        "helm": f"v{version}+g1234567",
    }
    return script(folder / name, f"#!/bin/sh\necho '{words.get(name, f'Kubernetes v{version}')}'\n")


class Machine:
    """A machine with folders for assets, PATH and cache, and a `go` that only pretends."""

    def __init__(self, root: Path) -> None:
        self.assets = root / "assets with space"
        self.bin = root / "bin"
        self.cache = root / "cache"
        self.calls = root / "calls"
        self.said: list[str] = []
        script(self.bin / "go", GO)
        self.environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(root),
            "NODEGAUGE_CACHE": str(self.cache),
            "CALLS": str(self.calls),
        }

    def use_assets(self) -> Path:
        """Name the folder of assets in the environment."""
        self.assets.mkdir(exist_ok=True)
        self.environ["KUBEBUILDER_ASSETS"] = str(self.assets)
        return self.assets

    def fill(self, folder: Path, **versions: str) -> None:
        """Put programs of given versions (default: ours) there."""
        for name, version in (OURS | versions).items():
            program(folder, name, version)

    def find(self) -> Mapping[str, Path]:
        """Find or build, by the programs' names."""
        found = find_or_build(self.said.append, environ=self.environ)
        return {name.replace("_", "-"): path for name, path in vars(found).items()}

    @property
    def built(self) -> list[str]:
        """The packages that `go build` was asked for."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.split()[-1].rpartition("/")[2] for line in lines if line.startswith("build")]


def pretended(root: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing but `go`; /usr/bin, for the scripts' sake, must not lend it any program."""
    which = shutil.which

    def without_system(name: str, path: str | None = None) -> str | None:
        found = which(name, path=path)
        return found if found and found.startswith(str(root)) else None

    monkeypatch.setattr(shutil, "which", without_system)
    return Machine(root)
