"""Builds the images' archives, unpacks them, and runs their Python without a container engine."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNAVAILABLE = 3


@dataclass(frozen=True, kw_only=True)
class Built:
    name: str
    path: Path
    index: dict[str, Any]
    manifest: dict[str, Any]
    config: dict[str, Any]
    docker: list[dict[str, Any]]
    members: list[tarfile.TarInfo]
    unpacked: int
    root: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.config["config"]["Env"])


def build(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "images", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def archives(*names: str, out: Path) -> dict[str, Path]:
    done = build("archives", *names, "--out", str(out))
    if done.returncode == UNAVAILABLE:
        pytest.skip(" ".join(done.stderr.split("\nimages: ")[-1].split()))
    assert done.returncode == 0, done.stderr
    return dict(zip(names, map(Path, done.stdout.splitlines()), strict=True))


def extract(tar: tarfile.TarFile, folder: Path, *, by: str) -> None:
    """By a filter of `tarfile`; Python before 3.11.4, as in Debian 12, has none and trusts the archive."""
    if known := getattr(tarfile, by, None):
        tar.extraction_filter = known
    tar.extractall(folder)


def read(path: Path, *, name: str, folder: Path) -> Built:
    from images.interpreter import wrapper

    with tarfile.open(path) as tar:
        files = {member.name: file.read() for member in tar if (file := tar.extractfile(member))}
    blobs = {
        name.rpartition("/")[2]: data for name, data in files.items() if name.startswith("blobs/sha256/")
    }
    index = json.loads(files["index.json"])
    manifest = json.loads(blobs[index["manifests"][0]["digest"].removeprefix("sha256:")])
    root, members, size = folder / "root", [], 0
    for descriptor in manifest["layers"]:
        layer = gzip.decompress(blobs[descriptor["digest"].removeprefix("sha256:")])
        size += len(layer)
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            members += tar.getmembers()
            extract(tar, root, by="tar_filter" if os.getuid() else "fully_trusted_filter")
    (library,) = (root / "usr/lib").glob("python3.*")
    return Built(
        name=name,
        path=path,
        index=index,
        manifest=manifest,
        config=json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")]),
        docker=json.loads(files["manifest.json"]),
        members=members,
        unpacked=size,
        root=root,
        python=wrapper(root, at=folder / "python", python=library.name.removeprefix("python")),
    )


def run(image: Built, *arguments: str) -> subprocess.CompletedProcess[str]:
    library = str(image.root / "opt/nodegauge/lib")
    env = {**image.environment, "PYTHONPATH": library, "PATH": os.environ["PATH"]}
    command = [str(image.python), *arguments]
    return subprocess.run(
        command, cwd=image.root.parent, env=env, capture_output=True, text=True, timeout=600
    )
