"""The built images contain what they need and nothing else, and their archives are correct."""

import os
import re
import shutil
import stat
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from images.archive import layer
from images.spec import IMAGES, version

from support.image_tools import ROOT, Built, build, run

pytestmark = pytest.mark.timeout(1800)
"""The first test builds both images: two minutes alone, ten beside a dozen busy processes."""

TOOLS = {"sh", "bash", "dash", "busybox", "pip", "pip3", "apt", "apt-get", "dpkg", "gcc", "cc", "ld", "make"}


def test_sizes_stay_below_the_limits(image: Built) -> None:
    assert {name: one.limit_mb for name, one in IMAGES.items()} == {"operator": 250, "probe": 90}
    assert image.unpacked < IMAGES[image.name].limit_mb * 1_000_000


def test_files_belong_to_root_and_only_root_can_write_them(image: Built) -> None:
    """Every file belongs to root, has no set-id bits, and is writable only by root; /tmp is sticky."""
    links = [m for m in image.members if m.issym()]
    others = [m for m in image.members if not m.issym()]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in image.members} == {(0, 0, "", "", 0)}
    assert {m.type for m in others} == {tarfile.REGTYPE, tarfile.DIRTYPE}
    odd = {m.name: oct(m.mode) for m in others if m.mode not in (0o755, 0o644)}
    assert odd == {"tmp": "0o1777", "var/tmp": "0o1777"}
    assert links != []


def test_no_installer_shell_or_compiler(image: Built) -> None:
    paths = [PurePosixPath(member.name) for member in image.members]
    assert [path for path in paths if path.parent.name in ("bin", "sbin") and path.name in TOOLS] == []
    packages = {path.name for path in paths if path.parent.name in ("lib", "dist-packages", "python3.11")}
    assert packages & {"pip", "setuptools", "wheel", "ensurepip", "venv", "test", "pkg_resources"} == set()
    programs = {p.name for p in paths if p.parent.name == "bin"}
    assert {p for p in programs if not re.fullmatch(r"python[\d.]*|nodegauge", p)} == set()


def test_links_lead_to_files_of_the_image(image: Built) -> None:
    names = {PurePosixPath(member.name) for member in image.members}
    top = {path: member.linkname for member in image.members if member.issym() for path in [member.name]}

    def target(name: str) -> PurePosixPath:
        joined = PurePosixPath(os.path.normpath(PurePosixPath("/", name).parent / top[name])).relative_to("/")
        first, *more = joined.parts
        return PurePosixPath(top[first], *more) if first in top and more else joined

    assert [(n, top[n]) for n in top if not n.startswith("usr/share/doc/") and target(n) not in names] == []


def test_no_file_contains_paths_of_the_build_machine(image: Built) -> None:
    traces = [str(ROOT).encode(), b"nodegauge-images-"]
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if any(trace in path.read_bytes() for trace in traces)] == []


def test_every_module_has_bytecode_that_stays_valid(image: Built) -> None:
    """Each module has bytecode that Python never checks, so no start compiles anything."""
    for folder in (image.root / "opt/nodegauge/lib", next((image.root / "usr/lib").glob("python3.*"))):
        modules = [path for path in folder.rglob("*.py") if path.stat().st_size]
        assert len(modules) > 50
        for module in modules:
            (cached,) = module.parent.glob(f"__pycache__/{module.stem}.cpython-*.pyc")
            assert int.from_bytes(cached.read_bytes()[4:8], "little") == 1, cached


def test_scanners_find_the_debian_packages(image: Built) -> None:
    """Scanners find a control file of each Debian package, and the name of the distribution."""
    status = image.root / "var/lib/dpkg/status.d"
    for package in status.iterdir():
        assert re.search(rf"^Package: {re.escape(package.name)}$", package.read_text("utf-8"), re.MULTILINE)
        assert re.search(r"^Version: \S+$", package.read_text("utf-8"), re.MULTILINE)
    assert "libc6" in {package.name for package in status.iterdir()}
    assert "VERSION_ID=" in (image.root / "etc/os-release").read_text("utf-8")


def test_each_image_has_only_its_own_packages(images: dict[str, Built]) -> None:
    """The probe's image has neither operator nor judge; both images have the pinned versions."""
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


def test_docker_reads_the_layers_that_containerd_reads(image: Built) -> None:
    """One archive has both indexes; containerd checks digests and sizes when it imports it (`make e2e`)."""
    (docker,) = image.docker
    paths = [docker["Config"], *docker["Layers"]]
    references = [image.manifest["config"], *image.manifest["layers"]]
    assert [f"sha256:{path.removeprefix('blobs/sha256/')}" for path in paths] == [
        reference["digest"] for reference in references
    ]


