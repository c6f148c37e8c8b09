"""What the archive holds, and the zip file with it: the same inputs give the same bytes.

`new/` has our packages as they are, `old/` the same for Pythons older than 3.11, `pure/` those of others, and
`cpXY-MACHINE/` msgspec for one Python and machine, and `nccl-cpXY-MACHINE/` NCCL if asked for.  `host/` has
the archive's own programs.  Tables are JSON in there: nothing on a host reads YAML fast.
"""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import old_python
import wheels

ROOT = wheels.ROOT
HOST = Path(__file__).with_name("host")
PACKAGES = {
    "nodegauge_contract": ROOT / "probes/src/nodegauge_contract",
    "nodegauge_probes": ROOT / "probes/src/nodegauge_probes",
    "nodegauge_judge": ROOT / "operator/src/nodegauge_judge",
    "nodegauge_bmc": ROOT / "operator/src/nodegauge_bmc",
    "nodegauge_operator": ROOT / "operator/src/nodegauge_operator",
    "nodegauge_cli": ROOT / "operator/src/nodegauge_cli",
}
LEFT_OUT = {
    "nodegauge_operator": ("handlers", "kube", "reader", "reconcile", "__main__", "http_server", "settings"),
    "nodegauge_cli": (
        *("__main__", "apply", "check", "cleanup", "cluster", "completion", "diff", "diff_facts", "explain"),
        *("explanation", "fleet", "history", "node", "nodes", "override", "pause", "pod_fit", "run"),
        *("page/command", "page/fleet", "page/notices", "status", "ticket", "waits", "watch", "why", "zero"),
    ),
}
"""Parts of our packages that need a cluster, or for which the archive has commands of its own."""
TYPES = (".py", ".yaml", ".css", ".html", ".js", ".txt")
"""Source, tables, and what the page is made of."""
OLDEST = {"nodegauge_contract": (3, 9), "nodegauge_probes": (3, 9)}
OLDEST_OTHERS = (3, 10)
NEW_ONLY = {"nodegauge_bmc"}
"""Needs asyncio.timeout, so Python 3.11."""
SHARED = ("yaml", "pynvml.py", "click")
"""Of the pure packages' wheels."""
FOR_COMPILING = (".h", ".hpp", ".cuh", ".pxd", ".pyx", ".pyi", ".a", "/RECORD")
EPOCH = (1980, 1, 1, 0, 0, 0)
SHEBANG = b"#!/usr/bin/env python3\n"
VERSION = "@VERSION@"


def version() -> str:
    """The project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


def build(out: Path, *, cache: Path, nccl: tuple[str, str] | None = None) -> None:
    """Write the archive to `out`, with NCCL for one Python and machine if asked.  Raises `BuildError`."""
    files = {
        "__main__.py": _program("boot.py"),
        "pure/nodegauge_host.py": _program("commands.py"),
        f"old/{old_python.MODULE}.py": _program("older.py"),
    }
    pure = wheels.pure(cache)
    for package, folder in PACKAGES.items():
        ours = _as_json(_ours(package, folder), pure)
        files |= {f"new/{package}/{path}": data for path, data in ours.items()}
        if package not in NEW_ONLY:
            files |= {f"old/{package}/{path}": _older(package, path, data) for path, data in ours.items()}
    for wheel in pure:
        files |= {f"pure/{path}": data for path, data in of_wheel(wheel, SHARED).items()}
    for one in wheels.compiled(cache):
        files |= {f"{one.tag}/{path}": data for path, data in of_wheel(one.wheel, ("msgspec",)).items()}
    if nccl is not None:
        python, machine = nccl
        for wheel in wheels.nccl(cache, python=python, machine=machine):
            tag = f"cp{python.replace('.', '')}-{machine}"
            files |= {f"nccl-{tag}/{path}": data for path, data in _for_running(wheel).items()}
    _write(out, files)


def _program(name: str) -> bytes:
    return (HOST / name).read_text(encoding="utf-8").replace(VERSION, version()).encode()


def _ours(package: str, folder: Path) -> dict[str, bytes]:
    """Files of one of our packages by their path in it."""
    left_out = LEFT_OUT.get(package, ())
    paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.suffix in TYPES}
    return {
        inside.as_posix(): path.read_bytes()
        for inside, path in paths.items()
        if not {inside.parts[0].removesuffix(".py"), inside.with_suffix("").as_posix()} & {*left_out}
        and "__pycache__" not in inside.parts
    }


def _as_json(files: dict[str, bytes], pure: list[Path]) -> dict[str, bytes]:
    """The files with tables as JSON; read by PyYAML of its wheel, as whoever builds need not have it."""
    sys.path[:0] = (str(wheel) for wheel in pure)
    try:
        import yaml
    finally:
        del sys.path[: len(pure)]
    tables = {path: yaml.safe_load(data) for path, data in files.items() if path.endswith(".yaml")}
    return files | {path: json.dumps(table).encode() for path, table in tables.items()}


def _older(package: str, path: str, data: bytes) -> bytes:
    """The file for older Pythons."""
    if not path.endswith(".py"):
        return data
    oldest = OLDEST.get(package, OLDEST_OTHERS)
    return old_python.translated(data.decode(), name=f"{package}/{path}", oldest=oldest).encode()


def of_wheel(wheel: Path, roots: tuple[str, ...]) -> dict[str, bytes]:
    """Source and libraries below these roots of a wheel; libraries only of a package that is compiled."""
    types = (".py", ".so") if "msgspec" in roots else (".py",)
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if PurePosixPath(name).parts[0] in roots]
        return {name: packed.read(name) for name in names if name.endswith(types)}


def _for_running(wheel: Path) -> dict[str, bytes]:
    """All of a wheel but what is for compiling and testing."""
    with zipfile.ZipFile(wheel) as packed:
        return {
            name: packed.read(name)
            for name in packed.namelist()
            if not name.endswith(("/", *FOR_COMPILING)) and "tests" not in PurePosixPath(name).parts
        }


def _write(out: Path, files: dict[str, bytes]) -> None:
    """The zip file, complete or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    with partial.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, date_time=EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                # of NCCL's half gigabyte the best compression saves little more than the fastest
                packed.writestr(entry, files[name], compresslevel=1 if name.startswith("nccl-") else 9)
    partial.chmod(0o755)
    partial.replace(out)
