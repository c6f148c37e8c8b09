"""Whatever a child of the benchmark does, the run ends with the right outcome and with nobody left behind.

Real processes, the real program, short limits; the other arm always counts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from nodegauge_contract import Arm
from support.nccl_probe import NcclRun
from testbed.profiles import Profile

On = Callable[[str | Profile], NcclRun]
SHORT = ("--limits", "3,2,2")
WELL = ("init", "load", "measure", "pairs", "teardown")

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def two(benchmark: On) -> NcclRun:
    """Two GPUs with NVLink: arms default and p2p-off, a matrix of one pair."""
    return benchmark("titan-rtx-nv2")


def first(run: NcclRun, *options: str) -> Arm:
    """The arm that has trouble, once it was seen that the other one has none."""
    arms = run.arms(*options)
    assert list(arms) == ["default", "p2p-off"]
    assert (arms["p2p-off"].outcome, len(arms["p2p-off"].cells)) == ("done", 4)
    return arms["default"]


def test_all_is_well(two: NcclRun) -> None:
    """Every cell, the pair matrix, five times in milliseconds, exit code 0, no phase, no message."""
    arm = first(two.child("all_well()"))
    assert (arm.outcome, arm.phase, arm.message, arm.exit_code) == ("done", "", "", 0)
    assert [cell.us for cell in arm.cells] == [100 + n for n in range(10)]
    assert arm.pairs == [[-1, 50], [50, -1]]
    times = (arm.spawn_ms, arm.init_ms, arm.load_ms, arm.measure_ms, arm.teardown_ms)
    assert all(isinstance(time, int) for time in times)


@pytest.mark.parametrize("phase", ["spawn", *WELL])
def test_a_child_that_hangs_is_killed_and_named(two: NcclRun, phase: str) -> None:
    """In every phase: outcome, phase and what was measured before."""
    reached = WELL[: WELL.index(phase) + 1] if phase in WELL else ()
    body = "about()\n" + "".join(
        f"phases({each!r})\n" + ("cell(0)\n" if each == "measure" else "") for each in reached
    )
    limits = ("--limits", "3,2,2")
    arm = first(two.child(body + "while True: time.sleep(9)"), *limits)
    assert (arm.outcome, arm.phase) == ("hung", phase)
    assert len(arm.cells) == (1 if "measure" in reached else 0)
    assert arm.exit_code == 128 + signal.SIGKILL
    assert phase in arm.message


def test_phases_of_one_kind_share_their_time(two: NcclRun) -> None:
    """A child that goes on talking and changing phases gains nothing by it."""
    body = "phases('init', 'load')\nwhile True: phases('measure', 'check'); time.sleep(0.1)"
    arm = first(two.child(body), *SHORT)
    assert (arm.outcome, arm.phase in ("measure", "check")) == ("hung", True)


def test_a_child_that_ignores_signals_is_killed_all_the_same(two: NcclRun) -> None:
    """SIGTERM is not asked for at all."""
    body = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
phases("init", "load", "measure"); cell(0)
while True: time.sleep(9)
"""
    arm = first(two.child(body), *SHORT)
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("hung", "measure", 1)