def test_names_user_and_labels(image: Built) -> None:
    """containerd and docker find the same name; a container runs its own program as uid 65532."""
    reference = f"localhost/nodegauge/{image.name}:{version()}"
    assert image.index["manifests"][0]["annotations"]["io.containerd.image.name"] == reference
    assert image.docker[0]["RepoTags"] == [reference]
    config = image.config["config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == version()
    assert config["Entrypoint"][:2] == ["python", "-m"]
    done = run(image, *config["Entrypoint"][1:], *["--help"][: image.name == "probe"])
    wanted = {"operator": (2, "POD_NAMESPACE is not set"), "probe": (0, "Read one GPU node")}[image.name]
    assert (done.returncode, wanted[1] in done.stdout + done.stderr) == (wanted[0], True), done.stderr


def test_the_operators_image_has_the_command(images: dict[str, Built]) -> None:
    done = run(images["operator"], str(images["operator"].root / "opt/nodegauge/bin/nodegauge"), "--version")
    assert (done.returncode, done.stdout[:20]) == (0, "nodegauge, version 0"), done.stderr


def test_both_images_share_the_base(images: dict[str, Built]) -> None:
    first = {image.manifest["layers"][0]["digest"] for image in images.values()}
    assert len(first) == 1
    assert len({image.manifest["layers"][1]["digest"] for image in images.values()}) == 2


def test_a_layer_depends_only_on_paths_content_and_executable_bits(tmp_path: Path) -> None:
    """Two folders with the same files give the same layer, regardless of their times, modes and location."""
    for name, mode, mtime in (("a", 0o600, 1), ("b", 0o664, 2)):
        (tmp_path / name / "x").mkdir(parents=True)
        for file, text in (("x/one", "1"), ("two", "2")):
            path = tmp_path / name / file
            path.write_text(text)
            path.chmod(mode)
            os.utime(path, (mtime, mtime))
    first, second = (layer(tmp_path / name, created_by="test").blob.digest for name in ("a", "b"))
    assert first == second
    (tmp_path / "b/two").chmod(0o755)
    assert layer(tmp_path / "b", created_by="test").blob.digest != first


def test_an_archive_of_unchanged_inputs_is_not_rebuilt(images: dict[str, Built], tmp_path: Path) -> None:
    """A second call with the same packages, sources and pins keeps the archive."""
    for file in images["probe"].path.parent.glob("nodegauge-probe-*"):
        shutil.copy(file, tmp_path)
    (path,) = tmp_path.glob("nodegauge-probe-*.tar")
    before = path.stat().st_mtime_ns
    done = build("archives", "probe", "--out", str(tmp_path))
    assert (done.returncode, path.stat().st_mtime_ns) == (0, before), done.stderr
    assert "is up to date" in done.stderr


REFUSED: dict[str, tuple[tuple[str, ...], int, list[str]]] = {
    "no apt": (("archives", "--out", "{}/out"), 3, ["Debian 12 or newer", "Dockerfiles"]),
    "a folder with files": (("tree", "probe", "{}"), 1, ["is not empty"]),
    "unknown": (("archives", "probes", "--out", "{}/out"), 2, ["operator, probe and nccl, not probes"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_is_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    """A machine without apt, a folder with files, an unknown image; nothing is written, and files stay."""
    (tmp_path / "mine").touch()
    command, code, texts = REFUSED[name]
    nothing = dict.fromkeys(("PATH", "HOME"), str(tmp_path))
    done = build(*(word.format(tmp_path) for word in command), env=nothing if name == "no apt" else None)
    assert (done.returncode, [text for text in texts if text not in done.stderr]) == (code, [])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_second_build_gives_the_same_files_and_modes(images: dict[str, Built], tmp_path: Path) -> None:
    """In another folder and with another umask; it is the Dockerfiles' command `tree`."""
    before = os.umask(0o077)
    try:
        done = build("tree", "operator", str(tmp_path / "root"))
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    root, image = tmp_path / "root", images["operator"]
    members = {m.name: "link" if m.issym() else m.mode for m in image.members}
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
    modes = {n: "link" if p.is_symlink() else stat.S_IMODE(p.stat().st_mode) for n, p in paths.items()}
    assert modes == members
    files = [name for name, path in paths.items() if path.is_file()]
    assert [n for n in files if (root / n).read_bytes() != (image.root / n).read_bytes()] == []
