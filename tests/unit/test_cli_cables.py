"""`nodegauge judge FILE --power-inventory`: a workstation's owner compares power limits with the cables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

import support.results as made
from nodegauge_cli.__main__ import main
from nodegauge_contract import Power, encode
from nodegauge_judge.power_inventory import PowerInventory

BUSY = made.with_gpu(made.phb(), 1, power=Power(enforced_limit_mw=450_000, default_limit_mw=450_000))
CABLES = "gpus: [{gpu: '*4090*', sockets: [{connector: 12VHPWR, watts: 300}]}]\n"
POLICY = f"kind: GPUValidationPolicy\nspec:\n  nodeSelector: {{}}\n  powerInventory:\n    {CABLES}"


def judge(*arguments: str | Path, stdin: bytes = encode(BUSY)) -> Result:
    """The command's outcome in this process."""
    return CliRunner().invoke(main, ["judge", *map(str, arguments)], input=stdin)


def written(path: Path, text: str) -> Path:
    """The text in a file."""
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_or_the_policy_gives_the_cables(tmp_path: Path) -> None:
    """Both raise the finding; the file replaces the policy's inventory; without either nothing is said."""
    assert "cable-watts" not in judge("-").output
    cables = written(tmp_path / "cables.yaml", CABLES)
    for option in (("--power-inventory", cables), ("--policy", written(tmp_path / "policy.yaml", POLICY))):
        outcome = judge("-", *option)
        assert (outcome.exit_code, outcome.output[:4]) == (0, "WARN")
        assert "`nvidia-smi -pl 375 -i 1`" in " ".join(outcome.output.split())
    enough = written(tmp_path / "enough.yaml", CABLES.replace("300", "450"))
    both = judge("-", "--policy", tmp_path / "policy.yaml", "--power-inventory", enough)
    assert "cable-watts" not in both.output


def test_the_example_of_the_documentation_is_an_inventory() -> None:
    """The page's file can be copied."""
    page = (Path(__file__).parents[2] / "docs" / "single-server.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(# cables.yaml\n.*?)```", page, re.DOTALL)
    assert [entry.slot_watts for entry in PowerInventory.of_file(yaml.safe_load(example)).gpus] == [75] * 3


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gpus: [{gpu: 0000:01:00.0}]", "gpus[0].gpu"),
        ("gpu: []", "no field gpu"),
        ("a: [", "not readable as YAML"),
        ("gpus: []\n---\ngpus: []", "not readable as YAML"),
        ("supplyWatts: 700", "otherWatts"),
    ],
)
def test_a_bad_inventory_is_named_with_its_field(tmp_path: Path, text: str, part: str) -> None:
    """Exit code 2, file and field in the message; in a policy with the path below spec."""
    outcome = judge("-", "--power-inventory", written(tmp_path / "cables.yaml", text))
    assert (outcome.exit_code, "cables.yaml" in outcome.output, part in outcome.output) == (2, True, True)
    policy = POLICY.replace("300", "500")
    refused = judge("-", "--policy", written(tmp_path / "policy.yaml", policy))
    assert (refused.exit_code, "spec.powerInventory" in refused.output) == (2, True)


def test_an_inventory_is_for_health_results(tmp_path: Path) -> None:
    """For a log of nccl-tests it would say nothing, so it is refused."""
    log = Path(__file__).parents[1] / "fixtures" / "nccl-tests_allreduce_superbench.log"
    cables = written(tmp_path / "cables.yaml", CABLES)
    assert judge(log, "--power-inventory", cables).exit_code == 2
