"""The process table, the clock and the ears of the benchmark, apart from any child."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nodegauge_contract import NOT_READ, ArmName, Cell, Phase, Unavailable
from nodegauge_contract.nccl import MAX_CELLS
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
