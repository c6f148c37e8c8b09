"""The built images: what is in them, and what is not."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from images.spec import IMAGES, version

from support.image_tools import ROOT, Built, archives, build, run

pytestmark = pytest.mark.timeout(580)
TOOLS = {"sh", "bash", "dash", "busybox", "pip", "pip3", "apt", "apt-get", "dpkg", "gcc", "cc", "ld", "make"}


def test_sizes_stay_below_the_limits(image: Built) -> None:
    """Unpacked, with tar's own headers, each image stays under its limit."""
    assert {name: one.limit_mb for name, one in IMAGES.items()} == {"operator": 250, "probe": 90}
    assert image.unpacked < IMAGES[image.name].limit_mb * 1_000_000


def test_files_belong_to_root_and_nobody_else_writes(image: Built) -> None:
    """Every file is root's, plain, without set-id bits, and writable by its owner alone; /tmp is sticky."""
    links = [m for m in image.members if m.issym()]
    others = [m for m in image.members if not m.issym()]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in image.members} == {(0, 0, "", "", 0)}
    assert {m.type for m in others} == {tarfile.REGTYPE, tarfile.DIRTYPE}
    assert {m.name: oct(m.mode) for m in others if m.mode not in (0o755, 0o644)} == {
        "tmp": "0o1777",
        "var/tmp": "0o1777",
    }
    assert links != []


def test_no_installer_shell_or_compiler(image: Built) -> None:
    """What attackers and build steps use is not there, under no name of a program or library."""
    paths = [PurePosixPath(member.name) for member in image.members]
    assert [path for path in paths if path.parent.name in ("bin", "sbin") and path.name in TOOLS] == []
    packages = {path.name for path in paths if path.parent.name in ("lib", "dist-packages", "python3.11")}
    assert packages & {"pip", "setuptools", "wheel", "ensurepip", "venv", "test", "pkg_resources"} == set()
    programs = {p.name for p in paths if p.parent.name == "bin"}
    assert {p for p in programs if not re.fullmatch(r"python[\d.]*|nodegauge", p)} == set()


def test_links_lead_to_files_of_the_image(image: Built) -> None:
    """No symbolic link leads outside, or to a library or program that was left out."""
    names = {PurePosixPath(member.name) for member in image.members}
    top = {path: member.linkname for member in image.members if member.issym() for path in [member.name]}

    def target(name: str) -> PurePosixPath:
        joined = PurePosixPath(os.path.normpath(PurePosixPath("/", name).parent / top[name])).relative_to("/")
        first = joined.parts[0]
        return (
            PurePosixPath(top[first], *joined.parts[1:]) if first in top and len(joined.parts) > 1 else joined
        )

    assert [(n, top[n]) for n in top if not n.startswith("usr/share/doc/") and target(n) not in names] == []


def test_nothing_of_the_building_machine_is_inside(image: Built) -> None:
    """No path of the build or of the checkout is in any file, bytecode included."""
    traces = [str(ROOT).encode(), b"nodegauge-images-"]
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if any(trace in path.read_bytes() for trace in traces)] == []


def test_every_module_has_bytecode_that_stays_valid(image: Built) -> None:
    """Each module has bytecode marked as never to be checked, so no start compiles anything."""
    for folder in (image.root / "opt/nodegauge/lib", next((image.root / "usr/lib").glob("python3.*"))):
        modules = [path for path in folder.rglob("*.py") if path.stat().st_size]
        assert len(modules) > 50
        for module in modules:
            (cached,) = module.parent.glob(f"__pycache__/{module.stem}.cpython-*.pyc")
            assert int.from_bytes(cached.read_bytes()[4:8], "little") == 1, cached


def test_scanners_see_what_was_unpacked(image: Built) -> None:
    """Each Debian package has its control file where scanners look, and the distribution its name."""
    status = image.root / "var/lib/dpkg/status.d"
    for package in status.iterdir():
        assert re.search(rf"^Package: {re.escape(package.name)}$", package.read_text("utf-8"), re.MULTILINE)
        assert re.search(r"^Version: \S+$", package.read_text("utf-8"), re.MULTILINE)
    assert "libc6" in {package.name for package in status.iterdir()}
    assert "VERSION_ID=" in (image.root / "etc/os-release").read_text("utf-8")


