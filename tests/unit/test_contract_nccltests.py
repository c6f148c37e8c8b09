"""Logs of nccl-tests in every layout, recorded or made from its own sources' formats."""

import re
from pathlib import Path

import pytest

from nodegauge_contract import ArmOutcome, Collective, NcclResult, Unavailable
from nodegauge_contract.nccl_tests import log as nccl_log
from nodegauge_contract.nccl_tests.captures import MAX_CHARS, captures, looks_like
from nodegauge_contract.nccl_tests.document import result, runs
from nodegauge_contract.nccl_tests.log import Log, NcclTestsError
from nodegauge_contract.nccl_tests.table import Row
from nodegauge_judge.nccl.measurement import busbw_gbps
from support.nccltests import HEAD as PLAIN_HEAD
from support.nccltests import PROCESS, devices, row, table, tagged

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


def parse(text: str) -> Log:
    [lines] = captures(text)
    return nccl_log.parse(lines)


def rows_of(text: str) -> list[Row]:
    table = parse(text).table
    return table.rows if table is not None else []


def log(*lines: str, head: str = HEAD, foot: str = FOOT) -> str:
    return "\n".join([DEVICES, head, *lines, foot])


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_log_says_what_ran_on_what(name: str) -> None:
    """Our bus bandwidth is the log's within 1 % or half a unit of its last printed digit."""
    text = (FIXTURES / name).read_text()
    document = result(text)
    [arm] = document.nccl.arms
    [kind] = {cell.collective for cell in arm.cells}
    rows = rows_of(text)
    ranks = document.nccl.ranks
    assert (kind, ranks, document.nccl.nodes, len(rows)) == RECORDED[name]
    assert (arm.outcome, len(document.gpus)) == (ArmOutcome.DONE, ranks)
    halves = [(row, half) for row in rows for half in (row.in_place, row.out_of_place) if half is not None]
    assert len(halves) == 2 * len(rows)
    for read, half in halves:
        ours = busbw_gbps(kind, bytes=read.bytes, us=half.us, ranks=ranks)
        assert abs(ours - half.busbw) <= max(0.01 * half.busbw, half.unit / 2), (read, half)


OLD = HEAD.replace("  root", "").replace("#wrong", "error")
EXTRA_ROW = (
    "  1048576  262144  float  sum  -1  100.0  10.49  10.49  0  0 99.1 101.0 100.9 0.52"
    "  50.0  20.97  20.97  0  0 49.5 51.2 51.0 0.80"
)


@pytest.mark.parametrize(
    ("head", "row"),
    [
        (HEAD, ROW),
        (HEAD.replace("  root", ""), ROW.replace("  -1", "")),
        (OLD, ROW.replace("  -1", "").replace(" 0", " 0e+00")),
        (HEAD.replace("#wrong", "#wrong #bitdiff i_min i_max i_p99 i_cv%"), EXTRA_ROW),
        (HEAD + "           timestamp", ROW + "  2026-05-05 06:16:47"),
        (HEAD, ROW.replace("100.0  10.49  10.49  0", " " * 32)),
        (HEAD.removeprefix("#"), ROW),
        (f"[1,0]<stdout>:{HEAD}", f"[1,0]<stdout>:{ROW}"),
    ],
    ids=["new", "no-root", "old", "per-iteration", "timestamp", "in-place", "no-hash", "mpi-tag"],
)
def test_a_row_is_read_by_the_names_of_its_header(head: str, row: str) -> None:
    [read] = rows_of(log(row, head=head))
    half = read.in_place
    assert (read.bytes, half.us, half.busbw, half.unit) == (1048576, 50.0, 20.97, 0.01)
    nccl = result(log(row, head=head)).nccl
    assert [cell.wrong for cell in nccl.arms[0].cells] == [0]


LEFT, RIGHT = "  1048576  262144  float  sum  -1", ROW.split("-1")[1]
SAYS = "box:127:130 [0] NCCL INFO Launch mode Parallel"


