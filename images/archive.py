"""Write folders as the layers of an OCI image, in one file that container engines can load.

The file is an OCI image layout (image-spec 1.1, image-layout.md) in a tar, for `ctr images import`,
`podman load` and `skopeo`; with an additional `manifest.json`, `docker load` accepts it too.  The same
folders give the same bytes: names are sorted; owner, times and modes are fixed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EPOCH = "1970-01-01T00:00:00Z"
# Folders that everyone may write to, if the root file system is writable.
STICKY = {"tmp", "var/tmp"}


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Content by its SHA-256; `size` in bytes."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def descriptor(self) -> dict[str, Any]:
        """The descriptor of image-spec's descriptor.md."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": len(self.data)}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer: compressed content, the digest of its tar, the bytes of its files."""

    blob: Blob
    diff_id: str
    unpacked: int
    created_by: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """A written archive: digest of its manifest, packed size and unpacked size in bytes."""

    path: Path
    reference: str
    digest: str
    packed: int
    unpacked: int


def _header(path: Path, *, name: str) -> tarfile.TarInfo:
    """A tar header that depends only on the file's name, kind and content."""
    info = tarfile.TarInfo(name)
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
    elif path.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, _mode(path, name=name)
    else:
        info.size, info.mode = path.stat().st_size, _mode(path, name=name)
    return info


def _mode(path: Path, *, name: str) -> int:
    """Readable by all and writable only by the owner, regardless of the builder's umask."""
    if path.is_dir():
        return 0o1777 if name in STICKY else 0o755
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def set_modes(folder: Path) -> None:
    """Give the files below `folder` the modes that `layer` writes."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(_mode(path, name=path.relative_to(folder).as_posix()))


def layer(folder: Path, *, created_by: str) -> Layer:
    """Everything below `folder`, owned by root and writable only by root."""
    raw, unpacked = io.BytesIO(), 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
            info = _header(path, name=path.relative_to(folder).as_posix())
            unpacked += info.size
            tar.addfile(info, io.BytesIO(path.read_bytes()) if info.isreg() else None)
    packed = io.BytesIO()
    with gzip.GzipFile(
        filename="", fileobj=cast(BinaryIO, packed), mode="wb", compresslevel=6, mtime=0
    ) as out:
        out.write(raw.getbuffer())
    return Layer(
        blob=Blob(data=packed.getvalue(), media_type=LAYER),
        diff_id=f"sha256:{hashlib.sha256(raw.getbuffer()).hexdigest()}",
        unpacked=unpacked,
        created_by=created_by,
    )


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _settings(layers: list[Layer], *, architecture: str, config: dict[str, Any]) -> Blob:
    """The image's configuration: what it runs, and its layers."""
    value = {
        "architecture": architecture,
        "os": "linux",
        "created": EPOCH,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]},
        "history": [{"created": EPOCH, "created_by": one.created_by} for one in layers],
    }
    return Blob(media_type=CONFIG, data=_json(value))


def _manifest(settings: Blob, layers: list[Layer], *, labels: dict[str, str]) -> Blob:
    """The manifest: configuration and layers by digest."""
    value = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": settings.descriptor,
        "layers": [one.blob.descriptor for one in layers],
        "annotations": labels,
    }
    return Blob(media_type=MANIFEST, data=_json(value))


def _index(manifest: Blob, *, reference: str, architecture: str) -> dict[str, Any]:
    """The layout's index: one image, with the names that containerd and OCI tools use."""
    names = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
    }
    platform = {"architecture": architecture, "os": "linux"}
    return {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{**manifest.descriptor, "platform": platform, "annotations": names}],
    }


def _for_docker(settings: Blob, layers: list[Layer], *, reference: str) -> list[dict[str, Any]]:
    """What `docker load` reads instead of the index."""
    return [
        {
            "Config": f"blobs/sha256/{settings.digest}",
            "RepoTags": [reference],
            "Layers": [f"blobs/sha256/{one.blob.digest}" for one in layers],
        }
    ]


def write(
    path: Path, *, reference: str, layers: list[Layer], architecture: str, config: dict[str, Any]
) -> Written:
    """Write the archive of the image `reference` (registry/repository:tag) to `path`.

    `config` is the `config` object of image-spec's config.md: user, entrypoint, environment, labels.
    """
    settings = _settings(layers, architecture=architecture, config=config)
    blobs = [settings, *(one.blob for one in layers)]
    manifest = _manifest(settings, layers, labels=config.get("Labels", {}))
    index = _index(manifest, reference=reference, architecture=architecture)
    docker = _for_docker(settings, layers, reference=reference)
    files = {f"blobs/sha256/{blob.digest}": blob.data for blob in [*blobs, manifest]}
    files |= {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(docker),
    }
    _tar(path, files)
    return Written(
        path=path,
        reference=reference,
        digest=f"sha256:{manifest.digest}",
        packed=sum(len(blob.data) for blob in blobs),
        unpacked=sum(one.unpacked for one in layers),
    )


def _tar(path: Path, files: dict[str, bytes]) -> None:
    """Write `files` to a tar at `path`, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    part.replace(path)
