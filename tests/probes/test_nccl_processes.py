"""The process table, the clock and the ears of the benchmark, and what NCCL says about its choices."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from nodegauge_contract import NOT_READ, ArmName, Cell, Phase, Unavailable
from nodegauge_contract.nccl import MAX_CELLS
from nodegauge_contract.nccl_tests.choices import Choices
from nodegauge_probes.nccl import debuglog
from nodegauge_probes.nccl.plan import BUDGET_S, startup_seconds
from nodegauge_probes.nccl.process_tree import MARGIN_S, ProcessTree, ShutDown, parse_stat, table
from nodegauge_probes.nccl.receiver import InvalidOutput, Receiver, Tail, one_line, tidy
from nodegauge_probes.nccl.supervisor import Limits, PhaseClock
from nodegauge_probes.result_builder import ArmBuilder
from nodegauge_probes.settings import DEADLINES

STAT = "4711 ({}) S 12 4700 4690 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 987654 1 2 3"
LIMITS = Limits(load=90, measure=45, teardown=10)


@pytest.mark.parametrize("name", ["python", "a b", "tricky) R 1 1 1", "((("])
def test_a_process_by_any_name(name: str) -> None:
    each = parse_stat(STAT.format(name))
    assert (each.pid, each.parent, each.group, each.session) == (4711, 12, 4700, 4690)
    assert (each.state, each.started) == ("S", 987654)


def test_the_table_holds_this_process_and_passes_over_the_rest(tmp_path: Path) -> None:
    mine = next(each for each in table() if each.pid == os.getpid())
    assert (mine.parent, mine.session) == (os.getppid(), os.getsid(0))
    for name, text in (("1", STAT.format("init")), ("2", ""), ("self", STAT.format("x")), ("3", "3 (x) S")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stat").write_text(text)
    (tmp_path / "4").mkdir()
    assert [each.pid for each in table(tmp_path)] == [4711]


def test_nothing_starts_once_the_run_is_being_left() -> None:
    processes = ProcessTree()
    processes.shutdown()
    with pytest.raises(ShutDown):
        processes.start([sys.executable, "-c", "pass"], environment={}, lines=1, output=2)


def test_times_add_up_by_kind() -> None:
    arm, clock = ArmBuilder("default"), PhaseClock(LIMITS, startup=90, now=100.0)
    for phase, now in ((Phase.INIT, 101), (Phase.LOAD, 104), (Phase.MEASURE, 105), (Phase.CHECK, 110)):
        clock.enter(phase, now=now)
    clock.enter(Phase.MEASURE, now=112)
    clock.report(arm, now=115)
    assert (arm.spawn_ms, arm.init_ms, arm.load_ms, arm.measure_ms) == (1000, 3000, 1000, 10000)
    assert arm.teardown_ms == NOT_READ
    assert clock.left(now=115) == 35
    clock.enter(Phase.TEARDOWN, now=115)
    clock.report(arm, now=117)
    assert arm.teardown_ms == 2000
    assert clock.left(now=126) == -1


@pytest.mark.parametrize("phase", [Phase.SPAWN, Phase.INIT])
def test_processes_and_communicators_share_the_time_of_the_start(phase: Phase) -> None:
    clock = PhaseClock(LIMITS, startup=210, now=0.0)
    clock.enter(phase, now=200.0)
    assert (clock.left(now=209.0), clock.left(now=211.0)) == (1, -1)
    clock.enter(Phase.LOAD, now=211.0)
    assert clock.left(now=300.0) == 1


STARTS = [
    ("8 B200, kernels and libnccl cold: NCCL issue 1646, 474 MB at 10 MB/s", ArmName.DEFAULT, 8, 1, 47, 56),
    ("16 V100 of a DGX-2: contexts one after the other, 3.5 s each", ArmName.DEFAULT, 16, 1, 60, 60),
    ("8 GPUs: 31.3 s for communicators (NCCL issue 534), lazy image", ArmName.P2P_OFF, 8, 1, 60, 32),
    ("4 GB200 of a tray, twice as slow as B200", ArmName.DEFAULT, 4, 1, 20, 110),
    ("2 cards on a spinning disk: 474 MB at 5 MB/s", ArmName.DEFAULT, 2, 1, 95, 10),
    ("nccl-tests starts NCCL three times, once per collective", ArmName.DEFAULT, 8, 3, 47, 180),
]


@pytest.mark.parametrize(("arm", "ranks", "starts", "spawn", "init"), [row[1:] for row in STARTS])
def test_a_published_start_is_in_time(arm: ArmName, ranks: int, starts: int, spawn: int, init: int) -> None:
    clock = PhaseClock(Limits(), startup=startup_seconds(arm, ranks=ranks, starts=starts), now=0.0)
    clock.enter(Phase.INIT, now=spawn)
    assert clock.left(now=spawn + init) > 0


def test_a_run_has_room_for_slow_starts_of_eight_gpus() -> None:
    starts = sum(startup_seconds(arm, ranks=8) for arm in ArmName)
    again = startup_seconds(ArmName.DEFAULT, ranks=8)
    assert starts + again + BUDGET_S < float(DEADLINES["nccl"]) - MARGIN_S


CELL = b'{"cell":{"collective":"all_reduce","bytes":8,"us":21.5}}\n'


def receiver(arm: ArmBuilder) -> Receiver:
    def ignore(_: object) -> None: ...

    return Receiver(arm, ranks=2, on_phase=ignore, on_engine=ignore, on_cut=ignore)


def test_lines_arrive_in_any_pieces() -> None:
    arm = ArmBuilder("default")
    received = receiver(arm)
    newer = b'{"cell":{"collective":"all_reduce","bytes":8,"us":21.5,"mood":"fine"},"x":1}\n{"done":true}\n'
    for byte in newer:
        received.feed(bytes([byte]))
    received.close()
    assert ([cell.us for cell in arm.cells], received.done) == ([21.5], True)


@pytest.mark.parametrize(
    "line",
    [
        b"# nThread 1 nGpus 8 minBytes 8",
        b"\xff\xfe\x00",
        b"",
        b"{}",
        b'{"phase":"coffee"}',
        b'{"phase":"measure","done":true}',
        b'{"cell":{"bytes":8}}',
        b'{"cell":{"collective":"all_reduce","bytes":0}}',
        b'{"cell":{"collective":"all_reduce","bytes":8,"us":0}}',
        b'{"cell":{"collective":"all_reduce","bytes":8,"us":-5.0}}',
        b'{"pairs":[[-1,50],[50]]}',
        b"{" * 200_000,
    ],
    ids=lambda line: line[:40].decode("utf-8", "replace"),
)
def test_invalid_lines_are_refused(line: bytes) -> None:
    arm = ArmBuilder("default")
    with pytest.raises(InvalidOutput):
        receiver(arm).feed(CELL + line + b"\n")
    assert len(arm.cells) == 1
    assert arm.pairs == []


@pytest.mark.parametrize("data", [b"x" * 65_536, CELL, b'{"phase":"measure"}\n'], ids=["x", "cell", "phase"])
def test_endless_output_is_refused(data: bytes) -> None:
    arm = ArmBuilder("default")
    received = receiver(arm)

    def feed() -> None:
        for _ in range(2_000_000 // len(data)):
            received.feed(data)

    with pytest.raises(InvalidOutput):
        feed()
    assert len(arm.cells) <= MAX_CELLS


def test_times_keep_the_digits_that_mean_something() -> None:
    given = Cell(
        collective="all_reduce", bytes=8, us=4105.123456, us_min=21.3456789, us_max=1e300, spread=0.01236
    )
    kept = tidy(given)
    assert (kept.us, kept.us_min, kept.spread) == (4105.1, 21.346, 0.012)
    assert kept.us_max == Unavailable("implausibly large")
    no = Unavailable("no")
    assert tidy(Cell(collective="all_reduce", bytes=8, us=no)).us == no


def test_the_end_of_what_was_printed_is_kept() -> None:
    tail = Tail()
    tail.feed(b"x" * 100_000 + b"\nTraceback:\x1b[31m\n")
    tail.feed(b"ValueError: caf\xc3\xa9 \xff\n")
    given = tail.text(most=40)
    assert given.startswith("…")
    assert given.endswith("ValueError: café \N{REPLACEMENT CHARACTER}")
    assert len(given) == 40
    assert one_line(" a\n\tb ") == "a b"


RECORDED = Path(__file__).parent.parent / "fixtures/nccl-debug-info_lines_nccl-docs.txt"
HEAD = "node-01:7:7 [0] NCCL INFO "


def parse(lines: Iterable[str]) -> Choices:
    choices = Choices()
    for line in lines:
        choices.feed(line)
    return choices


def choices_of(*lines: str) -> Choices:
    return parse(HEAD + line for line in lines)


def test_the_recorded_lines_are_understood() -> None:
    choices = parse(RECORDED.read_text().splitlines())
    assert choices.transport == "NET/Socket+P2P/CUMEM+SHM/direct/direct"
    assert choices.host_buffers == "/dev/shm"
    assert (choices.init_s, choices.kernels_s) == (0.37, 0.28)
    assert choices.chosen("all_reduce", 33_554_432, ranks=8) == ("RING", "SIMPLE")
    assert choices.nvls is True
    assert choices.warning == "Failed to initialize any NET plugin"


@pytest.mark.parametrize(
    ("via", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]", "P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0", "NET/Socket"),
        ("Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0", "NET/Socket"),
    ],
)
def test_transports_by_their_kind(via: str, transport: str) -> None:
    assert choices_of(via, via).transport == transport


@pytest.mark.parametrize(
    "line",
    [
        "AllReduce: 65536 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
        "AllReduce: 65536 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15} cgaClusterSize 4",
        "AllReduce: 65536 Bytes -> Algo Ring proto LL128 channel{Lo..Hi}={0..15} comm 0x55a7",
        "AllReduce: 65536 Bytes -> Algo 1 proto 1 time 29.4",
    ],
)
def test_choices_of_every_release(line: str) -> None:
    assert choices_of(line).chosen("all_reduce", 65536, ranks=8) == ("RING", "LL128")


def test_gathered_bytes_are_those_of_one_rank() -> None:
    """The size counts all ranks, NCCL's line one; what does not divide is rounded down."""
    choices = choices_of(
        "AllGather: 153391680 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        "ReduceScatter: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
    )
    assert choices.chosen("all_gather", 1 << 30, ranks=7) == ("NVLS", "SIMPLE")
    assert choices.chosen("reduce_scatter", 65536, ranks=8) == ("RING", "LL")


