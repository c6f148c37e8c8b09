"""Builds the collection's tarball, and installs it from there into an empty folder."""

import json
import shutil
import tarfile
from pathlib import Path

import yaml

from galaxy.commands import CheckFailed, Core
from support.playbook import COLLECTION, stage
from testbed.hostarchive import host_archive

NAME = "nodegauge.gpu"
NEEDED = ("LICENSE", "README.md", "MANIFEST.json", "meta/runtime.yml", "files/nodegauge-host.pyz")
"""What a stranger needs in the tarball; the rest is checked by its use."""


def tarball(core: Core, *, staging: Path, into: Path) -> Path:
    """Older ones of the collection in `into` go."""
    source = stage(staging, archive=host_archive())
    shutil.rmtree(into, ignore_errors=True)
    core.expect("ansible-galaxy", "collection", "build", str(source), "--output-path", str(into))
    [built] = into.glob("nodegauge-gpu-*.tar.gz")
    with tarfile.open(built) as opened:
        missing = set(NEEDED) - set(opened.getnames())
    if missing:
        raise CheckFailed(f"{built.name} lacks {', '.join(sorted(missing))}")
    return built


def install(core: Core, built: Path) -> Path:
    folder_option = ("-p", str(core.folder))
    core.expect("ansible-galaxy", "collection", "install", str(built), *folder_option)
    listed = core.run("ansible-galaxy", "collection", "list", "--format", "json", *folder_option).stdout
    version = yaml.safe_load((COLLECTION / "galaxy.yml").read_text("utf-8"))["version"]
    shown = json.loads(listed[listed.index("{") :])
    if {"version": version} not in [names.get(NAME) for names in shown.values()]:
        raise CheckFailed(f"ansible-galaxy collection list does not show {NAME} {version}:\n{listed}")
    verified = core.run("ansible-galaxy", "collection", "verify", "--offline", NAME, *folder_option)
    if verified.returncode or "differ" in verified.stdout:
        raise CheckFailed(f"ansible-galaxy collection verify:\n{verified.stdout}")
    shutil.copy(COLLECTION / "galaxy.yml", core.collection)  # antsibull-changelog and ansible-lint read it
    return core.collection
