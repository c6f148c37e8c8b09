"""One process per GPU: real processes, of which one hangs, dies or says something else."""

import pytest

from nodegauge_contract import Cell
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_probes.nccl.protocol import EngineInfo, Failed, Line
from nodegauge_probes.nccl.ranks import Disagreement, combined
from support.nccl_probe import NcclOn
from testbed.wait import wait_for

pytestmark = pytest.mark.slow
LIMITS = ("--processes", "perGPU", "--limits", "8,3,3")
BAD = """
if order["rank"] != {rank}:
    engine(); phases("init", "load", "measure"); cell(0)
    open({mark!r}, "w")
    time.sleep(600)  # as NCCL does
while not os.path.exists({mark!r}):
    time.sleep(0.01)
engine()
phases(*{phases!r})
if "measure" in {phases!r}:
    cell(0)
{death}
time.sleep(600)
"""
HANGS = "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); time.sleep(600)"
KILLED = "os.kill(os.getpid(), 9)"
ERROR = "emit(failed={'kind': 'nccl-error', 'message': 'peer access'}); sys.exit(1)"
GARBAGE = "write(b'hello\\n'); time.sleep(60)"
OTHER = "phases('measure'); cell(2)"
INIT, LOAD, MEASURE = ("init",), ("init", "load"), ("init", "load", "measure")
SLOW, P2P, FAILED = "nccl-start-slow", "p2p-broken", "nccl-failed"
ENDS = {
    "hangs in init": (1, INIT, HANGS, "start-slow", "init", "rank 1", SLOW),
    "the first hangs in its first calls": (0, LOAD, HANGS, "hung", "load", "rank 0", P2P),
    "crashes": (1, MEASURE, "os.abort()", "crashed", "measure", "rank 1 of 2 ended in measure", FAILED),
    "is killed": (1, LOAD, KILLED, "out-of-memory", "load", "memory", FAILED),
    "exits early": (1, MEASURE, "sys.exit(0)", "partial", "measure", "before it was done", FAILED),
    "reports an error": (1, INIT, ERROR, "failed", "init", "nccl-error: rank 1: peer access", FAILED),
    "sends garbage": (1, MEASURE, GARBAGE, "crashed", "measure", "rank 1: not a protocol line", FAILED),
    "measures something else": (1, LOAD, OTHER, "crashed", "measure", "disagree", FAILED),
}


@pytest.mark.parametrize("name", ENDS)
def test_one_rank_that_ends_badly_ends_the_configuration(nccl_on: NcclOn, name: str) -> None:
    rank, phases, death, outcome, phase, message, code = ENDS[name]
    run = nccl_on("titan-rtx-nv2")
    run.child(BAD.format(rank=rank, phases=phases, death=death, mark=f"{run.folder}/others"))
    result = run.result(*LIMITS)
    default, p2p_off = result.nccl.arms
    assert (default.outcome, default.phase) == (outcome, phase), default.message
    assert message in default.message
    assert (p2p_off.outcome, p2p_off.processes) == ("done", 2)
    assert [finding.code for finding in judge_nccl(result).findings if finding.severity != "info"] == [code]


def test_ranks_measure_like_one_process(nccl_on: NcclOn) -> None:
    run = nccl_on("h100-sxm-8").child("all_well()", arm="all")
    apart, together = (run.nccl("--processes", processes) for processes in ("perGPU", "one"))
    assert [arm.cells for arm in apart.arms] == [arm.cells for arm in together.arms]
    assert [arm.pairs for arm in apart.arms] == [arm.pairs for arm in together.arms]
    assert [arm.processes for arm in apart.arms] == [apart.ranks] * len(apart.arms)


def test_ranks_die_with_a_probe_that_is_killed(nccl_on: NcclOn) -> None:
    two = nccl_on("titan-rtx-nv2")
    body = f"open({str(two.folder)!r} + '/rank-%d' % order['rank'], 'w'); time.sleep(600)"
    run = two.child(body).start("--processes", "perGPU")
    wait_for(lambda: len(list(two.folder.glob("rank-*"))) == 2, what="two ranks at work")
    run.kill()
    run.communicate()
    two.wait_until_alone()


def cell(us: float, **more: int | float) -> Line:
    return Line(cell=Cell(collective="all_reduce", bytes=8, us=us, **more))  # type: ignore[arg-type]


def test_the_slowest_rank_gives_the_time_and_all_give_wrong_elements() -> None:
    line = combined([cell(20.0, wrong=1, launch_us=5.0), cell(30.0, wrong=2, launch_us=4.0)])
    assert (line.cell.us, line.cell.wrong, line.cell.launch_us) == (30.0, 3, 5.0)


@pytest.mark.parametrize(
    "other",
    [
        Line(phase="load"),
        Line(done=True),
        Line(cell=Cell(collective="all_gather", bytes=8, us=1.0)),
        Line(engine=EngineInfo(name="x")),
        Line(failed=Failed(kind="nccl-error")),
    ],
)
def test_ranks_that_say_different_things_disagree(other: Line) -> None:
    """NCCL would wait for ever for one of them."""
    with pytest.raises(Disagreement):
        combined([cell(20.0), other])
