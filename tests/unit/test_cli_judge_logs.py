"""`nodegauge judge` on logs of nccl-tests, on load runs, and with an inventory of cables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import support.results as made
from nodegauge_contract import Power
from nodegauge_judge.power_inventory import PowerInventory
from support.judge_command import FIXTURES, flat, judge, written
from support.load_results import spoilt
from support.nccltests import FOOT, HEAD, PROCESS, SIZES, devices, row, table

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
TIMEOUT = "box: Test timeout (600s) common.cu:412"
TWO_NODES = devices(*range(8)) + devices(*range(8, 16), host="other")
NVLS = "".join(
    f"box:1:2 [0] NCCL INFO AllReduce: {size} Bytes -> Algo NVLS proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n"
    for size in SIZES
)


def judged(text: str, *arguments: str) -> tuple[int, str]:
    outcome = judge("-", *arguments, stdin=text)
    return outcome.exit_code, flat(outcome)


@pytest.mark.parametrize(
    ("gpu", "ranks", "collective", "gbps", "code", "verdict"),
    [
        (H100, 8, "all_reduce", 4.2, 1, "FAIL"),
        (H100, 8, "all_reduce", 200, 0, "WARN"),
        (H100, 8, "all_reduce", 380, 0, "PASS"),
        ("NVIDIA H200", 8, "all_gather", 340, 0, "PASS"),
        (A100, 2, "all_reduce", 25, 1, "FAIL"),
        (A100, 2, "all_reduce", 70, 0, "PASS"),
        ("Tesla V100-SXM2-32GB", 8, "all_reduce", 40, 1, "FAIL"),
        ("Tesla V100-SXM2-32GB", 4, "all_reduce", 40, 3, "UNKNOWN"),
        ("NVIDIA H100 PCIe", 2, "all_reduce", 20, 3, "UNKNOWN"),
        ("NVIDIA GeForce RTX 4090", 8, "all_reduce", 4.2, 3, "UNKNOWN"),
    ],
)
def test_a_log_is_graded_by_the_lowest_floor_that_could_apply(
    gpu: str, ranks: int, collective: str, gbps: float, code: int, verdict: str
) -> None:
    """It names neither links nor, without TUNING, the algorithm; without any floor it proves nothing."""
    text = devices(*range(ranks), gpu=gpu) + table(ranks, collective=collective, gbps=gbps)
    exit_code, output = judged(text)
    assert (exit_code, output.split()[0]) == (code, verdict), output
    published = "stas00/ml-engineering" in output
    assert ("names the GPU, but not its links" in output) is (code != 3 and not published)


def test_the_algorithm_that_nccl_logged_chooses_the_floor() -> None:
    text = devices(*range(8)) + table(8, gbps=380)
    assert judged(text)[1].startswith("PASS")
    code, output = judged(devices(*range(8)) + NVLS + table(8, gbps=380))
    assert (code, output[:4]) == (0, "WARN")
    assert "the floor is 416 GB/s: 0.9 of 462 GB/s" in output


def test_a_size_whose_floor_depends_on_an_unknown_algorithm_is_not_graded() -> None:
    """256 MiB is published with NVLS alone, and rings may be slower there."""
    text = devices(*range(8)) + table(8, gbps=300, sizes=(2**28,))
    code, output = judged(text)
    assert (code, output.split()[0]) == (3, "UNKNOWN")
    assert "depend on whether NVLS ran" in output


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (TWO_NODES + table(16, gbps=50), 3, "UNKNOWN not-gradable: 2 nodes"),
        (TWO_NODES + table(16, gbps=50, wrong="3"), 1, "a collective returned wrong data"),
        (TWO_NODES + HEAD + "\n", 1, "hung while measuring: no row follows the header"),
        (TWO_NODES + table(16).replace(FOOT, TIMEOUT), 1, f"hung while measuring: {TIMEOUT[5:]}"),
        (TWO_NODES + table(16).replace(FOOT, "box: Test NCCL failure common.cu:1005 'x'"), 3, "nccl-failed"),
        (table(16, wrong="3"), 1, "on an unknown number of nodes: a collective returned wrong data"),
        (devices(0, 1) + table(8), 3, "judge the log with `--ranks 8`"),
    ],
)
def test_faults_count_on_any_number_of_nodes(text: str, code: int, part: str) -> None:
    """Their bandwidth is not graded, and no single node gets a taint for them."""
    exit_code, output = judged(text)
    assert (exit_code, part in output) == (code, True), output
    assert "taint unhealthy" not in output
    assert "busbw-low" not in output


def test_the_given_ranks_are_of_one_node() -> None:
    assert judged(devices(0, 1) + table(8, gbps=4), "--ranks", "8")[0] == 1


def test_every_row_with_wrong_or_unchecked_data_is_marked() -> None:
    rows = [row(4 * n, 100.0, 50.0, wrong="2" if n % 40 == 1 else "0") for n in range(1, 101)]
    code, output = judged(devices(0, 1) + "\n".join([HEAD, *rows, FOOT]))
    assert (code, output.count("2 wrong")) == (1, 1 + 3), output
    unchecked = judged(devices(*range(8)) + table(8, gbps=380, wrong="N/A"))[1]
    assert unchecked.count("not checked") == len(SIZES)
    assert "not checked" not in judged(devices(*range(8)) + table(8, gbps=380))[1]


def test_wrong_data_that_only_the_summary_counts_is_refused_with_its_line() -> None:
    text = PROCESS + devices(*range(8)) + table(8).replace("0 OK", "12 FAILED")
    code, output = judged(text)
    assert (code, "line 23: 12 values are out of bounds, but no row has any" in output) == (2, True), output


def test_the_page_names_the_gpu_and_lists_all_of_them() -> None:
    result = judge("-", stdin=spoilt(mismatches=2))
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


def test_a_policy_decides_what_is_slow_and_an_earlier_run_does_not(tmp_path: Path) -> None:
    text = "kind: GPUValidationPolicy\nspec: {nodeSelector: {}, thresholds: {loadSlowWarn: 0.99}}\n"
    policy, slow = written(tmp_path / "policy.yaml", text), spoilt(tflops=600.0)
    assert judge("-", stdin=slow).output.startswith("PASS")
    assert judge("-", "--policy", policy, stdin=slow).output.startswith("WARN")
    assert judge("-", "--before", policy, stdin=slow).exit_code == 2


BUSY = made.with_gpu(made.phb(), 1, power=Power(enforced_limit_mw=450_000, default_limit_mw=450_000))
CABLES = "gpus: [{gpu: '*4090*', sockets: [{connector: 12VHPWR, watts: 300}]}]\n"
POLICY = f"kind: GPUValidationPolicy\nspec:\n  nodeSelector: {{}}\n  powerInventory:\n    {CABLES}"


def test_a_file_or_the_policy_gives_the_cables(tmp_path: Path) -> None:
    assert "cable-watts" not in judge("-", stdin=BUSY).output
    cables = written(tmp_path / "cables.yaml", CABLES)
    for option in (("--power-inventory", cables), ("--policy", written(tmp_path / "policy.yaml", POLICY))):
        outcome = judge("-", *option, stdin=BUSY)
        assert (outcome.exit_code, outcome.output[:4]) == (0, "WARN")
        assert "`nvidia-smi -pl 375 -i 1`" in flat(outcome)
    enough = written(tmp_path / "enough.yaml", CABLES.replace("300", "450"))
    both = judge("-", "--policy", tmp_path / "policy.yaml", "--power-inventory", enough, stdin=BUSY)
    assert "cable-watts" not in both.output


def test_the_example_of_the_documentation_is_an_inventory() -> None:
    page = (Path(__file__).parents[2] / "docs" / "single-server.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(# cables.yaml\n.*?)```", page, re.DOTALL)
    assert [entry.slot_watts for entry in PowerInventory.of_file(yaml.safe_load(example)).gpus] == [75] * 3


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gpus: [{gpu: 0000:01:00.0}]", "gpus[0].gpu"),
        ("a: [", "not readable as YAML"),
        ("gpus: []\n---\ngpus: []", "not readable as YAML"),
    ],
)
def test_a_bad_inventory_is_named_with_its_field(tmp_path: Path, text: str, part: str) -> None:
    cables = written(tmp_path / "cables.yaml", text)
    outcome = judge("-", "--power-inventory", cables, stdin=BUSY)
    assert (outcome.exit_code, "cables.yaml" in outcome.output, part in outcome.output) == (2, True, True)
    policy = POLICY.replace("300", "500")
    refused = judge("-", "--policy", written(tmp_path / "policy.yaml", policy), stdin=BUSY)
    assert (refused.exit_code, "spec.powerInventory" in refused.output) == (2, True)


def test_an_inventory_is_for_health_results(tmp_path: Path) -> None:
    cables = written(tmp_path / "cables.yaml", CABLES)
    log = FIXTURES / "nccl-tests_allreduce_superbench.log"
    assert judge(log, "--power-inventory", cables).exit_code == 2
