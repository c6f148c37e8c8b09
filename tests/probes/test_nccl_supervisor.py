"""Whatever a child of the NCCL probe does, its arm has the right outcome and its processes are gone."""

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodegauge_contract import Int, Unavailable
from nodegauge_probes.nccl import supervisor
from nodegauge_probes.nccl.supervisor import Limits
from support.nccl_probe import ScriptedArm, subreaper_off
from testbed.wait import wait_for

UNKNOWN = Unavailable("no oom_kill in this control group")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[ScriptedArm]:
    """`script("cell(0)")`: the arm of a child that does this; nothing of it is alive afterwards."""
    run = ScriptedArm(tmp_path)
    yield run
    subreaper_off()
    wait_for(lambda: not run.left_behind(), what="the end of all that the child started")


@pytest.fixture
def time_is_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """`time_is_up(when)`: the child's time stands still until then, and is over at once."""

    def hold(when: Callable[[], bool]) -> None:
        monkeypatch.setattr(supervisor, "Awake", lambda _: lambda: 1e6 if when() else 0.0)

    return hold


TimeIsUp = Callable[[Callable[[], bool]], None]


def test_success(script: ScriptedArm) -> None:
    """Every cell, pairs and five times; of the megabytes that libraries print nothing counts."""
    arm = script("os.write(1, b'NCCL says hello ' * 100_000); os.write(2, b'x' * 1_000_000); all_well()")
    assert (arm.outcome, arm.phase, arm.message, arm.exit_code) == ("done", "", "", 0)
    assert [cell.us for cell in arm.cells] == [100 + n for n in range(10)]
    assert arm.pairs == [[-1, 50], [50, -1]]
    times = (arm.spawn_ms, arm.init_ms, arm.load_ms, arm.measure_ms, arm.teardown_ms)
    assert all(isinstance(time, int) for time in times)


@pytest.mark.parametrize(
    ("phases", "limits", "outcome"),
    [
        ((), Limits(startup=0.5), "start-slow"),
        (("init",), Limits(startup=0.5), "start-slow"),
        (("init", "load"), Limits(load=0.5), "hung"),
        (("init", "load", "measure"), Limits(measure=0.5), "hung"),
        (("init", "load", "measure", "teardown"), Limits(teardown=0.5), "hung"),
    ],
    ids=["spawn", "init", "load", "measure", "teardown"],
)
def test_a_child_without_progress_is_killed(
    script: ScriptedArm, time_is_up: TimeIsUp, phases: tuple[str, ...], limits: Limits, outcome: str
) -> None:
    body = f"""
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
for name in {phases!r}:
    phases(name)
    if name == "measure": cell(0)
while True: time.sleep(9)
"""
    phase, cells = phases[-1] if phases else "spawn", int("measure" in phases)
    time_is_up(lambda: (script.arm.phase, len(script.arm.cells)) == (phase, cells))
    arm = script(body, limits=limits)
    assert (arm.outcome, arm.phase, len(arm.cells)) == (outcome, phase, cells)
    assert arm.exit_code == 128 + signal.SIGKILL
    slow, hung = f"not started after 0.5 s, while in {phase}", f"{phase} exceeded its time limit"
    assert arm.message == (slow if outcome == "start-slow" else hung)


def test_switching_phases_gains_no_time(script: ScriptedArm) -> None:
    body = "phases('init', 'load')\nwhile True: phases('measure', 'check'); time.sleep(0.05)"
    arm = script(body, limits=Limits(measure=0.5))
    assert (arm.outcome, arm.phase in ("measure", "check")) == ("hung", True)