@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("os.abort()", "signal 6"),
        ("print('Aborted by somebody', file=sys.stderr); sys.exit(3)", "exit code 3: Aborted by somebody"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_crash_is_a_crash(two: NcclRun, death: str, message: str) -> None:
    """By signal or by exit code, with what it printed last; its cells stay."""
    arm = first(two.child(f"about(); phases('init', 'load', 'measure'); cell(0); cell(1)\n{death}"))
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("crashed", "measure", 2)
    assert message in arm.message


def test_a_crash_after_the_last_word_is_one_in_teardown(two: NcclRun) -> None:
    """Everything was measured, and it is said that the end was bad."""
    body = (
        "about(); phases('init', 'load', 'measure'); cell(0); phases('teardown'); say(done=True); os.abort()"
    )
    arm = first(two.child(body))
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("crashed", "teardown", 1)


def test_an_error_of_nccl_is_a_failure_in_its_words(two: NcclRun) -> None:
    """What NCCL or CUDA said, whatever the exit code was."""
    body = (
        "phases('init'); say(failed={'what': 'nccl-error', 'message': 'unhandled cuda error'}); sys.exit(1)"
    )
    arm = first(two.child(body))
    assert (arm.outcome, arm.phase, arm.message) == ("failed", "init", "nccl-error: unhandled cuda error")


def test_no_memory_on_the_gpu(two: NcclRun) -> None:
    """CUDA says so."""
    body = "phases('init'); say(failed={'what': 'out-of-memory', 'message': 'CUDA_ERROR_OUT_OF_MEMORY'})"
    arm = first(two.child(body))
    assert (arm.outcome, arm.message) == ("out-of-memory", "out-of-memory: CUDA_ERROR_OUT_OF_MEMORY")


KILLED_BY_THE_KERNEL = """
phases("init")
if {events!r}: open({events!r}, "w").write("low 0\\nhigh 0\\nmax 9\\noom 2\\noom_kill {kills}\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("kills", "outcome"), [(5, "out-of-memory"), (4, "crashed"), (None, "out-of-memory")]
)
def test_no_memory_in_the_pod(two: NcclRun, kills: int | None, outcome: str) -> None:
    """SIGKILL is the kernel's for memory where its count grew or cannot be read, and somebody's else."""
    events = two.folder / "machine/sys/fs/cgroup/memory.events"
    if kills is not None:
        events.parent.mkdir(parents=True)
        events.write_text("low 0\noom_kill 4\n")
    told = str(events) if kills is not None else ""
    arm = first(two.child(KILLED_BY_THE_KERNEL.format(events=told, kills=kills)))
    assert (arm.outcome, arm.phase, arm.exit_code) == (outcome, "init", 137)


@pytest.mark.parametrize(
    "words",
    [
        "write(b'# nThread 1 nGpus 8 minBytes 8\\n')",
        "write(b'\\xff\\xfe\\x00\\n')",
        "write(b'[1, 2]\\n')",
        "write(b'{}\\n')",
        "say(phase='coffee')",
        "say(phase='measure', done=True)",
        "cell(0, us=0)",
        "cell(0, us=-5.0)",
        "cell(0, bytes=0)",
        "say(pairs=[[1]])",
        "say(pairs=[[-1, 50], [50]])",
        "write(b'{' * 200_000 + b'\\n')",
    ],
)
def test_garbage_is_garbage(two: NcclRun, words: str) -> None:
    """What cannot be read, or cannot be, ends the arm at once; what was said before stays."""
    began = time.monotonic()
    body = f"phases('init', 'load', 'measure'); cell(0)\n{words}\ntime.sleep(60)"
    arm = first(two.child(body))
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("garbage", "measure", 1)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "flood",
    ["while True: write(b'x' * 65536)", "while True: cell(0)", "while True: phases('measure')"],
)
def test_a_flood_is_garbage(two: NcclRun, flood: str) -> None:
    """Without an end of line, with too many cells, with too many lines: bounded in time and in memory."""
    arm = first(two.child(f"phases('init', 'load', 'measure')\n{flood}"))
    assert arm.outcome == "garbage"
    assert len(arm.cells) <= 64


def test_what_is_printed_is_no_speech(two: NcclRun) -> None:
    """Libraries print megabytes to standard output; nobody waits for a reader, and nothing of it counts."""
    body = "os.write(1, b'NCCL says hello ' * 100_000); os.write(2, b'x' * 1_000_000); all_well()"
    arm = first(two.child(body))
    assert (arm.outcome, arm.message) == ("done", "")


@pytest.mark.parametrize(("body", "words"), [("", "without a word"), ("cell(0)", "half-way")])
def test_an_end_without_a_word_is_partial(two: NcclRun, body: str, words: str) -> None:
    """Exit code 0 is not enough."""
    arm = first(two.child(f"phases('init', 'load', 'measure'); {body}" if body else "pass"))
    assert (arm.outcome, len(arm.cells), words in arm.message) == ("partial", 1 if body else 0, True)


def test_half_a_line_at_the_end_is_garbage(two: NcclRun) -> None:
    """A cell that was being written is none."""
    arm = first(two.child("phases('init', 'load', 'measure'); cell(0); write(b'{\"cell\": {\"coll')"))
    assert (arm.outcome, len(arm.cells)) == ("garbage", 1)


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(['sleep', '600'])",
        "subprocess.Popen(['sleep', '600'], start_new_session=True)",
        "subprocess.Popen(['sh', '-c', 'setsid sleep 600 & setsid sleep 601 & exit 0'])",
        "os.fork() or time.sleep(600)",
    ],
)
def test_grandchildren_go_with_the_child(two: NcclRun, start: str) -> None:
    """In its group, in a session of their own, or orphaned: killed, counted, and the result is unharmed."""
    arm = first(two.child(f"{start}\ntime.sleep(0.3)\nall_well()"))
    assert (arm.outcome, len(arm.cells)) == ("done", 10)
    assert "processes behind" in arm.message


def test_a_hanging_child_s_family_goes_too(two: NcclRun) -> None:
    """Grandchildren that keep the pipes open do not keep the run."""
    body = "subprocess.Popen(['sleep', '600'], start_new_session=True, pass_fds=(mouth,))\ntime.sleep(600)"
    assert first(two.child(body), "--limits", "2.5,2,2").outcome == "hung"


def test_wrong_data_and_slow_links_pass_through(two: NcclRun) -> None:
    """They are what was measured: judging is somebody else's."""
    body = """
about(); phases("init", "load", "measure"); cell(0, wrong=17, us=123456.789, algorithm="RING")
phases("pairs"); say(pairs=[[-1, 0.31], [48.94, -1]]); phases("teardown"); say(done=True)
"""
    arm = first(two.child(body))
    assert (arm.outcome, arm.cells[0].wrong, arm.cells[0].us) == ("done", 17, 123460)
    assert (arm.cells[0].algorithm, arm.pairs) == ("RING", [[-1, 0.3], [48.9, -1]])


def test_what_a_child_has_no_time_for_is_named(two: NcclRun) -> None:
    """With its arm, unless that is the default one."""
    body = (
        "about(); phases('init', 'load', 'measure'); cell(0); say(cut='all_gather/268435456'); say(done=True)"
    )
    nccl = two.child(body, arm="p2p-off").nccl()
    assert nccl.cut == ["p2p-off:all_gather/268435456"]


def test_a_program_that_is_not_there_is_no_engine(two: NcclRun) -> None:
    """Skipped, and nobody is told that NCCL failed."""
    two.environment["NODEGAUGE_NCCL_CHILD"] = str(two.folder / "nowhere")
    nccl = two.nccl()
    assert (nccl.skipped, nccl.arms, nccl.ranks) == ("no-engine", [], 0)
    assert "nowhere cannot be started: No such file" in nccl.message


def test_an_engine_that_cannot_be_loaded_is_no_engine(two: NcclRun) -> None:
    """As the child says; the other arms are not tried."""
    body = "say(failed={'what': 'no-engine', 'message': 'No module named nccl'}); sys.exit(1)"
    nccl = two.child(body).nccl()
    assert (nccl.skipped, nccl.message, nccl.arms) == ("no-engine", "No module named nccl", [])
