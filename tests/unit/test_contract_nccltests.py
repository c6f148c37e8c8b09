"""Logs of nccl-tests in every layout that they have had, and what is answered to those that are none.

Three are recordings of other projects; the rest is made from the formats of nccl-tests' own sources.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_contract import ArmOutcome, Collective, Unavailable, decode, encode
from nodegauge_contract.nccl_tests.document import result
from nodegauge_contract.nccl_tests.log import MAX_CHARS, NcclTestsError, looks_like, parse
from nodegauge_judge.nccl.measurement import busbw_gbps
from support.nccltests import row

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = {
    "nccl-tests_allgather_superbench.log": (Collective.ALL_GATHER, 8, 1, 34),
    "nccl-tests_allreduce_superbench.log": (Collective.ALL_REDUCE, 8, 1, 34),
    "nccl-tests_allreduce_h100x16_oci.log": (Collective.ALL_REDUCE, 16, 2, 5),
}
DEVICES = """\
# Using devices
#  Rank  0 Group  0 Pid    127 on       box device  0 [0000:b4:00] NVIDIA H100 NVL
#  Rank  1 Group  0 Pid    127 on       box device  1 [0001:b5:00] NVIDIA H100 NVL
"""
HEAD = "#   size   count  type  redop  root  time algbw busbw #wrong  time algbw busbw #wrong"
ROW = "  1048576  262144  float  sum  -1  100.0  10.49  10.49  0  50.0  20.97  20.97  0"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 15.7\n#\n"


def log(*lines: str, head: str = HEAD, foot: str = FOOT) -> str:
    """A log of two ranks with these lines as its table."""
    return "\n".join([DEVICES, head, *lines, foot])


def recorded(name: str) -> str:
    """A recorded log."""
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_log_says_what_ran_on_what(name: str) -> None:
    """Collective, ranks, machines and rows of each recording."""
    read, document = parse(recorded(name)), result(recorded(name))
    [arm] = document.nccl.arms
    kinds = {cell.collective for cell in arm.cells}
    rows = [row for table in read.tables for row in table.rows]
    assert (kinds, document.nccl.ranks, document.nccl.nodes, len(rows)) == (
        {RECORDED[name][0]},
        *RECORDED[name][1:],
    )
    assert arm.outcome == ArmOutcome.DONE
    assert len(document.gpus) == document.nccl.ranks


@pytest.mark.parametrize("name", RECORDED)
def test_our_bus_bandwidth_is_the_column_of_the_log(name: str) -> None:
    """For every row and both halves, from size, time and ranks: within 1 % or half a unit of its last
    printed digit."""
    kind, ranks, _, count = RECORDED[name]
    halves = [
        (row, half)
        for table in parse(recorded(name)).tables
        for row in table.rows
        for half in (row.in_place, row.out_of_place)
        if half is not None
    ]
    assert len(halves) == 2 * count
    for read, half in halves:
        ours = busbw_gbps(kind, bytes=read.bytes, us=half.us, ranks=ranks)
        assert abs(ours - half.busbw) <= max(0.01 * half.busbw, half.unit / 2), (read, half)


def test_times_in_place_become_a_cell() -> None:
    """The last half of the row, as the benchmark measures, with what the row says of wrong elements."""
    document = result(log(ROW.replace("20.97  0", "20.97  3")))
    [cell] = document.nccl.arms[0].cells
    assert (cell.collective, cell.bytes, cell.us, cell.wrong) == ("all_reduce", 1048576, 50.0, 3)
    assert [gpu.pci for gpu in document.gpus] == ["0000:b4:00.0", "0001:b5:00.0"]
    assert {gpu.name for gpu in document.gpus} == {"NVIDIA H100 NVL"}
    assert decode(encode(document).decode()) == document


EXTRA = HEAD.replace("#wrong", "#wrong #bitdiff i_min i_max i_p99 i_cv%")
EXTRA_ROW = (
    "  1048576  262144  float  sum  -1  100.0  10.49  10.49  0  0 99.1 101.0 100.9 0.52"
    "  50.0  20.97  20.97  0  0 49.5 51.2 51.0 0.80"
)


@pytest.mark.parametrize(
    ("head", "row"),
    [
        (HEAD, ROW),
        (HEAD.replace("  root", ""), ROW.replace("  -1", "")),
        (
            HEAD.replace("  root", "").replace("#wrong", "error"),
            ROW.replace("  -1", "").replace(" 0", " 0e+00"),
        ),
        (EXTRA, EXTRA_ROW),
        (HEAD + "           timestamp", ROW + "  2026-05-05 06:16:47"),
        (HEAD, ROW.replace("100.0  10.49  10.49  0", " " * 32)),
        (HEAD.removeprefix("#"), ROW),
        (f"[1,0]<stdout>:{HEAD}", f"[1,0]<stdout>:{ROW}"),
    ],
    ids=["new", "no-root", "old", "per-iteration", "timestamp", "in-place", "no-hash", "mpi-tag"],
)
def test_a_row_is_read_by_the_names_of_its_header(head: str, row: str) -> None:
    """Whatever columns there are, the same time, bandwidth and count come out."""
    [table] = parse(log(row, head=head)).tables
    [read] = table.rows
    assert (read.bytes, read.in_place.us, read.in_place.busbw, read.in_place.unit) == (
        1048576,
        50.0,
        20.97,
        0.01,
    )
    nccl = result(log(row, head=head)).nccl
    assert [cell.wrong for cell in nccl.arms[0].cells] == [0]


SAYS = "box:127:130 [0] NCCL INFO Launch mode Parallel"


@pytest.mark.parametrize(
    "lines",
    [
        (SAYS, ROW, SAYS),
        ("  1048576  262144  float  sum  -1" + SAYS, SAYS, ROW.split("-1")[1]),
        (
            "  1048576  262144  float  sum  -1  [2026-05-05 06:16:47] " + SAYS.replace("INFO", "WARN"),
            ROW.split("-1")[1],
        ),
        ("  1048576  262144  float  sum  -1", "", SAYS, ROW.split("-1")[1]),
        ("a word of somebody else", ROW, "1 2 3"),
    ],
    ids=["between", "inside", "warning-inside", "broken", "others"],
)
def test_lines_of_nccl_between_and_inside_rows_are_left_out(lines: tuple[str, ...]) -> None:
    """One row, the same as without them."""
    assert [row.in_place for row in parse(log(*lines)).tables[0].rows] == [
        row.in_place for row in parse(log(ROW)).tables[0].rows
    ]
    assert result(log(*lines)).nccl is not None


TOTAL = "  1048576  131072  float  none  -1  100.0  10.49  5.24  0  50.0  20.97  10.49  0"


@pytest.mark.parametrize(
    ("row", "collective"),
    [
        (ROW, "all_reduce"),
        (TOTAL, "all_gather"),
        (TOTAL.replace("none", "    "), "all_gather"),
        (TOTAL.replace("none", "sum"), "reduce_scatter"),
    ],
)
def test_the_numbers_say_which_collective_ran(row: str, collective: str) -> None:
    """By size, elements and reduction, with nothing else in the log."""
    nccl = result(log(row)).nccl
    assert nccl.arms[0].cells[0].collective == collective


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (TOTAL.replace("10.49  0", "10.49  N/A"), "line 5: alltoall is not supported"),
        (TOTAL.replace("-1", "0"), "gather is not supported"),
        (ROW.replace("-1", "0"), "reduce is not supported"),
        (ROW.replace("sum  -1", "none  0"), "broadcast is not supported"),
        (ROW.replace("sum", "none"), "sendrecv is not supported"),
        (ROW.replace("262144", "200000"), "line 6: 1048576 bytes are neither 200000 elements of 4 bytes"),
        (ROW.replace("float", "quad"), "line 6: unknown type quad"),
        (ROW.replace("50.0", "fifty"), "line 6: expected the columns `time algbw busbw #wrong time"),
        (ROW.replace("50.0", "0.00"), "line 6: expected the columns"),
    ],
)
def test_what_cannot_be_graded_is_named_with_its_line(row: str, text: str) -> None:
    """The line, what stands there, and what was expected."""
    with pytest.raises(NcclTestsError) as caught:
        result(log(row))
    assert text in str(caught.value)


def test_what_the_caller_says_counts_unless_the_table_contradicts() -> None:
    """all_gather and alltoall look alike; all_reduce does not."""
    text = log(TOTAL)
    assert result(text, collective=Collective.ALL_GATHER).nccl is not None
    with pytest.raises(
        NcclTestsError, match="line 5: the table is of all_gather or alltoall, not of all_reduce"
    ):
        result(text, collective=Collective.ALL_REDUCE)
    with pytest.raises(NcclTestsError, match="alltoall is not supported"):
        result("# Collective test starting: alltoall_perf\n" + text)


def test_several_tables_of_the_same_gpus_are_one_document() -> None:
    """Each with its own title; a table of other GPUs is refused with the line."""
    first, second = log(ROW), log(TOTAL)
    nccl = result("# Collective test starting: all_reduce_perf\n" + first + second).nccl
    assert [cell.collective for cell in nccl.arms[0].cells] == ["all_reduce", "all_gather"]
    with pytest.raises(NcclTestsError, match=r"line \d+: rank 0 is a different GPU or host"):
        result(first + second.replace(" box ", " other "))


def test_a_collective_of_one_rank_is_called_by_the_name_of_its_program() -> None:
    """Its sizes and counts are those of any other.  Source: NVIDIA/nccl-tests issue 287."""
    text = log("33554432 8388608 float none -1 19.56 1715.44 0.00 0 0.78 43046.10 0.00 N/A")
    with pytest.raises(NcclTestsError, match="line 6: alltoall is not supported"):
        result("$ sudo ./build/./alltoall_perf\n" + text)


def test_tables_of_other_collectives_are_left_out_unless_their_data_is_wrong() -> None:
    """One file often has the output of every program; wrong data is never passed over."""
    broadcast = ROW.replace("sum  -1", "none  0")
    nccl = result(log(ROW) + log(broadcast) + log(TOTAL)).nccl
    assert nccl is not None
    assert [cell.collective for cell in nccl.arms[0].cells] == ["all_reduce", "all_gather"]
    for other in (
        broadcast.replace("20.97  0", "20.97  3"),
        TOTAL.replace("10.49  0", "10.49  N/A").replace("5.24  0", "5.24  7"),
    ):
        with pytest.raises(
            NcclTestsError, match=r"(broadcast|alltoall) is not supported, .* its data was wrong"
        ):
            result(log(ROW) + log(other))


def test_versions_are_read_from_either_form() -> None:
    """NCCL's own line, and the title of newer releases."""
    title = "# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003\n"
    newer = parse(title + log(ROW))
    assert (newer.version, newer.nccl) == ("2.18.3", "2.30.3")
    assert parse("# nccl-tests version 2.0 nccl-headers=2804 nccl-library=2804").nccl == "2.8.4"
    older = parse(log("NCCL version 2.23.4+cuda12.6", ROW))
    assert (older.nccl, older.cuda, older.version) == ("2.23.4", "12.6", Unavailable("not read"))


