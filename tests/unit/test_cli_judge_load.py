"""`nodegauge judge FILE` of a load run: the page that a person reads, JSON, and exit codes for scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nodegauge_cli.__main__ import main
from nodegauge_contract import Result as Document
from nodegauge_contract import Unavailable, encode
from support.load_results import everywhere, loaded, spoilt


def judge(tmp_path: Path, document: Document, *arguments: str) -> Result:
    """The command's result for this document."""
    path = tmp_path / "load.json"
    path.write_bytes(encode(document))
    return CliRunner().invoke(main, ["judge", str(path), *arguments])


def test_the_page_names_the_gpu_and_lists_all_of_them(tmp_path: Path) -> None:
    """Verdict, taint, serial number, what to do, and a line for each GPU; in 80 columns."""
    result = judge(tmp_path, spoilt(mismatches=2))
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("FAIL     8x NVIDIA H100 80GB HBM3: a GPU computes wrong results: GPU 3")
    assert "unhealthy=corruption after this run (load-corruption)" in result.output
    assert "serial 1654922000003" in result.output
    assert "`kubectl cordon node-1`" in result.output
    table = [line.split() for line in lines[-8:]]
    assert [line[0] for line in table] == [str(index) for index in range(8)]
    assert [line[-1] for line in table] == ["0", "0", "0", "2", "0", "0", "0", "0"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("document", "word", "code"),
    [
        (loaded(), "PASS", 0),
        (everywhere(steady_mw=300_000), "NO-LOAD", 3),
        (loaded(skipped="busy", message="a job runs on GPU 1"), "SKIPPED", 3),
        (everywhere(tflops=Unavailable("x"), steady_c=Unavailable("x"), max_c=Unavailable("x")), "PASS", 0),
    ],
)
def test_scripts_can_rely_on_word_and_exit_code(
    tmp_path: Path, document: Document, word: str, code: int
) -> None:
    """The words are those of the verdicts; missing values are dashes."""
    result = judge(tmp_path, document)
    assert result.output.startswith(word)
    assert result.exit_code == code


def test_a_policy_decides_what_is_slow_and_an_earlier_run_does_not(tmp_path: Path) -> None:
    """Thresholds count; load runs have no history."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: nodegauge.dev/v1alpha1\nkind: GPUValidationPolicy\nmetadata: {name: a}\n"
        "spec: {nodeSelector: {}, thresholds: {loadSlowWarn: 0.99}}\n"
    )
    slow = spoilt(tflops=600.0)
    assert judge(tmp_path, slow).output.startswith("PASS")
    assert judge(tmp_path, slow, "--policy", str(policy)).output.startswith("WARN")
    assert judge(tmp_path, slow, "--before", str(policy)).exit_code == 2
