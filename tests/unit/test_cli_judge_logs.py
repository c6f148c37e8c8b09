"""`nodegauge judge` on logs of nccl-tests: what is graded by which floor, and what fails without one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from nodegauge_cli.__main__ import main
from support.nccltests import FOOT, HEAD, PROCESS, SIZES, devices, row, table

H100, A100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA B200"
TWO_NODES = devices(*range(8)) + devices(*range(8, 16), host="other")
NVLS = "".join(
    f"box:1:2 [0] NCCL INFO AllReduce: {size} Bytes -> Algo NVLS proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n"
    for size in SIZES
)


def judged(text: str, *arguments: str) -> tuple[int, str]:
    """The exit code, and the output on one line."""
    outcome = CliRunner().invoke(main, ["judge", "-", *arguments], input=text)
    return outcome.exit_code, " ".join(outcome.output.split())


@pytest.mark.parametrize(
    ("gpu", "ranks", "collective", "gbps", "code", "verdict"),
    [
        (H100, 8, "all_reduce", 4.2, 1, "FAIL"),
        (H100, 8, "all_reduce", 200, 0, "WARN"),
        (H100, 8, "all_reduce", 380, 0, "PASS"),
        (H100, 4, "all_reduce", 20, 1, "FAIL"),
        (H100, 8, "reduce_scatter", 20, 1, "FAIL"),
        ("NVIDIA H200", 8, "all_gather", 340, 0, "PASS"),
        (A100, 8, "all_reduce", 60, 1, "FAIL"),
        (A100, 2, "all_reduce", 25, 1, "FAIL"),
        (A100, 2, "all_reduce", 70, 0, "PASS"),
        (B200, 8, "all_reduce", 250, 1, "FAIL"),
        ("Tesla V100-SXM2-32GB", 8, "all_reduce", 40, 1, "FAIL"),
        ("Tesla V100-SXM2-32GB", 4, "all_reduce", 40, 3, "UNKNOWN"),
        ("NVIDIA H100 PCIe", 2, "all_reduce", 20, 3, "UNKNOWN"),
        ("NVIDIA H200 NVL", 2, "all_reduce", 20, 3, "UNKNOWN"),
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
    """380 GB/s are good for rings, and too little for NVLS."""
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
        (
            TWO_NODES + table(16).replace(FOOT, "box: Test timeout (600s) common.cu:412"),
            1,
            "hung while measuring: Test timeout (600s) common.cu:412",
        ),
        (
            TWO_NODES
            + table(16).replace(FOOT, "box: Test NCCL failure common.cu:1005 'remote process exited'"),
            3,
            "nccl-failed",
        ),
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
    """Then a log without a whole list is graded like any other."""
    assert judged(devices(0, 1) + table(8, gbps=4), "--ranks", "8")[0] == 1


def test_every_row_with_wrong_or_unchecked_data_is_marked() -> None:
    """Also the smallest of more sizes than a result holds; `-c 0` checks none."""
    rows = [row(4 * n, 100.0, 50.0, wrong="2" if n % 40 == 1 else "0") for n in range(1, 101)]
    code, output = judged(devices(0, 1) + "\n".join([HEAD, *rows, FOOT]))
    assert (code, output.count("2 wrong")) == (1, 1 + 3), output
    unchecked = judged(devices(*range(8)) + table(8, gbps=380, wrong="N/A"))[1]
    assert unchecked.count("not checked") == len(SIZES)
    assert "not checked" not in judged(devices(*range(8)) + table(8, gbps=380))[1]


def test_wrong_data_that_only_the_summary_counts_is_refused_with_its_line() -> None:
    """The rows that had it were left out of the log."""
    text = PROCESS + devices(*range(8)) + table(8).replace("0 OK", "12 FAILED")
    code, output = judged(text)
    assert (code, "line 23: 12 values are out of bounds, but no row has any" in output) == (2, True), output
