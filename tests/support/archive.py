"""The archive of the Ansible collection on simulated hosts, and the Pythons to run it with."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from support.probing import probe_environment
from testbed.hardware import Hardware

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


@cache
def interpreter(version: str) -> Path | None:
    """A Python that works: of $NODEGAUGE_PYTHONS, on PATH, or of pyenv, whose shims may be switched
    off and take as long as a probe."""
    name = f"python{version}"
    path = os.pathsep.join([os.environ.get("NODEGAUGE_PYTHONS", ""), os.environ.get("PATH", "")])
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
    pyenv = [shims.parent for shims in folders if shims.name == "shims"]
    real = [folder for folder in folders if folder.name != "shims"]
    real += [each for top in pyenv for each in sorted(top.glob("versions/*/bin"))]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for program in (folder / name for folder in real if (folder / name).exists()):
        command = [str(program), "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.stdout.strip() == version:
            return program
    return None


def module_of(name: str, path: Path) -> ModuleType:
    """A module that belongs to no package of this environment."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Host:
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
        return sorted(path.name for path in self.unpacked.iterdir())