@pytest.mark.parametrize(
    "lines",
    [
        (SAYS, ROW, SAYS),
        (LEFT + SAYS, SAYS, RIGHT),
        (f"{LEFT}  [2026-05-05 06:16:47] " + SAYS.replace("INFO", "WARN"), RIGHT),
        (LEFT, "", SAYS, RIGHT),
        ("a word of somebody else", ROW, "1 2 3"),
    ],
    ids=["between", "inside", "warning-inside", "broken", "others"],
)
def test_lines_of_nccl_between_and_inside_rows_are_left_out(lines: tuple[str, ...]) -> None:
    assert [row.in_place for row in rows_of(log(*lines))] == [row.in_place for row in rows_of(log(ROW))]
    assert result(log(*lines)).nccl is not None


TOTAL = "  1048576  131072  float  none  -1  100.0  10.49  5.24  0  50.0  20.97  10.49  0"
WRONG_BROADCAST = ROW.replace("sum  -1", "none  0").replace("20.97  0", "20.97  3")
WRONG_ALLTOALL = TOTAL.replace("10.49  0", "10.49  N/A").replace("5.24  0", "5.24  7")
ONE_RANK = "33554432 8388608 float none -1 19.56 1715.44 0.00 0 0.78 43046.10 0.00 N/A"
"""Its sizes and counts are those of any other collective.  Source: NVIDIA/nccl-tests issue 287."""
NAMED = "# Collective test starting: {}_perf\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            log(ROW.replace("262144", "200000")),
            "line 6: 1048576 bytes are neither 200000 elements of 4 bytes",
        ),
        (log(ROW.replace("float", "quad")), "line 6: unknown type quad"),
        (log(ROW.replace("50.0", "fifty")), "line 6: expected the columns `time algbw busbw #wrong time"),
        (log(ROW.replace("50.0", "0.00")), "line 6: expected the columns"),
        (NAMED.format("hypercube") + log(TOTAL), "line 6: hypercube is not known"),
        (log(ROW) + log(TOTAL), "2 runs, expected one: the second begins in line 10"),
        ("", "the GPUs are unknown"),
        (DEVICES, "no table: expected a line"),
        (log(), "no table"),
        (" " * (MAX_CHARS + 1), "more than"),
    ],
    ids=lambda value: value[-60:],
)
def test_what_cannot_be_graded_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(NcclTestsError, match=message):
        result(text)


def test_what_the_caller_says_counts_unless_the_table_contradicts() -> None:
    assert result(log(TOTAL), collective=Collective.ALL_GATHER).nccl is not None
    contradicted = "line 5: the table is of all_gather or alltoall, not of all_reduce"
    with pytest.raises(NcclTestsError, match=contradicted):
        result(log(TOTAL), collective=Collective.ALL_REDUCE)


@pytest.mark.parametrize(
    ("text", "collective", "wrong"),
    [
        (log(ROW), "all_reduce", 0),
        (log(TOTAL), "all_gather", 0),
        (log(TOTAL.replace("none", "    ")), "all_gather", 0),
        (log(TOTAL.replace("none", "sum")), "reduce_scatter", 0),
        (log(TOTAL.replace("10.49  0", "10.49  N/A")), "alltoall", 0),
        (log(TOTAL.replace("-1", "0")), "gather", 0),
        (log(ROW.replace("-1", "0")), "reduce", 0),
        (log(ROW.replace("sum  -1", "none  0")), "broadcast", 0),
        (log(ROW.replace("sum", "none")), "sendrecv", 0),
        (devices(*range(8)) + "\n".join([HEAD, ROW, FOOT]), "sendrecv", 0),
        (devices(*range(8)) + table(8, sizes=(1 << 20,)), "all_reduce", 0),
        ("$ sudo ./build/./alltoall_perf\n" + devices(0) + "\n".join([HEAD, ONE_RANK, FOOT]), "alltoall", 0),
        (NAMED.format("alltoall") + log(TOTAL), "alltoall", 0),
        (NAMED.format("sendrecv") + log(ROW), "sendrecv", 0),
        (NAMED.format("scatter") + log(TOTAL.replace("-1", "0")), "scatter", 0),
        (log(WRONG_BROADCAST), "broadcast", 3),
        (log(WRONG_ALLTOALL), "alltoall", 7),
    ],
)
def test_numbers_or_a_name_say_which_collective_ran(text: str, collective: str, wrong: int) -> None:
    [cell] = result(text).nccl.arms[0].cells
    assert (cell.collective, cell.wrong) == (collective, wrong)