def test_a_size_that_nobody_saw_has_no_choice() -> None:
    choices = choices_of("AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}")
    assert choices.chosen("all_reduce", 8, ranks=8) == ("TREE", "LL")
    assert choices.chosen("all_reduce", 4096, ranks=8) == (NOT_READ, NOT_READ)
    assert choices.chosen("all_gather", 8, ranks=8) == (NOT_READ, NOT_READ)


SUPPORTED = "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p", (16, False)),
        (
            "comm 0x55, 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32",
            (24, True),
        ),
        ("24 coll channels, 8 nvls channels, 32 p2p channels, 32 p2p channels per peer", (24, True)),
        ("nothing of channels", (NOT_READ, NOT_READ)),
    ],
)
def test_nvls_is_on_where_channels_of_it_were_made(line: str, expected: tuple[object, object]) -> None:
    choices = choices_of(SUPPORTED, line)
    assert (choices.channels, choices.nvls, choices.multicast) == (*expected, True)
    without = choices_of(SUPPORTED.replace("available on dev 0", "not available on dev 3"), line)
    assert (without.channels, without.nvls, without.multicast) == (*expected, False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("MMAP allocated shareable host buffer /dev/shm/nccl-Qd size 4096", {"host_buffers": "/dev/shm"}),
        ("CUMEM allocated shareable buffer 0x7f83 size 4096", {"host_buffers": "cuMem"}),
        ("NCCL version 2.32.3+cuda12.9", {"version": "2.32.3", "cuda": "12.9"}),
    ],
    ids=["without SYS_NICE, charged to the pod", "cuMem", "NCCL, and the CUDA that it was built with"],
)
def test_host_memory_and_versions(line: str, expected: dict[str, str]) -> None:
    choices = choices_of(line)
    assert {name: getattr(choices, name) for name in expected} == expected


