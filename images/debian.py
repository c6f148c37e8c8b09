"""The base of every image: Debian's or Ubuntu's Python and the libraries that it needs, and nothing else.

The packages come from the archives that this machine's apt knows and trusts.  They are downloaded and
unpacked, but not installed: that needs no root and runs none of their scripts.  There is no shell and no
package manager among them.  Vulnerability scanners find the list of packages in /var/lib/dpkg/status.d.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from images.spec import USER
from images.steps import BuildFailed, Unavailable, run, say

NEEDS_APT = (
    "The base consists of Debian packages: run this on Debian 12 or newer or Ubuntu 24.04 or newer "
    "(apt-get, apt-cache, dpkg and dpkg-deb; no root, no container engine), or build the Dockerfiles with a "
    "container engine."
)
NO_ARCHIVE = (
    "The packages come from the archives in this machine's /etc/apt: check the network, and run `apt-get "
    "update` as root to update apt's package lists."
)

# First-level dependencies of Python's library that no image uses, and the modules that need them.
LEFT_OUT = re.compile(
    r"media-types|mime-support|lib(db|ncursesw|tinfo|nsl|readline|sqlite|tirpc)[\d.-]*(t64)?|libsqlite3-0|netbase|tzdata"
)
MODULES_LEFT_OUT = ("readline", "_curses", "_curses_panel", "_dbm", "_gdbm", "nis", "_sqlite3")
# Parts of Python's library that need a terminal, a display, a package index or Python 2.
LIBRARY_LEFT_OUT = {
    "curses",
    "dbm",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "sqlite3",
    "test",
    "tkinter",
    "turtledemo",
    "turtle.py",
    "venv",
    "EXTERNALLY-MANAGED",
}
# Character sets for iconv(), loadable engines of OpenSSL, documentation and other files for people.
TREES_LEFT_OUT = re.compile(
    r"usr/share/(?!doc/[^/]+(/copyright)?$|python)"
    r"|usr/lib/[^/]+/(gconv|audit|engines-\d+)(/|$)|etc/(ld\.so\.conf\.d|python[\d.]+/cert)|usr/share/doc/[^/]+/(?!copyright$)"
)
MERGED = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")


@dataclass(frozen=True)
class Package:
    """A Debian package to download: file name and SHA-256 from apt."""

    name: str
    file: str
    sha256: str


def indexed(program: str, *, cache: Path) -> list[str]:
    """A program of apt's that keeps its index of all packages in `cache` until the lists change.

    To build the index takes more than a second, and the images of Debian and Ubuntu have apt keep none.
    """
    return [program, "-o", f"Dir::Cache::pkgcache={cache.absolute() / 'pkgcache.bin'}"]


def dependencies(*, cache: Path) -> dict[str, set[str]]:
    """What each package needs, for Python and all that it needs in turn."""
    command = [*indexed("apt-cache", cache=cache), "depends", "--recurse", "--important", "python3"]
    text = run(command, way_out=NEEDS_APT, failure=Unavailable)
    blocks = re.findall(r"^(\S+)\n((?: .*\n)*)", text, re.MULTILINE)
    needs = re.compile(r"^ +(?:Pre)?Depends: ([a-z0-9.+-]+)$", re.MULTILINE)
    return {name: set(needs.findall(lines)) for name, lines in blocks}


def python_version(known: Mapping[str, set[str]]) -> str:
    """The version of the distribution's Python, such as `3.11`; raises `Unavailable` if it is too old."""
    match = re.search(r"\bpython(3\.\d+)-minimal", " ".join(known.get("python3-minimal", ())))
    if match is None:
        raise Unavailable(f"apt knows no package python3-minimal: is /var/lib/apt/lists empty? {NEEDS_APT}")
    if int(match[1].split(".")[1]) < 11:
        raise Unavailable(f"This distribution's Python is {match[1]}; nodegauge needs 3.11. {NEEDS_APT}")
    return match[1]


def closure(python: str, known: Mapping[str, set[str]]) -> list[str]:
    """Names of the packages of the base, sorted."""
    asked = {f"python{python}-minimal", f"libpython{python}-stdlib"}
    result = {"base-files"}
    while asked:
        result |= asked
        names = {name for one in asked for name in known.get(one, ())}
        asked = {name for name in names if not LEFT_OUT.fullmatch(name)} - result
    return sorted(result)


def packages(names: list[str], *, cache: Path) -> list[Package]:
    """The packages that apt would download for `names`: its candidate versions."""
    command = [*indexed("apt-get", cache=cache), "download", "--print-uris", *names]
    text = run(command, way_out=NO_ARCHIVE, failure=Unavailable)
    rows = re.findall(r"^'[^']+' (\S+) \d+ SHA256:([0-9a-f]{64})", text, re.MULTILINE)
    listed = [Package(name=file.split("_")[0], file=file, sha256=digest) for file, digest in rows]
    if sorted(package.name for package in listed) != names:
        raise Unavailable(f"apt named {[p.file for p in listed]} for {names}. {NO_ARCHIVE}")
    return listed


