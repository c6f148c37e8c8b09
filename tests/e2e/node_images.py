"""The images that the node has: the project's two, made as `make images` makes them, and three of the tests'.

The NCCL image is the probe's with simulated NCCL; the real one has most of a gigabyte.  All are OCI
archives in a folder; the node imports what is there.  No registry is asked.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from images.archive import Blob, Layer, layer, write

from images import build
from nodegauge_probes.nccl.protocol import CHILD_VARIABLE
from testbed.errors import TestbedError
from testbed.hardware.nccl_file import CUDA, NCCL
from testbed.simulated_nccl import machine

CHECKOUT = Path(__file__).resolve().parents[2]
REGISTRY = "localhost"
PAUSE = f"{REGISTRY}/nodegauge/pause:e2e"
TALKER = f"{REGISTRY}/nodegauge/talker:e2e"
"""A probe whose result is longer than a kubelet keeps."""
NCCL_REPOSITORY, NCCL_TAG = "nodegauge/nccl", "e2e"
SIMULATED_NCCL = "opt/simulated_nccl"
ENGINE = f"/{SIMULATED_NCCL}/__main__.py"
"""What measures in the NCCL probe's image (tests/testbed/simulated_nccl)."""

TALKS = """\
#!/usr/bin/python3
open("/dev/termination-log", "w").write('{"v": "1.1", "text": "' + "x" * 5000 + '"}')
"""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageFailed(TestbedError):
    """An image cannot be made; the message quotes who failed."""


def make(cache: Path, *, progress: Callable[[str], None]) -> list[Path]:
    """Archives of all images, from the cache or made now.  Raises ImageFailed."""
    folder = cache / "e2e" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    progress("images: operator and probe, as `make images` makes them")
    made = _project(folder)
    probe = next(path for path in made if "probe" in path.name)
    return [*made, _pause(folder), _talker(folder, probe), _nccl(folder, probe)]


def _project(folder: Path) -> list[Path]:
    """Archives of the operator's and the probe's image, made where their sources have changed."""
    mark, kept = _contents(CHECKOUT / name for name in build.INPUTS), folder / "made.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    made = [folder / name for name in known.get("names", [])]
    if known.get("mark") == mark and all(path.exists() for path in made):
        return made
    command = [sys.executable, "-m", "images", "archives", "--out", str(folder), "--registry", REGISTRY]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageFailed(f"python -m images failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    names = [Path(line).name for line in done.stdout.splitlines() if line.endswith(".tar")]
    kept.write_text(json.dumps({"mark": mark, "names": names}))
    return [folder / name for name in names]


def _contents(locations: Iterable[Path]) -> str:
    """A mark that changes with the contents of files and folders."""
    result = hashlib.sha256()
    for location in locations:
        for file in sorted(location.rglob("*")) if location.is_dir() else [location]:
            if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
                result.update(f"{file.relative_to(location)} ".encode())
                result.update(hashlib.sha256(file.read_bytes()).digest())
    return result.hexdigest()


def _talker(folder: Path, probe: Path) -> Path:
    """The probe's image with another `python` in front."""

    def fill(root: Path) -> None:
        program = root / "opt/nodegauge/bin/python"
        program.parent.mkdir(parents=True)
        program.write_text(TALKS)
        program.chmod(0o755)

    return _on_top(probe, folder / "talker.tar", reference=TALKER, fill=fill)


def _nccl(folder: Path, probe: Path) -> Path:
    """The probe's image with an engine in it that needs no GPU."""
    source = CHECKOUT / "tests/testbed/simulated_nccl"

    def fill(root: Path) -> None:
        shutil.copytree(source, root / SIMULATED_NCCL, ignore=shutil.ignore_patterns("__pycache__"))
        nothing = machine.Machine(name="the image", seed="", nccl=NCCL, cuda=CUDA, gpus=())
        (root / SIMULATED_NCCL / machine.DEFAULT_FILE.name).write_bytes(machine.encode(nothing))

    return _on_top(
        probe,
        folder / "nccl.tar",
        reference=f"{REGISTRY}/{NCCL_REPOSITORY}:{NCCL_TAG}",
        fill=fill,
        environment=(f"{CHILD_VARIABLE}={ENGINE}",),
        sources=source.glob("*.py"),
    )


def _on_top(
    probe: Path,
    archive: Path,
    *,
    reference: str,
    fill: Callable[[Path], None],
    environment: Iterable[str] = (),
    sources: Iterable[Path] = (),
) -> Path:
    """The probe's image with one more layer, which wins, and more in its containers' environment."""
    if _newer(archive, than=[probe, Path(__file__), *sources]):
        return archive
    with tempfile.TemporaryDirectory(dir=archive.parent) as root:
        fill(Path(root))
        top = layer(Path(root), created_by="tests/e2e")
    layers, config = _read(probe)
    write(
        archive,
        reference=reference,
        layers=[*layers, top],
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        config={**config, "Env": [*config.get("Env", []), *environment]},
    )
    return archive


def _read(archive: Path) -> tuple[list[Layer], dict[str, Any]]:
    """The layers of an image and what its containers start with."""
    with tarfile.open(archive) as tar:

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        def blob(descriptor: dict[str, Any]) -> bytes:
            return content("blobs/" + descriptor["digest"].replace(":", "/"))

        manifest = json.loads(blob(json.loads(content("index.json"))["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        layers = [
            Layer(
                blob=Blob(data=blob(one), media_type=one["mediaType"]),
                diff_id=diff_id,
                unpacked=0,
                created_by="the probe's image",
            )
            for one, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True)
        ]
    return layers, config["config"]


def _pause(folder: Path) -> Path:
    """The sandbox's image: one static program."""
    archive = folder / "pause.tar"
    source = Path(__file__).with_name("pause.c")
    if _newer(archive, than=[source]):
        return archive
    with tempfile.TemporaryDirectory(dir=folder) as root:
        done = subprocess.run(
            ["cc", "-static", "-Os", "-s", "-o", f"{root}/pause", str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ImageFailed(f"cc cannot build {source.name}: {done.stderr}")
        write(
            archive,
            reference=PAUSE,
            layers=[layer(Path(root), created_by="tests/e2e")],
            architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
            config={"Entrypoint": ["/pause"]},
        )
    return archive


def _newer(archive: Path, *, than: list[Path]) -> bool:
    """Whether it was made after these were changed."""
    return archive.exists() and all(archive.stat().st_mtime > file.stat().st_mtime for file in than)