REDUCED, GATHERED = log(ROW), log(TOTAL)
OTHER = REDUCED.replace(" box ", " other ")
BOTH = [("all_reduce", "box", 1), ("all_reduce", "other", 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REDUCED + GATHERED, [("all_reduce", "box", 1), ("all_gather", "box", 1)]),
        (REDUCED + OTHER, BOTH),
        ("\n".join([REDUCED, HEAD, TOTAL, FOOT]), [("all_reduce", "box", 1), ("all_gather", "box", 1)]),
        (
            PROCESS.replace("8 minBytes", "2 minBytes") + REDUCED + NAMED.format("all_gather") + GATHERED,
            [("all_reduce", "box", 1), ("all_gather", "box", 1)],
        ),
        (tagged(("[1,0]<stdout>:", REDUCED), ("[1,1]<stdout>:", OTHER)), BOTH),
        (tagged(("box: ", REDUCED), ("other: ", OTHER)), BOTH),
        (tagged(("2026-05-05T06:16:47Z box | ", REDUCED), ("2026-05-05T06:16:48Z other | ", OTHER)), BOTH),
        (tagged(("[1,0]<stdout>:", REDUCED), ("[1,10]<stdout>:", OTHER), ("[1,2]<stderr>:", SAYS)), BOTH),
        (
            tagged((" 0: ", REDUCED + GATHERED), (" 1: ", OTHER)),
            [("all_reduce", "box", 1), ("all_reduce", "other", 1), ("all_gather", "box", 1)],
        ),
    ],
    ids=["in-turn", "hosts", "no-list", "titles", "mpirun", "pdsh", "times", "third-rank", "srun"],
)
def test_a_log_is_a_list_of_runs(text: str, expected: list[tuple[str, str, int]]) -> None:
    seen = runs(text)
    assert [
        (run.collective, "+".join(run.hosts), len(run.result.nccl.arms[0].cells)) for run in seen
    ] == expected


def test_a_failure_belongs_to_the_run_before_it_and_a_command_to_the_run_below() -> None:
    died = "box: Test NCCL failure common.cu:1005 'unhandled cuda error'\ntimeout: killed all_reduce_perf"
    text = f"{log(ROW, foot='')}{died}\n+ mpirun -x NCCL_NVLS_ENABLE=0 ./all_reduce_perf\n{REDUCED}"
    arms = [run.result.nccl.arms[0] for run in runs(text) if run.result is not None]
    assert [(arm.outcome, arm.environment) for arm in arms] == [
        (ArmOutcome.FAILED, []),
        (ArmOutcome.DONE, ["NCCL_NVLS_ENABLE=0"]),
    ]
    exported = f"+ export NCCL_ALGO=Ring\n{REDUCED}{REDUCED}"
    assert [run.result.nccl.arms[0].environment for run in runs(exported) if run.result is not None] == [
        ["NCCL_ALGO=Ring"]
    ] * 2


@pytest.mark.parametrize("other", [OTHER, REDUCED], ids=["hosts", "host"])
def test_runs_that_nothing_tells_apart_are_refused(other: str) -> None:
    """Half of one and half of the other would be neither."""
    [*_, run] = runs(tagged(("", REDUCED), ("", other)))
    assert run.result is None
    assert "nothing tells their lines apart" in run.error


def test_versions_are_read_from_either_form() -> None:
    title = "# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003\n"
    newer = parse(title + log(ROW))
    assert (newer.version, newer.nccl) == ("2.18.3", "2.30.3")
    assert parse("# nccl-tests version 2.0 nccl-headers=2804 nccl-library=2804").nccl == "2.8.4"
    older = parse(log("NCCL version 2.23.4+cuda12.6", ROW))
    assert (older.nccl, older.choices.cuda, older.version) == ("2.23.4", "12.6", Unavailable("not read"))


