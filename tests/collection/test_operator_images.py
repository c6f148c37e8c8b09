"""The role operator loads images into a containerd of the test's own: a `ctr` that keeps a list."""

import io
import json
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.playbook import Ansible, Played, stage

CTR = """#!{python}
import json, pathlib, sys, tarfile
assert sys.argv[1:4] == ["--namespace", "k8s.io", "images"], sys.argv
store = pathlib.Path(__file__).with_name("store")
if sys.argv[4] == "import":
    archive = tarfile.open(sys.argv[5])
    entry = json.load(archive.extractfile(archive.getnames()[0]))["manifests"][0]
    with store.open("a") as file:
        name = entry["annotations"]["io.containerd.image.name"]
        print(name, "application/vnd.oci.image", entry["digest"], "1.0 MiB linux/amd64 -", file=file)
else:
    print("REF TYPE DIGEST SIZE PLATFORMS LABELS")
    print(store.read_text(), end="")
"""
IMAGE = "localhost/nodegauge/probe:0.1.0"
USUAL, OTHER = (f"sha256:{letter * 64}" for letter in "ab")
NODES: dict[str, tuple[list[str], str]] = {
    "lacks-both": (["dotted.tar", "other.tar"], ""),
    "rebuilt": (["image.tar"], OTHER),
    "has-it": (["image.tar"], USUAL),
}
"""By node: the archives to load, and the digest of the image that it has under the same name."""
UNUSABLE = {"unnamed": "names no image", "text": "cannot be read as an archive", "absent": "does not exist"}


def write_archive(path: Path, *, digest: str = USUAL, named: bool = True) -> None:
    annotations = {"io.containerd.image.name": IMAGE} if named else {}
    index = json.dumps({"manifests": [{"digest": digest, "annotations": annotations}]}).encode()
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("./index.json" if "dotted" in path.name else "index.json")
        member.size = len(index)
        archive.addfile(member, io.BytesIO(index))


@dataclass(frozen=True)
class Loaded:
    """Three plays of the role on all nodes: in check mode, for the first time, and again."""

    folder: Path
    checked: Played
    after_check: dict[str, int]
    first: Played
    second: Played


def images(folder: Path) -> dict[str, int]:
    return {name: len((folder / name / "store").read_text().splitlines()) for name in NODES}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Each node has a `ctr` of its own; the helm finds nothing to do."""
    folder = tmp_path_factory.mktemp("images")
    stage(folder)
    helm = folder / "helm"
    release = {"version": 1, "info": {"status": "deployed"}, "manifest": "", "hooks": [], "config": {}}
    helm.write_text(f"#!/bin/sh\necho '{json.dumps(release)}'\n")
    helm.chmod(0o755)
    for name, digest in (("image", USUAL), ("dotted", USUAL), ("other", OTHER)):
        write_archive(folder / f"{name}.tar", digest=digest)
    write_archive(folder / "unnamed.tar", named=False)
    (folder / "text.tar").write_text("no tar")
    hosts = {}
    for name, (archives, digest) in (NODES | {name: ([f"{name}.tar"], "") for name in UNUSABLE}).items():
        (folder / name).mkdir()
        ctr = folder / name / "ctr"
        ctr.write_text(CTR.format(python=sys.executable))
        ctr.chmod(0o755)
        ctr.with_name("store").write_text(f"{IMAGE} oci {digest} 1.0 MiB linux/amd64 -\n" if digest else "")
        paths = [str(folder / archive) for archive in archives]
        hosts[name] = {"operator_ctr": str(ctr), "operator_archive_dir": str(folder / name)} | {
            "operator_image_archives": paths
        }
    common = {"operator_helm": str(helm)}
    play = {"hosts": "all", "gather_facts": False, "vars": common, "roles": ["nodegauge.gpu.operator"]}
    ansible = Ansible(folder)
    usable = ("--limit", ",".join(NODES))
    checked = ansible.play([play], hosts, "--check", *usable)
    assert not list(folder.glob("*/nodegauge-*.tar"))
    after_check, first = images(folder), ansible.play([play], hosts)
    return Loaded(folder, checked, after_check, first, ansible.play([play], hosts, *usable))


def failed(played: Played) -> dict[str, str]:
    return {task.host: str(task.result) for task in played.tasks if task.status == "failed"}


def test_a_node_gets_each_image_that_it_lacks_once(loaded: Loaded) -> None:
    """Also several in one run; the digest decides, for a tag can be built anew. No copy is left."""
    assert failed(loaded.first).keys() == UNUSABLE.keys(), loaded.first.output
    assert {task.host for task in loaded.first.changed} == NODES.keys() - {"has-it"}
    assert images(loaded.folder) == {"lacks-both": 2, "rebuilt": 2, "has-it": 1}
    assert not loaded.second.changed
    assert not list(loaded.folder.glob("*/nodegauge-*.tar"))


def test_check_mode_says_what_it_would_load(loaded: Loaded) -> None:
    assert {task.host for task in loaded.checked.changed} == NODES.keys() - {"has-it"}, loaded.checked.output
    assert loaded.after_check == {name: int(bool(digest)) for name, (_, digest) in NODES.items()}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_archive_is_explained(loaded: Loaded, name: str) -> None:
    message = failed(loaded.first)[name]
    assert UNUSABLE[name] in message
    assert str(loaded.folder / f"{name}.tar") in message
