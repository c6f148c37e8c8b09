"""The install step that both images share: the project with one extra, pinned, trimmed, compiled.

Runs pip with the Python that will run the result, so wheels and markers are chosen for that one.  No library
is compiled from source here, and neither pip nor a compiler is left in what is made.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from images.interpreter import environment
from images.spec import PREFIX, ROOT, Image
from images.steps import BuildFailed, run

NO_PACKAGES = (
    "pip's own words are above. Without a way to a package index, set one up for pip (pip config, or the "
    "variables PIP_INDEX_URL and PIP_CERT) and run this again."
)
CONSTRAINTS = "constraints.txt"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "operator/src", "probes/src")
# What a wheel brings for those who build on it or test it.
NOT_NEEDED = {".c", ".cc", ".h", ".hash", ".pxd", ".pxi", ".pyi", ".pyx"}
TESTS = {"test", "tests"}
# Modules generated from the Kubernetes API, one per type: nearly all of the client's 120 MB.  The operator
# talks through the generic ApiClient in JSON and names none of them; those that an import does load stay.
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
    """pip of this environment, run by `python` in `folder`, which holds constraints.txt.

    The pins reach isolated builds by a variable, which an old pip ignores; it is relative, because pip splits
    it at spaces.
    """
    try:
        import pip as installed
    except ModuleNotFoundError:
        raise BuildFailed(
            f"{sys.executable} has no pip: run `make images`, whose environment has it"
        ) from None
    runner = Path(str(installed.__file__)).with_name("__pip-runner__.py")
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
    env = environment() | {"PIP_BUILD_CONSTRAINT": CONSTRAINTS, "PIP_USER": "0"}
    run([python, runner, *arguments, *quiet], env=env, folder=folder, way_out=NO_PACKAGES)


def wheel(python: Path, *, into: Path) -> Path:
    """The project's own wheel, built from a copy: setuptools writes beside its sources."""
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
    """Fails where the code does not run with what is installed."""
    run([python, "-c", code], env=environment(path=lib), way_out="What is installed does not load.")


def loaded(python: Path, *, lib: Path, packages: tuple[str, ...]) -> set[Path]:
    """Files that are imported when every module of `packages` is: fails when one of them cannot be."""
    command: list[str | Path] = [python, "-c", IMPORT_ALL, *packages]
    text = run(command, env=environment(path=lib), way_out="What is installed does not import.")
    return {Path(file) for file in json.loads(text)}


def trim(lib: Path, *, image: Image, used: set[Path]) -> None:
    """Remove what no container uses: other packages of ours, build inputs, tests, generated API modules."""
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
    # They name this machine's folders and clock, and a list of files that is no longer true.
    for path in [*lib.glob("*.dist-info/direct_url.json"), *lib.glob("*.dist-info/RECORD")]:
        path.unlink()


def compile_all(python: Path, folder: Path, *, root: Path) -> None:
    """Bytecode for `folder`, which lies at the same place below `/` as it does below `root`.

    Valid whatever the time stamps are, and never looked at again: an image does not change.
    """
    modes = ["--invalidation-mode", "unchecked-hash", "-q", "-s", str(root), "-p", "/"]
    run([python, "-m", "compileall", *modes, folder], env=environment(), way_out="A module does not compile.")


def install(image: Image, *, root: Path, python: Path) -> None:
    """The image's part below `root`/opt/nodegauge, made with `python`, the image's own interpreter."""
    lib = root / PREFIX / "lib"
    lib.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copy(ROOT / CONSTRAINTS, work)
        built = wheel(python, into=work)
        fixed = ["--only-binary", ":all:", "--constraint", CONSTRAINTS]
        wanted = f"./{built.relative_to(work)}[{image.extra}]"
        pip(python, "install", "--no-compile", "--target", lib, *fixed, wanted, folder=work)
    shutil.rmtree(lib / "bin", ignore_errors=True)
    trim(lib, image=image, used=loaded(python, lib=lib, packages=image.packages))
    compile_all(python, lib, root=root)
    loaded(python, lib=lib, packages=image.packages)
    if image.command:
        command = root / PREFIX / "bin" / "nodegauge"
        command.parent.mkdir()
        command.write_text(COMMAND.format(package=image.command), encoding="utf-8")
        command.chmod(0o755)