def test_rows_of_one_size_become_one_cell() -> None:
    """Their median time, and the fastest and slowest."""
    rows = [row(1048576, 100.0, us) for us in (52.0, 50.0, 57.0)]
    nccl = result(log(*rows)).nccl
    [cell] = nccl.arms[0].cells
    assert (cell.us, cell.us_min, cell.us_max, cell.batches) == (52.0, 50.0, 57.0, 3)


def test_an_old_log_with_wrong_data_blames_the_row_with_the_largest_error() -> None:
    """Old layouts count wrong elements in the summary alone."""
    head = HEAD.replace("#wrong", "error")
    good, bad = row(1048576, 100.0, 50.0, wrong="1e-07"), row(2097152, 100.0, 50.0, wrong="3e+02")
    text = log(good, bad, head=head, foot=FOOT.replace("0 OK", "7 FAILED"))
    nccl = result(text).nccl
    wrong = {cell.bytes: cell.wrong for cell in nccl.arms[0].cells}
    assert wrong[2097152] == 7
    assert isinstance(wrong[1048576], Unavailable)


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ("", ArmOutcome.PARTIAL),
        ("box: Test NCCL failure common.cu:1005 'unhandled cuda error'", ArmOutcome.FAILED),
        ("box: Test CUDA failure common.cu:732 'out of memory'", ArmOutcome.OUT_OF_MEMORY),
    ],
)
def test_a_log_that_ends_early_says_how(last: str, outcome: ArmOutcome) -> None:
    """Cut off, an error of NCCL, or no memory left; what had been measured stays."""
    nccl = result(log(ROW, last, foot="")).nccl
    assert nccl.arms[0].outcome == outcome
    assert nccl.arms[0].message
    assert len(nccl.arms[0].cells) == 1


def test_too_many_sizes_keep_the_largest() -> None:
    """A document has room for so many cells; the message says that some were left out."""
    rows = [row(4 * n, 100.0, 50.0) for n in range(1, 101)]
    nccl = result(log(*rows)).nccl
    assert len(nccl.arms[0].cells) == 64
    assert nccl.arms[0].cells[-1].bytes == 400
    assert nccl.message == "the 64 largest of 100 sizes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the GPUs are unknown"),
        (DEVICES, "no table: expected a line"),
        (log(), "no table"),
        (" " * (MAX_CHARS + 1), "more than"),
    ],
    ids=["empty", "no-table", "no-rows", "too-long"],
)
def test_a_text_that_is_not_a_log(text: str, message: str) -> None:
    """The error says what is missing."""
    with pytest.raises(NcclTestsError, match=message):
        result(text)


@pytest.mark.parametrize(
    ("text", "is_log"),
    [(log(ROW), True), (DEVICES, True), (HEAD, True), ("{}", False), ("size count\nRank 0\n", False)],
)
def test_a_log_is_told_from_other_input(text: str, is_log: bool) -> None:
    """By its header or its list of ranks."""
    assert looks_like(text) is is_log