def digest(path: Path) -> str:
    """SHA-256 of a file; empty if it does not exist."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def fetch(wanted: list[Package], *, cache: Path) -> None:
    """Download each package of `wanted` to `cache`, unless it is there with apt's checksum."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [package for package in wanted if digest(cache / package.file) != package.sha256]
    if not missing:
        return
    say(f"  {len(missing)} of {len(wanted)} packages to download")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        # Run as root, apt would switch to a user who cannot write here.
        user = ["-o", "APT::Sandbox::User=root"]
        names = [package.name for package in missing]
        run(
            ["apt-get", "download", "-qq", *user, *names],
            folder=Path(folder),
            way_out=NO_ARCHIVE,
            failure=Unavailable,
        )
        for package in missing:
            path = Path(folder) / package.file
            if digest(path) != package.sha256:
                raise BuildFailed(f"{package.file} has another checksum than apt's. {NO_ARCHIVE}")
            path.replace(cache / package.file)


def target_path(name: str) -> str | None:
    """Path in the base of a package's file; None if it is left out."""
    path = PurePosixPath(name).as_posix().removeprefix("./").strip("/")
    if path.split("/")[0] in MERGED:
        path = f"usr/{path}"
    if path in ("", ".") or TREES_LEFT_OUT.match(path):
        return None
    library = re.match(r"usr/lib/python3(?:\.\d+)?/([^/]+)(?:/([^/.]+))?", path)
    if library and (library[1] in LIBRARY_LEFT_OUT or library[1].startswith("config-")):
        return None
    if library and library[1] == "lib-dynload" and library[2] in MODULES_LEFT_OUT:
        return None
    return path


def unpack(deb: Path, *, into: Path, only: re.Pattern[str] | None = None) -> None:
    """Unpack a package below `into`, with the paths of a merged /usr; symbolic links stay links."""
    command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        for member in tar:
            path = target_path(member.name)
            if path is None or (only and not only.fullmatch(path)):
                continue
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                target.mkdir(exist_ok=True)
            elif member.issym():
                target.symlink_to(member.linkname)
            elif member.islnk():
                shutil.copy(into / str(target_path(member.linkname)), target)
            elif content := tar.extractfile(member):
                target.write_bytes(content.read())
                target.chmod(0o755 if member.mode & 0o100 else 0o644)
    if process.returncode != 0:
        raise BuildFailed(f"{deb} could not be unpacked; remove it and build again")


def finish(root: Path, *, python: str) -> None:
    """Add what no package contains: the links of a merged /usr, users, and `python` on the path."""
    for name in MERGED:
        if (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "proc", "sys", "run", "tmp", "var/tmp", "etc", "usr/local/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (root / "usr/bin" / name).symlink_to(f"python{python}")
    users = {"root": 0, "nonroot": USER}
    etc = {
        "passwd": "".join(f"{name}:x:{uid}:{uid}::/:/nonexistent\n" for name, uid in users.items()),
        "group": "".join(f"{name}:x:{uid}:\n" for name, uid in users.items()),
        "nsswitch.conf": "hosts: files dns\n",
    }
    for name, text in etc.items():
        (root / "etc" / name).write_text(text, encoding="utf-8")


def build(root: Path, *, wanted: list[Package], cache: Path, python: str) -> None:
    """Build the base in the empty folder `root`, from packages that `fetch` downloaded."""
    add(root, wanted=wanted, cache=cache)
    finish(root, python=python)


def add(root: Path, *, wanted: list[Package], cache: Path) -> None:
    """Unpack downloaded packages below `root`, with their control files for scanners."""
    status = root / "var/lib/dpkg/status.d"
    for package in wanted:
        status.mkdir(parents=True, exist_ok=True)
        deb = cache / package.file
        # Of base-files, only the files that identify the distribution.
        only = re.compile(r"(etc|usr/lib)/os-release|usr/share/doc/base-files/copyright")
        unpack(deb, into=root, only=only if package.name == "base-files" else None)
        control = run(["dpkg-deb", "--field", deb], way_out=NEEDS_APT, failure=Unavailable)
        (status / package.name).write_text(control, encoding="utf-8")


def architecture() -> str:
    """The machine's architecture, by its name in Debian and in OCI: amd64 or arm64."""
    name = run(["dpkg", "--print-architecture"], way_out=NEEDS_APT, failure=Unavailable).strip()
    if name not in ("amd64", "arm64"):
        raise Unavailable(f"{name} is not supported: only amd64 and arm64 have wheels of every library.")
    return name
