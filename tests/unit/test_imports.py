"""Each import contract of pyproject.toml can break; `make check` holds them against the code.

A contract that nothing can break guards nothing: a made-up tree of empty modules, in which all of them are
kept, gets the imports that they forbid.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
LAYERS = [
    f"{contract['containers'][0]}.{module.strip()}"
    for contract in CONTRACTS["contracts"]
    if contract["type"] == "layers"
    for layer in contract["layers"]
    for module in re.split("[|:]", layer)
]
"""Every module that a list of layers names must be there."""
MODULES = [*LAYERS, "nodegauge_contract.codec", "nodegauge_judge.verdict", "nodegauge_cli.cleanup"]
ALLOWED, FORBIDDEN = yaml.safe_load(Path(__file__).with_name("imports.yaml").read_text("utf-8")).values()
NOT_IN_A_LAYER = ["nodegauge_operator.a_new_module", "nodegauge_probes.a_new_module"]


def write(tree: Path, module: str, line: str = "") -> None:
    """Add a line to a module, which becomes a package where it has modules of its own."""
    folder = tree.joinpath(*module.split("."))
    for package in reversed([p for p in folder.parents if tree in p.parents]):
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    with path.open("a", encoding="utf-8") as opened:
        opened.write(f"{line}\n")


def lint(tree: Path) -> str:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    ).stdout


def test_every_contract_breaks_by_an_import_that_it_forbids(tmp_path: Path) -> None:
    """Without these imports none is broken; with them all are, and each import is named."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, imported in ALLOWED:
        write(tmp_path, module, f"import {imported}")
    for module in MODULES:
        write(tmp_path, module)
    before = lint(tmp_path)
    assert f"{len(CONTRACTS['contracts'])} kept, 0 broken" in before, before

    for module in NOT_IN_A_LAYER:
        write(tmp_path, module)
    for module, imported in FORBIDDEN:
        write(tmp_path, module, f"import {imported}")
    output = lint(tmp_path)
    broken = set(re.findall(r"^(.+) BROKEN", output, re.MULTILINE))
    assert broken == {contract["name"] for contract in CONTRACTS["contracts"]}, output
    named = re.sub(r"\s+", " ", output)
    assert [f"{a} -> {b}" for a, b in FORBIDDEN if f"{a} -> {b} " not in named] == [], output
    assert [module for module in NOT_IN_A_LAYER if module.rpartition(".")[2] not in named] == [], output
