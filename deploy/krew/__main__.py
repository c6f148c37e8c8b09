"""`python deploy/krew OUT`: build the plugin's archives for krew, and the manifest that names them.

An archive holds no interpreter: our packages, click and PyYAML as source, and msgspec for each CPython from
3.11 on.  So the user needs a `python3`; krew itself cannot ask for one.  There is none for Windows, where no
`python3` starts a script.  The same inputs give the same bytes.  The first build downloads wheels with pip.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ansible" / "archive"))

import contents
import wheels

LAUNCHER = Path(__file__).with_name("kubectl-nodegauge")
NAME = "nodegauge"
BINARY = LAUNCHER.name
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those for which nodegauge is made (pyproject.toml), of those for which msgspec has wheels."""
LEFT_OUT = ("nodegauge_operator/handlers/", "nodegauge_operator/reconcile/", "nodegauge_operator/bmc_reader/")
"""What only a pod runs."""
PURE = ("yaml", "click")
MACS = ("macosx_10_9", "macosx_10_13", "macosx_11_0")
"""Oldest versions of macOS for which wheels of msgspec are built."""
DESCRIPTION = """\
Shows what nodegauge measured on the GPU nodes of a cluster, and why nodes are
tainted; asks for runs, overrules nodegauge on a node, and compares nodes. The
operator nodegauge has to be installed in the cluster.
"""
CAVEATS = """\
Needs CPython 3.11 to 3.14 as python3 on PATH.
To complete commands and nodes, link the same program under kubectl's name for it:
  ln -s "${KREW_ROOT:-$HOME/.krew}"/store/nodegauge/*/kubectl-nodegauge \\
    DIR_ON_PATH/kubectl_complete-nodegauge
"""


class Target(NamedTuple):
    """An operating system and an architecture in Go's words, and the wheels' words for them."""

    os: str
    arch: str
    machine: str
    platforms: tuple[str, ...]

    @property
    def archive(self) -> str:
        """Name of its archive."""
        return f"{BINARY}-{self.os}-{self.arch}.tar.gz"


TARGETS = (
    Target("linux", "amd64", "x86_64", ()),
    Target("linux", "arm64", "aarch64", ()),
    Target("darwin", "amd64", "x86_64", tuple(f"{mac}_x86_64" for mac in MACS)),
    Target("darwin", "arm64", "arm64", tuple(f"{mac}_arm64" for mac in MACS)),
)


def files(target: Target, cache: Path) -> dict[str, bytes]:
    """What the archive of a target holds, by path.  Raises `BuildError`."""
    content = {BINARY: LAUNCHER.read_bytes(), "LICENSE": (wheels.ROOT / "LICENSE").read_bytes()}
    for package, folder in contents.PACKAGES.items():
        for path in sorted(folder.rglob("*")):
            inside = f"{package}/{path.relative_to(folder).as_posix()}"
            if path.suffix in contents.TYPES and not inside.startswith(LEFT_OUT):
                content[f"lib/{inside}"] = path.read_bytes()
    for wheel in wheels.pure(cache):
        content |= {f"lib/{path}": data for path, data in contents.of_wheel(wheel, PURE).items()}
    for python in PYTHONS:
        wheel = wheels.msgspec_of(cache, python=python, machine=target.machine, platforms=target.platforms)
        of_python = contents.of_wheel(wheel, ("msgspec",))
        content |= {f"cp{python.replace('.', '')}/{path}": data for path, data in of_python.items()}
    metadata = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {contents.version()}\n"
    return content | {f"lib/{NAME}-{contents.version()}.dist-info/METADATA": metadata.encode()}


def packed(content: dict[str, bytes]) -> bytes:
    """The files as tar.gz, without times and owners."""
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as tar,
    ):
        for path in sorted(content):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content[path]), 0o755 if path == BINARY else 0o644
            tar.addfile(entry, io.BytesIO(content[path]))
    return stream.getvalue()


def manifest(archives: dict[Target, bytes], *, url: str) -> dict[str, Any]:
    """krew's description of the plugin (krew.sigs.k8s.io, "Writing Krew plugin manifests", v1alpha2)."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": target.os, "arch": target.arch}},
            "uri": f"{url.rstrip('/')}/{target.archive}",
            "sha256": hashlib.sha256(data).hexdigest(),
            "bin": BINARY,
        }
        for target, data in archives.items()
    ]
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{contents.version()}",
            # no homepage: nodegauge has no public address yet
            "shortDescription": "Explain and check the GPU nodes of a cluster",
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": platforms,
        },
    }


def main() -> int:
    """Build them; the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/krew", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the archives and nodegauge.yaml")
    parser.add_argument("--url", default="file:///", help="where the archives will be published")
    parser.add_argument("--target", action="append", help="only this one, such as linux-amd64")
    parser.add_argument("--cache", type=Path, help="folder of wheels (default: $NODEGAUGE_CACHE/wheels)")
    options = parser.parse_args()
    wanted = [target for target in TARGETS if f"{target.os}-{target.arch}" in (options.target or ())]
    if options.target and len(wanted) != len(set(options.target)):
        parser.error(f"--target: write one of {', '.join(f'{t.os}-{t.arch}' for t in TARGETS)}")
    cache = options.cache or wheels.cache_folder() / "wheels"
    try:
        archives = {target: packed(files(target, cache)) for target in wanted or TARGETS}
    except wheels.BuildError as error:
        print(f"krew: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    for target, data in archives.items():
        (options.out / target.archive).write_bytes(data)
        print(f"{options.out / target.archive}: {len(data) / 1e6:.1f} MB")
    text = yaml.safe_dump(manifest(archives, url=options.url), sort_keys=False, width=100)
    (options.out / f"{NAME}.yaml").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
