"""Build the images' file systems, and archives of them, step by step.

A root file system is the base (Debian's Python) plus the project below /opt/nodegauge.  The Dockerfiles copy
it unchanged.  The archives have it as two layers; all images share the first, so a node pulls it only once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from images import archive, debian
from images.install import SOURCES, compile_all, install, load, wheel
from images.interpreter import wrapper
from images.spec import ALL, LICENSE, PREFIX, ROOT, USER, Image, version
from images.steps import BuildFailed, say

INPUTS = (*SOURCES, "constraints.txt", "images")


@dataclass(frozen=True, kw_only=True)
class Base:
    """The packages of the base, their download folder, and the version of their Python."""

    python: str
    packages: list[debian.Package]
    cache: Path
    architecture: str


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Folder of downloads, next to the control plane of `make test`."""
    if environ.get("NODEGAUGE_CACHE"):
        return Path(environ["NODEGAUGE_CACHE"]) / "debian"
    home = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "nodegauge" / "debian"


def look_up(environ: Mapping[str, str]) -> Base:
    """The base's packages in the versions of this machine's archive, downloaded if missing."""
    cache = cache_folder(environ)
    known = debian.dependencies(cache=cache)
    python = debian.python_version(known)
    architecture = debian.architecture()
    wanted = debian.packages(debian.closure(python, known), cache=cache)
    say(f"base: Python {python} from {len(wanted)} Debian packages, {architecture}")
    debian.fetch(wanted, cache=cache)
    return Base(python=python, packages=wanted, cache=cache, architecture=architecture)


def fingerprint(base: Base) -> str:
    """Digest of an archive's inputs: packages, sources, pins and this builder."""
    digest = hashlib.sha256("".join(package.sha256 for package in base.packages).encode())
    for name in INPUTS:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
                digest.update(f"{file.relative_to(ROOT)} {debian.digest(file)}\n".encode())
    return digest.hexdigest()


def build_base(base: Base, *, root: Path, scripts: Path) -> Path:
    """Build the base in `root`, with bytecode; returns the script in `scripts` that runs its Python."""
    debian.build(root, wanted=base.packages, cache=base.cache, python=base.python)
    python = wrapper(root, at=scripts / f"python{base.python}", python=base.python)
    compile_all(python, root / f"usr/lib/python{base.python}", root=root)
    return python


def tree(image: Image, *, root: Path, environ: Mapping[str, str]) -> None:
    """Write the whole file system of an image to the folder `root`, which must be empty or missing."""
    if root.is_dir() and any(root.iterdir()):
        raise BuildFailed(f"{root} is not empty: name an empty folder, or one that does not exist yet")
    base = look_up(environ)
    with tempfile.TemporaryDirectory() as scripts:
        say(f"unpacking the base into {root}")
        python = build_base(base, root=root, scripts=Path(scripts))
        say(f"installing nodegauge[{image.extra}] below {root / PREFIX}")
        built = wheel(python, into=Path(scripts))
        fill(image, base=base, below=root, root=root, python=python, built=built)
    archive.set_modes(root)
    say(f"{image.name}: {size(root) / 1e6:.1f} MB")


def fill(image: Image, *, base: Base, below: Path, root: Path, python: Path, built: Path) -> None:
    """Write what the image adds to the base to `root`; the base is in `below`, `built` is the wheel."""
    install(image, root=root, python=python, built=built)
    known = {package.name for package in base.packages}
    names = sorted(set(image.debian) - known)
    more = debian.packages(names, cache=base.cache) if names else []
    debian.fetch(more, cache=base.cache)
    debian.add(root, wanted=more, cache=base.cache)
    if image.loads:
        folders = [*(root / "usr/lib").glob("*-linux-gnu"), *(root / folder for folder in image.libraries)]
        with tempfile.TemporaryDirectory() as scripts:
            own = wrapper(below, at=Path(scripts) / "python", python=base.python, more=folders)
            load(own, image.loads, lib=root / PREFIX / "lib")


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def config(image: Image) -> dict[str, object]:
    """What a container of the image starts with, and the image's labels."""
    return {
        "User": f"{USER}:{USER}",
        "WorkingDir": "/",
        "Entrypoint": list(image.entrypoint),
        "Env": [f"{key}={value}" for key, value in image.environment.items()],
        "Labels": {
            "org.opencontainers.image.title": image.title,
            "org.opencontainers.image.version": version(),
            "org.opencontainers.image.licenses": LICENSE,
        },
    }


def archives(names: list[str], *, out: Path, registry: str, again: bool) -> list[Path]:
    """Archives of the named images in `out`; unchanged inputs keep an archive, unless `again` is set."""
    base = look_up(os.environ)
    mark = f"{fingerprint(base)} {registry}"
    paths = {name: out / f"nodegauge-{name}-{version()}-{base.architecture}.tar" for name in names}
    todo = [n for n, p in paths.items() if again or not p.exists() or _mark(p) != mark]
    for name in sorted(set(names) - set(todo)):
        say(f"{paths[name]} is up to date")
    if todo:
        with tempfile.TemporaryDirectory(prefix="nodegauge-images-") as folder:
            _make({name: paths[name] for name in todo}, base=base, registry=registry, work=Path(folder))
        for name in todo:
            paths[name].with_suffix(".inputs").write_text(mark, encoding="utf-8")
    return list(paths.values())


def _mark(path: Path) -> str:
    file = path.with_suffix(".inputs")
    return file.read_text("utf-8") if file.exists() else ""


def _make(paths: Mapping[str, Path], *, base: Base, registry: str, work: Path) -> None:
    began = time.monotonic()

    def step(text: str) -> None:
        say(f"[{time.monotonic() - began:4.0f} s] {text}")

    step("unpacking and compiling the base")
    root = work / "base"
    python = build_base(base, root=root, scripts=work)
    bottom = archive.layer(root, created_by=f"Debian packages of Python {base.python}")
    step("building the wheel of nodegauge")
    built = wheel(python, into=work)
    for name, path in paths.items():
        image = ALL[name]
        step(f"{name}: installing nodegauge[{image.extra}]")
        top = work / name
        fill(image, base=base, below=root, root=top, python=python, built=built)
        step(f"{name}: packing")
        layers = [bottom, archive.layer(top, created_by=f"nodegauge[{image.extra}] {version()}")]
        path.with_suffix(".inputs").unlink(missing_ok=True)
        written = archive.write(
            path,
            reference=f"{registry}/{image.repository}:{version()}",
            layers=layers,
            architecture=base.architecture,
            config=config(image),
        )
        shutil.rmtree(top)
        step(f"{name}: {written.reference}, {written.digest}")
        say(
            f"         {written.packed / 1e6:.1f} MB packed, {written.unpacked / 1e6:.1f} MB unpacked "
            f"(the base, shared: {len(bottom.blob.data) / 1e6:.1f} and {bottom.unpacked / 1e6:.1f})"
        )