def test_rows_of_one_size_become_one_cell() -> None:
    rows = [row(1048576, 100.0, us) for us in (50.0, 52.0, 57.0)]
    nccl = result(log(*rows)).nccl
    [cell] = nccl.arms[0].cells
    assert (cell.us, cell.us_min, cell.us_max, cell.batches) == (52.0, 50.0, 57.0, 3)


def test_an_old_log_with_wrong_data_blames_the_row_with_the_largest_error() -> None:
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
    nccl = result(log(ROW, last, foot="")).nccl
    assert nccl.arms[0].outcome == outcome
    assert nccl.arms[0].message
    assert len(nccl.arms[0].cells) == 1


def test_too_many_sizes_keep_the_largest() -> None:
    rows = [row(4 * n, 100.0, 50.0) for n in range(1, 101)]
    nccl = result(log(*rows)).nccl
    assert len(nccl.arms[0].cells) == 64
    assert nccl.arms[0].cells[-1].bytes == 400
    assert nccl.message == "the 64 largest of 100 sizes"


@pytest.mark.parametrize(
    ("text", "is_log"), [(DEVICES, True), (HEAD, True), ("{}", False), ("size count\nRank 0\n", False)]
)
def test_a_log_is_told_from_other_input(text: str, is_log: bool) -> None:
    assert looks_like(text) is is_log


@pytest.mark.parametrize(
    "tag",
    [
        "        [1,0]<stdout>: ",
        " 3:  ",
        "2026-05-05T06:16:47.123456789Z ",
        "2026-05-05T06:16:47+02:00 [1,0]<stdout>:",
        "[prterun-box-4711@1,0]<stdout>: ",
        "allreduce-1  | ",
        "Nov 22 16:47:45 box all_reduce[127]: ",
        "\x1b[32m[1,0]<stdout>:\x1b[0m",
        "[pod/allreduce-launcher-x7k2p/mpi] 2026-05-05T06:16:47.1Z [1,0]<stdout>:",
    ],
)
def test_what_launchers_put_before_each_line_is_left_aside(tag: str) -> None:
    plain = log(ROW)
    tagged = "".join(f"{tag}{line}\n" for line in plain.splitlines())
    assert looks_like(tagged)
    assert result(tagged) == result(plain)
    assert result(tagged.replace("\n", "\r\n")) == result(plain)


def test_what_nccl_chose_is_taken_from_its_own_lines() -> None:
    """Rows of expectations depend on NVLS: a log with NCCL_DEBUG_SUBSYS=TUNING can be graded by them."""
    given = "box:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}"
    other = "box:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}"
    nccl = result(log(other, given, ROW)).nccl
    assert [(cell.algorithm, cell.protocol) for cell in nccl.arms[0].cells] == [("NVLS", "SIMPLE")]


ALL_REDUCE_LOG = (FIXTURES / "nccl-tests_allreduce_superbench.log").read_text()
AT_256 = """\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       8388608   float     sum   1464.2   22.92   45.65    N/A   1458.1   23.01   45.84    N/A
   134217728      33554432   float     sum   4263.8   31.48   62.71    N/A   4647.4   28.88   57.53    N/A
   268435456      67108864   float     sum   7946.8   33.78   67.29    N/A   7615.2   35.25   70.22    N/A
  1073741824     268435456   float     sum    29896   35.92   71.55    N/A    29411   36.51   72.73    N/A
"""
"""256 GPUs without a list of devices.  Source: NVIDIA/nccl-tests issue 78 (its last complete rows)."""
AT_24 = f"""\
{PLAIN_HEAD}
[0] 1048576  262144 float sum -1[0] 1626.5  0.64  1.24 0[0] 2302.3  0.46  0.87 0
[0] 8388608 2097152 float sum -1[0]  992.6  8.45 16.20 0[0]  986.0  8.51 16.31 0
[0]16777216 4194304 float sum -1[0] 1334.9 12.57 24.09 0[0] 1336.5 12.55 24.06 0
"""
"""A launcher that prints the rank at every write.  Source: NVIDIA/nccl issue 1453."""


