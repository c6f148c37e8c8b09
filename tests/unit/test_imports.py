"""The import contracts of pyproject.toml hold for the code, and each of them can break.

A contract that nothing can break guards nothing: so a small made-up tree, sound at first, gets one forbidden
import at a time, and import-linter must name exactly the contract that forbids it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]

LAYERED = {
    f"{contract['containers'][0]}/{module.strip()}.py": ""
    for contract in CONTRACTS["contracts"]
    if contract["type"] == "layers"
    for layer in contract["layers"]
    for module in re.split("[|:]", layer)
}
"""Every module that a list of layers names must be there."""
SOUND = LAYERED | {
    "nodegauge_contract/__init__.py": "import msgspec",
    "nodegauge_probes/__init__.py": "",
    "nodegauge_probes/cli.py": "from nodegauge_probes import health, page, runner, settings",
    "nodegauge_probes/runner.py": "from nodegauge_probes import nvml",
    "nodegauge_probes/health.py": "from nodegauge_probes import collectors, session",
    "nodegauge_probes/session.py": "from nodegauge_probes import host",
    "nodegauge_probes/collectors.py": "from nodegauge_probes import host",
    "nodegauge_probes/host.py": "from nodegauge_probes import result_builder",
    "nodegauge_probes/result_builder.py": "from nodegauge_probes import nvml",
    "nodegauge_probes/nccl/__init__.py": "",
    "nodegauge_probes/nccl/engine_nccl4py.py": "import cuda\nimport nccl",
    "nodegauge_probes/nvml/__init__.py": "",
    "nodegauge_probes/nvml/library.py": "import pynvml",
    "nodegauge_judge/__init__.py": "import nodegauge_contract",
    "nodegauge_operator/__init__.py": "",
    "nodegauge_operator/__main__.py": "from nodegauge_operator import handlers",
    "nodegauge_operator/handlers.py": "import kopf\nfrom nodegauge_operator import metrics, reconcile",
    "nodegauge_operator/handlers/app.py": "from nodegauge_operator import metrics",
    "nodegauge_operator/logs.py": "import logging",
    "nodegauge_operator/reconcile.py": "from nodegauge_operator import kube, metrics, settings",
    "nodegauge_operator/settings.py": "from nodegauge_operator import api",
    "nodegauge_operator/kube.py": "import kubernetes\nfrom nodegauge_operator import core",
    "nodegauge_operator/core.py": "import nodegauge_judge\nfrom nodegauge_operator import api",
    "nodegauge_operator/api.py": "from nodegauge_operator import names",
    "nodegauge_operator/metrics.py": "",
    "nodegauge_operator/names.py": "",
    "nodegauge_cli/__init__.py": "from nodegauge_operator import kube\nimport nodegauge_probes",
}

for package in ("nccl", "nvml"):
    del SOUND[f"nodegauge_probes/{package}.py"]

OPERATOR_LAYERS = "The operator's layers import downwards only"
PROBE_LAYERS = "The probes' layers import downwards only"
ENGINE = "nccl4py and CUDA stay in the engine that is named after it"
PURE = "Core, judge and contract are pure"
CLI = "The command line has no handlers and no kopf"
VIOLATIONS = [
    (OPERATOR_LAYERS, "nodegauge_operator/core.py", "from nodegauge_operator import kube"),
    (OPERATOR_LAYERS, "nodegauge_operator/kube.py", "from nodegauge_operator import reconcile"),
    (OPERATOR_LAYERS, "nodegauge_operator/reconcile.py", "from nodegauge_operator import handlers"),
    (OPERATOR_LAYERS, "nodegauge_operator/api.py", "from nodegauge_operator import core"),
    (OPERATOR_LAYERS, "nodegauge_operator/a_new_module.py", ""),
    (PROBE_LAYERS, "nodegauge_probes/collectors.py", "from nodegauge_probes import health"),
    (PROBE_LAYERS, "nodegauge_probes/a_new_module.py", ""),
    (PROBE_LAYERS, "nodegauge_probes/nvml/library.py", "from nodegauge_probes import health"),
    ("kopf stays in the operator's handlers", "nodegauge_operator/reconcile.py", "import kopf"),
    ("kopf stays in the operator's handlers", "nodegauge_operator/__main__.py", "from kopf import run"),
    ("The kubernetes client stays in the operator's kube", "nodegauge_cli/cleanup.py", "import kubernetes"),
    ("pynvml stays behind the probes' nvml module", "nodegauge_probes/health.py", "import pynvml"),
    (ENGINE, "nodegauge_probes/nccl/__init__.py", "from nccl import core"),
    (ENGINE, "nodegauge_probes/health.py", "from cuda import core"),
    (PURE, "nodegauge_operator/core.py", "import time"),
    (PURE, "nodegauge_judge/verdict.py", "from os import environ"),
    (PURE, "nodegauge_contract/codec.py", "import logging"),
    (PURE, "nodegauge_operator/api.py", "import random"),
    ("The contract imports nothing of ours", "nodegauge_contract/codec.py", "import nodegauge_judge"),
    (
        "The judge imports the contract alone",
        "nodegauge_judge/verdict.py",
        "from nodegauge_operator import names",
    ),
    ("The probes import the contract alone", "nodegauge_probes/health.py", "import nodegauge_judge"),
    (
        "The operator imports neither probes nor command line",
        "nodegauge_operator/kube.py",
        "import nodegauge_probes",
    ),
    (CLI, "nodegauge_cli/cleanup.py", "from nodegauge_operator import handlers"),
    (CLI, "nodegauge_cli/cleanup.py", "from nodegauge_operator import __main__"),
]


def lint(*, sources: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with the contracts of `folder/pyproject.toml` over the packages in `sources`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(source) for source in sources)}
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def broken(output: str) -> set[str]:
    """The names of the contracts that import-linter calls broken."""
    return set(re.findall(r"^(.+) BROKEN", output, re.MULTILINE))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A made-up tree with our package names in which every contract is kept."""
    for path, source in SOUND.items():
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text(f"{source}\n", encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_code_keeps_every_contract() -> None:
    """The project's own packages keep every contract."""
    done = lint(sources=[ROOT / "operator/src", ROOT / "probes/src"], folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CONTRACTS['contracts'])} kept, 0 broken" in done.stdout


def test_the_made_up_tree_is_sound(tree: Path) -> None:
    """Without a violation the made-up tree keeps every contract, so what breaks below is the violation."""
    done = lint(sources=[tree], folder=tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("contract", "path", "line"), VIOLATIONS)
def test_a_forbidden_import_breaks_its_contract(tree: Path, contract: str, path: str, line: str) -> None:
    """One forbidden import breaks the contract that forbids it."""
    with (tree / path).open("a", encoding="utf-8") as module:
        module.write(f"{line}\n")
    done = lint(sources=[tree], folder=tree)
    assert done.returncode != 0
    assert contract in broken(done.stdout), done.stdout + done.stderr


def test_every_contract_is_broken_once() -> None:
    """No contract is without a violation above that breaks it."""
    assert {name for name, _, _ in VIOLATIONS} == {contract["name"] for contract in CONTRACTS["contracts"]}
