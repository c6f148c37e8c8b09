"""The install step of every image: the project with its extra, pinned, trimmed and compiled to bytecode.

pip runs with the image's own Python, so it chooses wheels and markers for that Python.  No library is
compiled from source, and the image contains neither pip nor a compiler.
"""

from __future__ import annotations

import json
import shutil
import sys
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
# Modules generated from the Kubernetes API, one per type: nearly all of the client's 120 MB.  The operator
# uses only the generic ApiClient with JSON; modules that an import loads stay.
GENERATED = tuple(f"kubernetes/{part}client/{kind}" for part in ("", "aio/") for kind in ("api", "models"))

IMPORT_ALL = """\
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
print(json.dumps(sorted({m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)})))
"""
COMMAND = """\
#!/usr/bin/python3
import sys
from {package}.__main__ import main
sys.exit(main(prog_name="nodegauge"))
"""


def pip(python: Path, *arguments: str | Path, folder: Path) -> None:
    """Run this environment's pip with `python` in `folder`, which contains constraints.txt.

    Variables pass the pins, and that nothing is compiled, to isolated builds; an old pip ignores the pins.
    Their path is relative, because pip splits it at spaces.
    """
    try:
        import pip as installed
    except ModuleNotFoundError:
        raise BuildFailed(
            f"{sys.executable} has no pip: run `make images`, whose environment has it"
        ) from None
    runner = Path(str(installed.__file__)).with_name("__pip-runner__.py")
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
    env = environment() | {"PIP_BUILD_CONSTRAINT": CONSTRAINTS, "PIP_USER": "0", "PIP_COMPILE": "0"}
    run([python, runner, *arguments, *quiet], env=env, folder=folder, way_out=NO_PACKAGES)


def wheel(python: Path, *, into: Path) -> Path:
    """Build the project's wheel, from a copy, because setuptools writes into the source folder.

    The pins and the copy stay below `into`, where pip finds them when it installs the wheel.
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
    pip(python, "wheel", "--no-deps", "--wheel-dir", "wheels", "./source", folder=into)
    (built,) = (into / "wheels").glob("nodegauge-*.whl")
    return built


def load(python: Path, code: str, *, lib: Path) -> None:
    """Fail if the code does not run with the installed packages."""
    run([python, "-c", code], env=environment(path=lib), way_out="The installed packages do not load.")


def loaded(python: Path, *, lib: Path, packages: tuple[str, ...]) -> set[Path]:
    """Files that importing every module of `packages` loads; fails if a module cannot be imported."""
    command: list[str | Path] = [python, "-c", IMPORT_ALL, *packages]
    text = run(command, env=environment(path=lib), way_out="An installed package cannot be imported.")
    return {Path(file) for file in json.loads(text)}


def trim(lib: Path, *, image: Image, used: set[Path]) -> None:
    """Remove what no container uses: other nodegauge packages, build inputs, tests, generated API modules."""
    for path in sorted(lib.glob("nodegauge_*")):
        if path.name not in image.packages:
            shutil.rmtree(path)
    for path in (path for pattern in image.left_out for path in lib.glob(pattern)):
        path.unlink()
    for folder in GENERATED:
        for path in (lib / folder).glob("*.py"):
            if path not in used:
                path.unlink()
    for path in sorted(lib.rglob("*"), reverse=True):
        if path.is_dir() and (path.name in TESTS or path.name == "__pycache__"):
            if not any(file.is_relative_to(path) for file in used):
                shutil.rmtree(path)
        elif path.suffix in NOT_NEEDED and path.is_file():
            path.unlink()
    # They contain this machine's paths and times, and an outdated list of files.
    for path in [*lib.glob("*.dist-info/direct_url.json"), *lib.glob("*.dist-info/RECORD")]:
        path.unlink()


def compile_all(python: Path, folder: Path, *, root: Path) -> None:
    """Compile `folder` to bytecode with its path in the image (relative to `root`).

    The bytecode is valid regardless of timestamps and never checked again: an image does not change.
    """
    modes = ["--invalidation-mode", "unchecked-hash", "-q", "-s", str(root), "-p", "/"]
    run([python, "-m", "compileall", *modes, folder], env=environment(), way_out="A module does not compile.")


def install(image: Image, *, root: Path, python: Path, built: Path) -> None:
    """Install the project below `root`/opt/nodegauge with `python`, the image's own interpreter, from what
    `wheel` returned."""
    lib = root / PREFIX / "lib"
    lib.mkdir(parents=True)
    work = built.parents[1]
    fixed = ["--only-binary", ":all:", "--constraint", CONSTRAINTS]
    wanted = f"./{built.relative_to(work)}[{image.extra}]"
    pip(python, "install", "--target", lib, *fixed, wanted, folder=work)
    shutil.rmtree(lib / "bin", ignore_errors=True)
    trim(lib, image=image, used=loaded(python, lib=lib, packages=image.packages))
    compile_all(python, lib, root=root)
    loaded(python, lib=lib, packages=image.packages)
    if image.command:
        command = root / PREFIX / "bin" / "nodegauge"
        command.parent.mkdir()
        command.write_text(COMMAND.format(package=image.command), encoding="utf-8")
        command.chmod(0o755)