def test_each_image_holds_its_own_packages(images: dict[str, Built]) -> None:
    """The probe's image, which runs on GPU nodes, has neither operator nor judge; pins hold in both."""
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    )
    normal = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in pins.items()}
    for name, image in images.items():
        lib = image.root / "opt/nodegauge/lib"
        assert {path.name for path in lib.glob("nodegauge_*")} == set(IMAGES[name].packages)
        matches = [re.fullmatch(r"(.+)-([^-]+)\.dist-info", path.name) for path in lib.glob("*.dist-info")]
        versions = {re.sub(r"[-_.]+", "-", m[1]).lower(): m[2] for m in matches if m}
        assert versions.pop("nodegauge") == version()
        assert versions == {key: normal[key] for key in versions}
        assert ("kopf" in versions, "nvidia-ml-py" in versions) == (name == "operator", name == "probe")


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_every_digest_and_size_is_right(image: Built) -> None:
    """Each blob has the digest that names it, and each reference to it the right digest and size."""
    assert [digest for digest, data in image.blobs.items() if sha256(data) != f"sha256:{digest}"] == []
    references: list[dict[str, Any]] = [*image.index["manifests"], image.manifest["config"]]
    references += image.manifest["layers"]
    blobs = {f"sha256:{digest}": data for digest, data in image.blobs.items()}
    assert [r["digest"] for r in references if len(blobs[r["digest"]]) != r["size"]] == []
    assert {r["digest"] for r in references} == set(blobs)
    layers = [gzip.decompress(blobs[layer["digest"]]) for layer in image.manifest["layers"]]
    assert image.config["rootfs"]["diff_ids"] == [sha256(layer) for layer in layers]
    (docker,) = image.docker
    paths = [docker["Config"], *docker["Layers"]]
    assert [f"sha256:{path.removeprefix('blobs/sha256/')}" for path in paths] == [
        r["digest"] for r in references[1:]
    ]


def test_names_user_and_labels(image: Built) -> None:
    """containerd and docker find the same name, and a container starts as uid 65532 with its own program."""
    reference = f"localhost/nodegauge/{image.name}:{version()}"
    assert image.index["manifests"][0]["annotations"]["io.containerd.image.name"] == reference
    assert image.docker[0]["RepoTags"] == [reference]
    config = image.config["config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == version()
    assert config["Entrypoint"][:2] == ["python", "-m"]
    done = run(image, *config["Entrypoint"][1:], "--help" if image.name == "probe" else "")
    assert "Traceback" not in done.stderr


def test_both_images_share_the_base(images: dict[str, Built]) -> None:
    """The first layer, most of the probe's image, is the same in both: a node pulls it once."""
    first = {image.manifest["layers"][0]["digest"] for image in images.values()}
    assert len(first) == 1
    assert len({image.manifest["layers"][1]["digest"] for image in images.values()}) == 2


def test_a_second_build_gives_the_same_digests(images: dict[str, Built], tmp_path: Path) -> None:
    """The same inputs give the same image, byte for byte, in another folder at another time."""
    path = archives("operator", out=tmp_path / "elsewhere", again=True)["operator"]
    with tarfile.open(path) as tar:
        blobs = {Path(member.name).name for member in tar if member.name.startswith("blobs/")}
    assert blobs == set(images["operator"].blobs)


def test_an_archive_of_the_same_inputs_is_not_made_again(images: dict[str, Built], tmp_path: Path) -> None:
    """A second call with the same packages, sources and pins leaves what is there."""
    out = images["probe"].root.parents[1] / "out"
    (path,) = out.glob("nodegauge-probe-*.tar")
    before = path.stat().st_mtime_ns
    done = build("archives", "probe", "--out", str(out))
    assert (done.returncode, path.stat().st_mtime_ns) == (0, before), done.stderr
    assert "is up to date" in done.stderr


def test_a_machine_without_debian_tools_is_told_the_way_out(tmp_path: Path) -> None:
    """Where there is no apt, nothing is made, and the message says where to build instead."""
    done = build(
        "archives", "--out", str(tmp_path / "out"), env={"PATH": str(tmp_path), "HOME": str(tmp_path)}
    )
    assert done.returncode == 3
    assert "Debian 12 or newer" in done.stderr
    assert "Dockerfiles" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_tree_goes_into_an_empty_folder_alone(tmp_path: Path) -> None:
    """What the Dockerfiles call does not mix an image with files that are there already."""
    (tmp_path / "mine").touch()
    done = build("tree", "probe", str(tmp_path))
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (1, ["mine"])
    assert "is not empty" in done.stderr


def test_a_tree_has_the_files_and_modes_of_the_archive(images: dict[str, Built], tmp_path: Path) -> None:
    """What the Dockerfiles copy into an empty image is what the archive holds, whatever the umask is."""
    before = os.umask(0o077)
    try:
        done = build("tree", "probe", str(tmp_path / "root"))
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    root, image = tmp_path / "root", images["probe"]
    members = {m.name: "link" if m.issym() else m.mode for m in image.members}
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
    modes = {n: "link" if p.is_symlink() else stat.S_IMODE(p.stat().st_mode) for n, p in paths.items()}
    assert modes == members
    files = [name for name, path in paths.items() if path.is_file()]
    assert [n for n in files if (root / n).read_bytes() != (image.root / n).read_bytes()] == []


def test_an_unknown_image_is_refused(tmp_path: Path) -> None:
    """A name that is no image's ends at once, with the names that are."""
    done = build("archives", "probes", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "operator, probe and nccl, not probes" in done.stderr