def test_a_child_is_not_blamed_for_the_time_in_which_the_probe_stood_still(
    script: ScriptedArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps by ten minutes at every look, far beyond the limit of each phase."""
    jumps = itertools.count(step=600.0)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: 1000.0 + next(jumps)))
    monkeypatch.setattr(supervisor, "LONGEST_LOOK_S", 0.0)
    assert script("time.sleep(0.1)\nall_well()", seconds=1e9).outcome == "done"


def test_time_counts_up_to_a_second_a_look() -> None:
    """What is longer is time in which nobody looked, once or twice in a row."""
    clock = iter([10.0, 10.5, 99.5, 299.5, 300.0])
    awake = supervisor.Awake(lambda: next(clock))
    assert [awake() for _ in range(4)] == [10.5, 11.5, 12.5, 13.0]


MEASURED = "engine(); phases('init', 'load', 'measure'); cell(0)"
ERROR = "phases('init'); emit(failed={'kind': '%s', 'message': 'unhandled cuda error'})"
ABORTED = "print('Aborted by somebody', file=sys.stderr); sys.exit(3)"
CUT_OFF = 'write(b\'{"cell": {"coll\')'
ENDS = {
    "a signal": (f"{MEASURED}\nos.kill(os.getpid(), signal.SIGSEGV)", "crashed", "measure", 1, "signal 11"),
    "an exit code": (f"{MEASURED}\n{ABORTED}", "crashed", "measure", 1, "exit code 3: Aborted by somebody"),
    "an exception": (f"{MEASURED}\n1 / 0", "crashed", "measure", 1, "ZeroDivisionError"),
    "after all was done": (
        f"{MEASURED}; phases('teardown'); emit(done=True); os.abort()", "crashed", "teardown", 1, "",
    ),
    "NCCL's error": (ERROR % "nccl-error", "failed", "init", 0, "nccl-error: unhandled cuda error"),
    "CUDA's": (ERROR % "out-of-memory", "out-of-memory", "init", 0, "out-of-memory: unhandled cuda error"),
    "another program's output": (
        f"{MEASURED}\nwrite(b'# nThread 1 nGpus 8\\n')\ntime.sleep(600)", "garbage", "measure", 1, "",
    ),
    "endless output": (f"{MEASURED}\nwhile True: write(b'x' * 65536)", "garbage", "measure", 1, ""),
    "half a line": (f"{MEASURED}\n{CUT_OFF}", "garbage", "measure", 1, ""),
    "not a word": ("pass", "partial", "spawn", 0, "without any output"),
    "too early": ("phases('init'); cell(0)", "partial", "init", 1, "before it was done"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_ends_otherwise_says_how(script: ScriptedArm, end: str) -> None:
    body, outcome, phase, cells, message = ENDS[end]
    arm = script(body)
    assert (arm.outcome, arm.phase, len(arm.cells)) == (outcome, phase, cells)
    assert arm.message == message if outcome in ("failed", "out-of-memory") else message in arm.message


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [(4, 5, "out-of-memory"), (4, 4, "crashed"), (UNKNOWN, UNKNOWN, "out-of-memory")],
)
def test_sigkill_from_the_kernel(script: ScriptedArm, before: Int, after: Int, outcome: str) -> None:
    """SIGKILL means out of memory, unless the kernel's count of such kills has not grown."""
    counts = iter([before, after])
    arm = script("phases('init'); os.kill(os.getpid(), signal.SIGKILL)", oom_kills=lambda: next(counts))
    assert (arm.outcome, arm.phase, arm.exit_code) == (outcome, "init", 137)


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(['sleep', '600'])",
        "subprocess.Popen(['sh', '-c', 'setsid sleep 600 & setsid sleep 601 & exit 0']).wait()",
        "os.fork() or time.sleep(600)",
    ],
    ids=["same-session", "orphans-in-new-sessions", "fork"],
)
def test_descendants_are_killed(script: ScriptedArm, start: str) -> None:
    """In its group, in a new session, or orphaned; the result is complete."""
    arm = script(f"{start}\nall_well()")
    assert (arm.outcome, len(arm.cells)) == ("done", 10)
    assert "processes that it left behind" in arm.message


def test_descendants_that_keep_the_pipe_open(script: ScriptedArm, time_is_up: TimeIsUp) -> None:
    time_is_up(lambda: len(script.left_behind()) == 2)
    body = "subprocess.Popen(['sleep', '600'], start_new_session=True, pass_fds=(pipe,)); time.sleep(600)"
    assert script(body, limits=Limits(startup=2.0)).outcome == "start-slow"


def test_other_processes_are_not_touched(script: ScriptedArm) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert script("all_well()").outcome == "done"
            assert other.poll() is None
        finally:
            other.kill()


def test_a_shutdown_from_another_thread(script: ScriptedArm) -> None:
    arm = script("phases('init', 'load', 'measure'); cell(0); engine(); time.sleep(600)", shut_down=True)
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("cut", "measure", 1)


def test_a_missing_program(script: ScriptedArm, tmp_path: Path) -> None:
    """It is the end of that run, with its reason."""
    arm = script(program=str(tmp_path / "nowhere"))
    assert (arm.outcome, script.failed.kind) == ("failed", "no-engine")
    assert "nowhere cannot be started: No such file" in script.failed.message
