"""`nodegauge judge` on logs of nccl-tests, on load runs, and with an inventory of cables."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import support.results as made
from nodegauge_contract import Power
from nodegauge_judge.power_inventory import PowerInventory
from support.judge_command import FIXTURES, flat, judge, written
from support.load_results import spoilt
from support.nccltests import FOOT, HEAD, PROCESS, SIZES, devices, row, table, tagged

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
SLOW_AT_8_GIB = [row(2**30, 4160.0, 4160.0, ranks=8), row(2**33, 334_053.0, 334_053.0, ranks=8)]
NAMED = "# Collective test starting: {}_perf\n"
TIMEOUT = "box: Test timeout (600s) common.cu:412"
TWO_NODES = devices(*range(8)) + devices(*range(8, 16), host="other")
NVLS = "".join(
    f"box:1:2 [0] NCCL INFO AllReduce: {size} Bytes -> Algo NVLS proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n"
    for size in SIZES
)


RINGS, OFF = 361.0, "NCCL_NVLS_ENABLE"
INFO = "box:1:2 [0] NCCL INFO "


def run(gbps: float = 380.0, *, gpu: str = H100, ranks: int = 8, host: str = "box", **more: Any) -> str:
    """A whole log of one run."""
    return devices(*range(ranks), gpu=gpu, host=host) + table(ranks, gbps=gbps, **more)


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
    published = "stas00/ml-engineering" in output or (ranks == 8 and gpu.startswith("NVIDIA H"))
    assert ("names the GPU, but not its links" in output) is (code != 3 and not published)


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


@pytest.mark.parametrize(
    ("text", "code", "parts"),
    [
        (run() + run(45), 1, ("FAIL run 2 of 2: all_reduce on box, line 23", "all 1 pass, 1 fail")),
        (run() + run(host="other") + run(), 0, ("PASS run 1 of 3", "run 2 of 3: all_reduce on other")),
        (run() + run(20, host="other"), 1, ("FAIL run 2 of 2: all_reduce on other",)),
        (run() + run(340, collective="all_gather"), 0, ("run 2 of 2: all_gather on box", "all 2 pass")),
        (
            run(wrong="3") + TWO_NODES + table(16),
            1,
            ("FAIL run 1 of 2", "run 2 of 2: all_reduce on box, other"),
        ),
        (
            run() + run().partition(HEAD)[0],
            3,
            ("UNKNOWN run 2 of 2", "Not judged: no table: expected a line"),
        ),
        (
            tagged(("[1,0]<stdout>:", run()), ("[1,1]<stdout>:", run(20, host="other"))),
            1,
            ("FAIL run 2 of 2: all_reduce on other", "1 pass, 1 fail"),
        ),
    ],
    ids=range(7),
)
def test_each_run_of_a_log_is_judged_and_the_worst_counts(
    text: str, code: int, parts: tuple[str, ...]
) -> None:
    exit_code, output = judged(text)
    assert (exit_code, [part for part in parts if part not in output]) == (code, []), output


def test_several_runs_as_json_have_the_worst_verdict_and_a_judgement_each() -> None:
    outcome = judge("-", "--format", "json", stdin=run() + run(45) + run().partition(HEAD)[0])
    document = json.loads(outcome.output)
    verdicts = [each["verdict"] for each in document["judgements"]]
    assert (outcome.exit_code, document["verdict"], verdicts) == (1, "fail", ["pass", "fail", "unknown"])
    assert "no table" in document["judgements"][2]["error"]


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ((FIXTURES / "nccl-tests_allreduce_h200x8_8gib.log").read_text(), 0, "PASS 8x NVIDIA H200"),
        (run(482, sizes=(2**34,)), 0, "all_reduce 482 GB/s"),
        (run(190, gpu=A100, sizes=(2**33,)), 0, "PASS"),
        (run(835, gpu="NVIDIA B200", sizes=(2**33,)), 0, "PASS"),
        (run(700, gpu="NVIDIA B200", sizes=(2**33,)), 0, "the floor with NVLS is 754 GB/s"),
        (run(60, sizes=(2**33,)), 1, "all_reduce at 8 GiB reaches 60 GB/s"),
        (run(57.9, gpu="NVIDIA A100 80GB PCIe", ranks=2, sizes=(2**34,)), 1, "the floor is 193 GB/s"),
        (run(195, gpu="NVIDIA A100 80GB PCIe", ranks=2, sizes=(2**34,)), 0, "PASS"),
        (run(20, gpu="NVIDIA A100 80GB PCIe", ranks=2, sizes=(2**34,)), 3, "whether NVLinks join them"),
        (run(100, sizes=(2**27,)), 3, "Nothing was measured at 256 MiB or more"),
        (
            devices(*range(8)) + "\n".join([HEAD, *SLOW_AT_8_GIB, FOOT]),
            1,
            "all_reduce at 8 GiB reaches 45 GB/s",
        ),
    ],
    ids=range(11),
)
def test_sizes_above_1_gib_alone_are_graded(text: str, code: int, part: str) -> None:
    """A log has no label, so no size is missing."""
    exit_code, output = judged(text)
    assert (exit_code, part in output, "nccl-incomplete" in output) == (code, True, False), output


@pytest.mark.parametrize(
    ("before", "gbps", "part"),
    [
        (NVLS.replace("NVLS", "RING"), RINGS, "NCCL chose RING"),
        (NVLS.replace("NVLS proto", "Tree proto"), 380, "NCCL chose TREE"),
        (
            f"{INFO}24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels\n",
            380,
            "no NVLS channels",
        ),
        (
            f"{INFO}NVLS multicast support is not available on dev 3\n",
            380,
            "multicast support is not available",
        ),
        (f"{INFO}{OFF} set by environment to 0.\n", 380, "disables it"),
        (f"$ mpirun -np 1 -x {OFF}=0 ./build/all_reduce_perf -g 8\n", 380, "disables it"),
        (f"+ export {OFF}=0\n", 380, "disables it"),
        (f"    {OFF}: '0'\n", 380, "disables it"),
        (f"{INFO}NCCL_ALGO set by environment to Ring\n", 380, "disables it"),
        ("", RINGS, "as much as rings do"),
        ("", 370.0, "as much as rings do"),
    ],
    ids=range(11),
)
def test_a_log_without_nvls_warns_with_what_nccl_logged(before: str, gbps: float, part: str) -> None:
    code, output = judged(before + run(gbps))
    assert (code, output[:4], part in output) == (0, "WARN", True), output
    assert "nvls-unused" in output


@pytest.mark.parametrize(
    "text",
    [
        NVLS + run(462),
        f"{INFO}{OFF} set by environment to 1.\n" + run(462),
        f"{INFO}NVLS multicast support is available on dev 3\n" + run(476, sizes=(2**33,)),
        run(660, gpu="NVIDIA B200"),
        f"{INFO}{OFF} set by environment to 0.\n" + run(359, gpu=H100, ranks=4),
    ],
    ids=range(5),
)
def test_a_log_with_nvls_or_where_there_is_none_does_not_warn(text: str) -> None:
    assert "nvls-unused" not in judged(text)[1]


def test_what_nccl_logged_about_p2p_reaches_the_floors() -> None:
    """A run through the host on purpose accuses no link."""
    code, output = judged(f"{INFO}NCCL_P2P_DISABLE set by environment to 1.\n" + run(28))
    assert (code, "through the host, so there is no floor" in output) == (3, True), output


@pytest.mark.parametrize(
    ("text", "code", "parts"),
    [
        (
            (FIXTURES / "nccl-tests_alltoall-sendrecv_h100x16.log").read_text(),
            3,
            (
                "run 1 of 2: alltoall on cnode4-006, cnode4-007",
                "run 2 of 2: sendrecv on",
                "2 nodes took part",
            ),
        ),
        (NAMED.format("sendrecv") + run(28, ranks=2), 3, ("sendrecv is not graded", "sendrecv 1 GiB")),
        (NAMED.format("alltoall") + run(40, collective="all_gather"), 3, ("alltoall is not graded",)),
        (NAMED.format("alltoall") + run(40, collective="all_gather", wrong="2"), 1, ("alltoall at 1 GiB",)),
        (NAMED.format("sendrecv") + run(ranks=2).partition("1048576")[0], 1, ("hung while measuring",)),
    ],
    ids=range(5),
)
def test_other_collectives_are_named_and_judged_for_faults_alone(
    text: str, code: int, parts: tuple[str, ...]
) -> None:
    exit_code, output = judged(text)
    assert (exit_code, [part for part in parts if part not in output]) == (code, []), output
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
    [("gpus: [{gpu: 0000:01:00.0}]", "gpus[0].gpu"), ("gpus: []\n---\ngpus: []", "not readable as YAML")],
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