def read(text: str, ranks: int | None = None) -> NcclResult:
    return result(text, ranks=ranks).nccl


THREADS = PROCESS.replace("nThread 1 nGpus 8", "nThread 4 nGpus 2")
SHORTENED = devices(0, 1) + "# ...\n"


@pytest.mark.parametrize(
    ("text", "ranks", "nodes"),
    [
        (re.sub(r".*(Rank|nThread) .*\n", "", ALL_REDUCE_LOG), 8, 0),
        (AT_24, 24, 0),
        (table(8), 8, 0),
        (table(72, collective="reduce_scatter"), 72, 0),
        (PROCESS + table(64), 64, 0),
        (PROCESS + devices(0, 1) + table(8), 8, 1),
        (PROCESS + SHORTENED + table(8), 8, 1),
        (THREADS + SHORTENED + table(8), 8, 1),
        (SHORTENED + devices(7) + table(8), 8, 1),
        (devices(0) + "#  [6 ranks omitted]\n" + devices(7) + table(8), 8, 1),
        (devices(0) + "...\n" + devices(15, host="other") + table(16), 16, 2),
        (devices(0, 1) + table(8), 8, 0),
        (devices(0, 1, 5) + table(6), 6, 1),
        (devices(*range(8)) + table(8), 8, 1),
        ("# nThread 1 nGpus 8 minBytes 8\n" + AT_256, 256, 0),
    ],
)
def test_the_rows_tell_the_ranks_that_the_list_does_not(text: str, ranks: int, nodes: int) -> None:
    """A list that is not whole may leave the nodes open, which 0 stands for."""
    nccl = read(text)
    assert (nccl.ranks, nccl.nodes) == (ranks, nodes)


def test_large_numbers_are_taken_only_if_they_are_alone() -> None:
    """Rounded figures of 256 ranks fit 252 to 256: the caller has to know."""
    with pytest.raises(NcclTestsError, match=r"is missing, and 2\d\d to 2\d\d ranks fit .*--ranks"):
        read(AT_256)
    assert read(AT_256, 256).ranks == 256


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
    with pytest.raises(NcclTestsError, match=message):
        read(text, ranks)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("229.81", "299.81"), ("229.81", "131.32"), ("4184.0", "2092.0"), ("8159.5", "8519.5")],
    ids=["typed", "algbw", "half-the-time", "swapped-digits"],
)
def test_a_row_whose_busbw_does_not_follow_is_refused_by_its_line(right: str, wrong: str) -> None:
    assert right in ALL_REDUCE_LOG
    line = next(n for n, text in enumerate(ALL_REDUCE_LOG.splitlines(), 1) if right in text)
    with pytest.raises(NcclTestsError, match=f"line {line}: busbw .* does not follow from the row"):
        read(ALL_REDUCE_LOG.replace(right, wrong))


def test_the_time_of_the_cpu_is_not_that_of_the_gpus() -> None:
    """With `-C` the column is the launch alone; the bandwidth tells the rest."""
    text = table(8).replace("time", "cputime")
    launches = re.sub(r"\d+\.\d\d(  \d+\.\d\d  \d+\.\d\d  0)", r"7.25\1", text)
    [slow, fast] = [read(one).arms[0].cells[-1] for one in (table(8), launches)]
    assert fast.us == pytest.approx(slow.us, rel=1e-3)
    assert read(launches).ranks == 8


def test_a_log_that_ends_anywhere_has_the_rows_before_it() -> None:
    whole = {cell.bytes: cell.us for cell in read(ALL_REDUCE_LOG).arms[0].cells}
    for end in range(ALL_REDUCE_LOG.index("  4294967296"), len(ALL_REDUCE_LOG)):
        cells = read(ALL_REDUCE_LOG[:end]).arms[0].cells
        assert {cell.bytes: cell.us for cell in cells}.items() <= whole.items()
