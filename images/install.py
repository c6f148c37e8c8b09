"""The install step of every image: the project with its extra, pinned, trimmed and compiled to bytecode.

pip runs with the image's own Python, so it chooses wheels and markers for that Python.  They stay in the
cache, and are unpacked here: pip would write 120 MB of which an image keeps nothing.  No library is compiled
from source, and the image contains neither pip nor a compiler.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path

from images.interpreter import environment
from images.spec import PREFIX, ROOT, Image
from images.steps import BuildFailed, run

NO_PACKAGES = (
    "pip's output is above. If it cannot reach a package index, configure one (pip config, or the variables "
    "PIP_INDEX_URL and PIP_CERT) and run this again."
)
CONSTRAINTS = "constraints.txt"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "operator/src", "probes/src")
# Files of wheels that are only needed to build or test against them.
NOT_NEEDED = {".c", ".cc", ".h", ".hash", ".pxd", ".pxi", ".pyi", ".pyx"}
TESTS = {"test", "tests"}
# Its modules generated from the Kubernetes API, one per type, are nearly all of its 120 MB; the operator uses
# only the generic ApiClient with JSON.  So it is imported from its wheel, and what that loads is unpacked.
CLIENT = "kubernetes"
GENERATED = tuple(f"{CLIENT}/{part}client/{kind}/" for part in ("", "aio/") for kind in ("api", "models"))

IMPORT_ALL = """\
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
print(json.dumps(sorted({m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)})))
"""
BUILD = "from setuptools import build_meta; build_meta.build_wheel('../wheels')"
COMMAND = """\
#!/usr/bin/python3
import sys
from {package}.__main__ import main
sys.exit(main(prog_name="nodegauge"))
"""


def pip(python: Path, *arguments: str | Path, folder: Path) -> None:
    """Run this environment's pip with `python` in `folder`, which contains constraints.txt."""
    try:
        import pip as installed
    except ModuleNotFoundError:
        raise BuildFailed(
            f"{sys.executable} has no pip: run `make images`, whose environment has it"
        ) from None
    runner = Path(str(installed.__file__)).with_name("__pip-runner__.py")
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
    run([python, runner, *arguments, *quiet], env=environment(), folder=folder, way_out=NO_PACKAGES)


def wheels(wanted: str, *, python: Path, folder: Path, cache: Path) -> list[Path]:
    """What pip would install for the requirement `wanted`, but the project: from `cache` or from the index.

    The pins in `folder`, the project's bounds and `python` say which; `cache` is that of one C library.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = [project["dependencies"], project["optional-dependencies"]]
    about = json.dumps([wanted, python.name, bounds, (folder / CONSTRAINTS).read_text("utf-8")])
    kept = cache / hashlib.sha256(about.encode()).hexdigest()[:16]
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as part:
            into = Path(part) / "wheels"
            fixed = ["--only-binary", ":all:", "--constraint", CONSTRAINTS]
            pip(python, "download", "--dest", into, *fixed, wanted, folder=folder)
            for own in into.glob("nodegauge-*.whl"):
                own.unlink()
            with suppress(OSError):  # another build was faster
                into.rename(kept)
    return sorted(kept.glob("*.whl"))


def wheel(python: Path, *, into: Path, cache: Path) -> Path:
    """Build the project's wheel, from a copy, because setuptools writes into the source folder.

    The pins and the copy stay below `into`, where pip finds them when it looks for what the wheel needs.
    """
    shutil.copy(ROOT / CONSTRAINTS, into)
    copy = into / "source"
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=leave)
        else:
            shutil.copy(ROOT / name, target)
    tools = into / "tools"
    for one in wheels("setuptools", python=python, folder=into, cache=cache):
        unpack(one, lib=tools, used=set())
    (into / "wheels").mkdir()
    run(
        [python, "-c", BUILD],
        env=environment(tools),
        folder=copy,
        way_out="The project's wheel is not built.",
    )
    (built,) = (into / "wheels").glob("nodegauge-*.whl")
    return built


def load(python: Path, code: str, *, lib: Path) -> None:
    """Fail if the code does not run with the installed packages."""
    run([python, "-c", code], env=environment(lib), way_out="The installed packages do not load.")


def loaded(python: Path, *, lib: Path, packages: tuple[str, ...], packed: list[Path]) -> set[Path]:
    """Files that importing every module of `packages` loads from `lib` and `packed` wheels; fails if a module
    cannot be imported."""
    command: list[str | Path] = [python, "-c", IMPORT_ALL, *packages]
    text = run(command, env=environment(lib, *packed), way_out="An installed package cannot be imported.")
    return {Path(file) for file in json.loads(text)}


def trim(lib: Path, *, image: Image, used: set[Path]) -> None:
    """Remove what no container uses: other nodegauge packages, tests."""
    for path in sorted(lib.glob("nodegauge_*")):
        if path.name not in image.packages:
            shutil.rmtree(path)
    for path in (path for pattern in image.left_out for path in lib.glob(pattern)):
        path.unlink()
    tests = [path for path in sorted(lib.rglob("*"), reverse=True) if path.name in TESTS and path.is_dir()]
    for path in (path for path in tests if not any(file.is_relative_to(path) for file in used)):
        shutil.rmtree(path)


def compile_all(python: Path, folder: Path, *, root: Path) -> None:
    """Compile `folder` to bytecode with its path in the image (relative to `root`).

    The bytecode is valid regardless of timestamps and never checked again: an image does not change.
    """
    modes = ["--invalidation-mode", "unchecked-hash", "-q", "-s", str(root), "-p", "/"]
    run([python, "-m", "compileall", *modes, folder], env=environment(), way_out="A module does not compile.")


def unpack(wheel: Path, *, lib: Path, used: set[Path]) -> None:
    """What a container can use of a wheel, below `lib`; generated modules only if they are `used`.

    RECORD would be an outdated list of files, and `.data` has programs and pages for people.
    """
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            needless = name.endswith("/RECORD") or ".data/" in name or Path(name).suffix in NOT_NEEDED
            if not needless and (not name.startswith(GENERATED) or wheel / name in used):
                packed.extract(name, lib)


def install(image: Image, *, root: Path, python: Path, built: Path, cache: Path) -> None:
    """Install the project below `root`/opt/nodegauge from what `wheel` returned and from the wheels that it
    needs; `python` is the image's own interpreter."""
    lib = root / PREFIX / "lib"
    lib.mkdir(parents=True)
    work = built.parents[1]
    wanted = f"./{built.relative_to(work)}[{image.extra}]"
    needed = wheels(wanted, python=python, folder=work, cache=cache)
    large = [one for one in needed if one.name.startswith(f"{CLIENT}-")]
    for one in (built, *needed):
        if one not in large:
            unpack(one, lib=lib, used=set())
    compile_all(python, lib, root=root)
    used = loaded(python, lib=lib, packages=image.packages, packed=large)
    for one in large:
        unpack(one, lib=lib, used=used)
        compile_all(python, lib / CLIENT, root=root)
    trim(lib, image=image, used=used)
    loaded(python, lib=lib, packages=image.packages, packed=[])
    if image.command:
        command = root / PREFIX / "bin" / "nodegauge"
        command.parent.mkdir()
        command.write_text(COMMAND.format(package=image.command), encoding="utf-8")
        command.chmod(0o755)
