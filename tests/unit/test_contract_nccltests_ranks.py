"""How many ranks took part in a log of nccl-tests whose list of devices is missing, shortened or cut."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodegauge_contract import NcclResult
from nodegauge_contract.nccl_tests.document import result
from nodegauge_contract.nccl_tests.log import NcclTestsError
from support.nccltests import HEAD, PROCESS, devices, table

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = (FIXTURES / "nccl-tests_allreduce_superbench.log").read_text()
AT_256 = """\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       8388608   float     sum   1464.2   22.92   45.65    N/A   1458.1   23.01   45.84    N/A
   134217728      33554432   float     sum   4263.8   31.48   62.71    N/A   4647.4   28.88   57.53    N/A
   268435456      67108864   float     sum   7946.8   33.78   67.29    N/A   7615.2   35.25   70.22    N/A
  1073741824     268435456   float     sum    29896   35.92   71.55    N/A    29411   36.51   72.73    N/A
"""
"""256 GPUs without a list of devices.  Source: NVIDIA/nccl-tests issue 78 (its last complete rows)."""
AT_24 = f"""\
{HEAD}
[0] 1048576  262144 float sum -1[0] 1626.5  0.64  1.24 0[0] 2302.3  0.46  0.87 0
[0] 8388608 2097152 float sum -1[0]  992.6  8.45 16.20 0[0]  986.0  8.51 16.31 0
[0]16777216 4194304 float sum -1[0] 1334.9 12.57 24.09 0[0] 1336.5 12.55 24.06 0
"""
"""A launcher that prints the rank at every write.  Source: NVIDIA/nccl issue 1453."""


def read(text: str, ranks: int | None = None) -> NcclResult:
    """The NCCL run in a log."""
    nccl = result(text, ranks=ranks).nccl
    assert nccl is not None
    return nccl


THREADS = PROCESS.replace("nThread 1 nGpus 8", "nThread 4 nGpus 2")
SHORTENED = devices(0, 1) + "# ...\n"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (re.sub(r".*(Rank|nThread) .*\n", "", RECORDED), 8),
        (AT_24, 24),
        (table(8), 8),
        (table(2), 2),
        (table(5), 5),
        (table(16, collective="all_gather"), 16),
        (table(72, collective="reduce_scatter"), 72),
        (PROCESS + table(64), 64),
        (PROCESS + devices(0, 1) + table(8), 8),
        (PROCESS + SHORTENED + table(8), 8),
        (SHORTENED + devices(7) + table(8), 8),
        (devices(0) + "#  [6 ranks omitted]\n" + devices(7) + table(8), 8),
        (devices(0, 1, 5) + table(6), 6),
        (devices(*range(8)) + table(8), 8),
    ],
)
def test_the_rows_tell_the_ranks_that_the_list_does_not(text: str, ranks: int) -> None:
    """No list, one with dots, one that was cut, and a whole one."""
    assert read(text).ranks == ranks


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (PROCESS + devices(0, 1) + table(8), 1),
        (THREADS + SHORTENED + table(8), 1),
        (SHORTENED + devices(7) + table(8), 1),
        (devices(0, 1) + table(8), 0),
        (table(8), 0),
        (devices(0) + "...\n" + devices(15, host="other") + table(16), 2),
    ],
    ids=["one-process", "threads", "both-ends", "cut", "no-list", "two-hosts"],
)
def test_a_list_that_is_not_whole_may_leave_the_nodes_open(text: str, nodes: int) -> None:
    """One process, or the first and the last rank on the same host, is one node; 0 is unknown."""
    assert read(text).nodes == nodes


def test_large_numbers_are_taken_only_if_they_are_alone() -> None:
    """Rounded figures of 256 ranks fit 252 to 256: the caller has to know."""
    with pytest.raises(NcclTestsError, match=r"is missing, and 2\d\d to 2\d\d ranks fit .*--ranks"):
        read(AT_256)
    assert read(AT_256, 256).ranks == 256
    assert read("# nThread 1 nGpus 8 minBytes 8\n" + AT_256).ranks == 256


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        (devices(*range(8)) + table(8), 4, "4 ranks were given, but the log lists rank 7"),
        (table(8), 4, r"line 2: busbw .* over 4 ranks"),
        (table(8, collective="all_gather"), 4, "line 2: the sizes are those of 8 ranks, not of 4"),
        (devices(*range(8)) + table(4), None, r"line \d+: busbw .* over 8 ranks"),
        (PROCESS + table(12), None, "do not"),
    ],
)
def test_ranks_that_the_rows_contradict_are_refused(text: str, ranks: int | None, message: str) -> None:
    """With the line of the first row that does not fit."""
    with pytest.raises(NcclTestsError, match=message):
        read(text, ranks)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("229.81", "299.81"), ("229.81", "131.32"), ("4184.0", "2092.0"), ("8159.5", "8519.5")],
    ids=["typed", "algbw", "half-the-time", "swapped-digits"],
)
def test_a_row_whose_busbw_does_not_follow_is_refused_by_its_line(right: str, wrong: str) -> None:
    """Size, time, ranks and busbw of every row must agree."""
    assert right in RECORDED
    line = next(n for n, text in enumerate(RECORDED.splitlines(), 1) if right in text)
    with pytest.raises(NcclTestsError, match=f"line {line}: busbw .* does not follow from the row"):
        read(RECORDED.replace(right, wrong))


def test_the_time_of_the_cpu_is_not_that_of_the_gpus() -> None:
    """With `-C` the column is the launch alone; the bandwidth tells the rest."""
    text = table(8).replace("time", "cputime")
    launches = re.sub(r"\d+\.\d\d(  \d+\.\d\d  \d+\.\d\d  0)", r"7.25\1", text)
    [slow, fast] = [read(one).arms[0].cells[-1] for one in (table(8), launches)]
    assert fast.us == pytest.approx(slow.us, rel=1e-3)
    assert read(launches).ranks == 8


def test_a_log_that_ends_anywhere_has_the_rows_before_it() -> None:
    """Cut after any character of its last rows: the same numbers, or an error; never others."""
    whole = {cell.bytes: cell.us for cell in read(RECORDED).arms[0].cells}
    for end in range(RECORDED.index("  4294967296"), len(RECORDED)):
        cells = read(RECORDED[:end]).arms[0].cells
        assert {cell.bytes: cell.us for cell in cells}.items() <= whole.items()
