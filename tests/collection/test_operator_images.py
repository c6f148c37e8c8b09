"""The role operator loads images into a containerd of the test's own: a `ctr` that keeps a list."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from support.playbook import Ansible, Played

CTR = """#!{python}
import json, pathlib, sys, tarfile
assert sys.argv[1:4] == ["--namespace", "k8s.io", "images"], sys.argv
store = pathlib.Path(__file__).with_name("store-" + pathlib.Path(__file__).parent.name)
if sys.argv[4] == "import":
    archive = tarfile.open(sys.argv[5])
    entry = json.load(archive.extractfile(archive.getnames()[0]))["manifests"][0]
    name = entry["annotations"]["io.containerd.image.name"]
    with store.open("a") as file:
        print(name, "application/vnd.oci.image", entry["digest"], "1.0 MiB linux/amd64 -", file=file)
    pathlib.Path(__file__).with_name("imports").open("a").write(sys.argv[5] + chr(10))
else:
    print("REF TYPE DIGEST SIZE PLATFORMS LABELS")
    print(store.read_text() if store.exists() else "", end="")
"""


def write_archive(path: Path, *, digest: str = "sha256:" + "a" * 64, named: bool = True) -> Path:
    """An OCI archive without layers."""
    annotations = {"io.containerd.image.name": "localhost/nodegauge/probe:0.1.0"} if named else {}
    index = json.dumps({"manifests": [{"digest": digest, "annotations": annotations}]}).encode()
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("./index.json" if "dotted" in path.name else "index.json")
        member.size = len(index)
        archive.addfile(member, io.BytesIO(index))
    return path


class Nodes:
    """Two nodes with a `ctr` of their own, and a helm that finds nothing to do."""

    def __init__(self, ansible: Ansible) -> None:
        self.ansible = ansible
        self.helm = ansible.folder / "helm"
        release = {"version": 1, "info": {"status": "deployed"}, "manifest": "", "hooks": [], "config": {}}
        self.helm.write_text(f"#!/bin/sh\necho '{json.dumps(release)}'\n")
        for name in ("a", "b"):
            (ansible.folder / name).mkdir()
            (self.ctr(name)).write_text(CTR.format(python=sys.executable))
            self.ctr(name).chmod(0o755)
        self.helm.chmod(0o755)

    def ctr(self, node: str) -> Path:
        return self.ansible.folder / node / "ctr"

    def imports(self, node: str) -> int:
        """How many archives this node imported."""
        record = self.ctr(node).with_name("imports")
        return len(record.read_text().splitlines()) if record.exists() else 0

    def load(self, archive: Path, *options: str, other: Path | None = None) -> Played:
        """The role with this archive, and another one."""
        common = {
            "operator_image_archives": [str(path) for path in (archive, other) if path],
            "operator_helm": str(self.helm),
        }
        hosts = {
            name: {"operator_ctr": str(self.ctr(name)), "operator_archive_dir": str(self.ctr(name).parent)}
            for name in ("a", "b")
        }
        play = [{"hosts": "all", "gather_facts": False, "vars": common, "roles": ["nodegauge.gpu.operator"]}]
        return self.ansible.play(play, hosts, *options)


@pytest.fixture
def nodes(ansible: Ansible) -> Nodes:
    return Nodes(ansible)


@pytest.mark.parametrize("name", ["image.tar", "dotted.tar"])
def test_an_image_is_loaded_on_every_node_once(nodes: Nodes, tmp_path: Path, name: str) -> None:
    """The second run copies nothing, and no copy is left."""
    archive = write_archive(tmp_path / name)
    first, second = nodes.load(archive), nodes.load(archive)
    assert (first.code, second.code) == (0, 0), first.output + second.output
    assert {task.host for task in first.changed} == {"a", "b"}
    assert not second.changed
    assert (nodes.imports("a"), nodes.imports("b")) == (1, 1)
    assert not list(tmp_path.glob("[ab]/nodegauge-*.tar"))


def test_only_the_node_that_lacks_the_image_gets_it(nodes: Nodes, tmp_path: Path) -> None:
    """A node that joined later."""
    archive = write_archive(tmp_path / "image.tar")
    nodes.load(archive)
    (tmp_path / "b" / "store-b").unlink()
    assert {task.host for task in nodes.load(archive).changed} == {"b"}


def test_another_image_of_the_same_name_is_loaded(nodes: Nodes, tmp_path: Path) -> None:
    """The digest decides, for a tag can be built anew."""
    nodes.load(write_archive(tmp_path / "image.tar"))
    nodes.load(write_archive(tmp_path / "image.tar", digest="sha256:" + "b" * 64))
    assert nodes.imports("a") == 2


def test_several_archives_are_loaded_in_one_run(nodes: Nodes, tmp_path: Path) -> None:
    """Each of them, once."""
    other = write_archive(tmp_path / "other.tar", digest="sha256:" + "c" * 64)
    for _ in range(2):
        assert nodes.load(write_archive(tmp_path / "image.tar"), other=other).code == 0
    assert (nodes.imports("a"), nodes.imports("b")) == (2, 2)


def test_check_mode_says_what_it_would_load(nodes: Nodes, tmp_path: Path) -> None:
    """It copies and imports nothing."""
    played = nodes.load(write_archive(tmp_path / "image.tar"), "--check")
    assert played.code == 0, played.output
    assert {task.host for task in played.changed} == {"a", "b"}
    assert nodes.imports("a") == 0
    assert not list(tmp_path.glob("[ab]/nodegauge-*.tar"))


@pytest.mark.parametrize(
    ("content", "message"),
    [("named=False", "names no image"), ("text", "cannot be read as an archive"), ("", "does not exist")],
)
def test_an_unusable_archive_is_explained(nodes: Nodes, tmp_path: Path, content: str, message: str) -> None:
    """The message says which file, and how to write a good one."""
    archive = tmp_path / "image.tar"
    if content == "text":
        archive.write_text("no tar")
    elif content:
        write_archive(archive, named=False)
    played = nodes.load(archive)
    assert played.code != 0
    assert message in played.output
    assert str(archive) in played.output