def test_the_telling_warning_stays() -> None:
    warn = "node-01:7:7 [2] graph/paths.cc:421 NCCL WARN "
    lines = ["Could not find plugin", "P2P is disabled between NVLINK connected GPUs 2 and 3.", "aborting"]
    assert parse(warn + line for line in lines).warning == lines[1]


def test_nothing_said_is_nothing_read() -> None:
    for choices in (parse([]), parse(["hello", "", "via", "\0" * 50])):
        assert (choices.transport, choices.nvls, choices.channels) == (NOT_READ, NOT_READ, NOT_READ)
        assert (choices.host_buffers, choices.version, choices.warning) == (NOT_READ, NOT_READ, "")


def test_the_logs_of_a_folder_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "nccl.node.1.log").write_bytes(
        b"\xff\xfe\n" + b"x" * 100_000 + b"\nNCCL INFO 2 coll channels, 0 nvls channels\n"
    )
    (tmp_path / "nccl.node.2.log").write_text("NCCL INFO NCCL version 2.32.3+cuda12.9\n")
    (tmp_path / "other.log").write_text("NCCL INFO 9 coll channels, 9 nvls channels\n")
    choices = debuglog.read(tmp_path)
    assert (choices.channels, choices.nvls, choices.version) == (2, False, "2.32.3")
    assert debuglog.read(tmp_path / "nowhere").channels == NOT_READ


def test_a_log_without_end_is_left_after_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL writes a line per call."""
    monkeypatch.setattr(debuglog, "MAX_BYTES", 1000)
    line = "NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n"
    (tmp_path / "nccl.node.1.log").write_text(line * 100 + "NCCL INFO 2 coll channels, 2 nvls channels\n")
    choices = debuglog.read(tmp_path)
    assert choices.chosen("all_reduce", 8, ranks=2) == ("TREE", "LL")
    assert choices.channels == NOT_READ
