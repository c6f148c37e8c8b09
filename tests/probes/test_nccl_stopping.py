"""A run of the benchmark that is ended: by a signal, by SIGKILL, by another thread, by its own time.

Whoever was started is gone afterwards, and what was measured is there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from nodegauge_contract import Unavailable
from support.nccl_probe import NcclRun, wait_for
from testbed.profiles import Profile

On = Callable[[str | Profile], NcclRun]

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def two(benchmark: On) -> NcclRun:
    """Two GPUs with NVLink: arms default and p2p-off."""
    return benchmark("titan-rtx-nv2")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_probe_kills_the_children_first(two: NcclRun, number: signal.Signals) -> None:
    """With all that they started; what was measured is written, and no arm begins any more."""
    touch = two.folder / "measuring"
    body = f"""
subprocess.Popen(["sleep", "600"], start_new_session=True)
engine(); phases("init", "load", "measure"); cell(0)
open({str(touch)!r}, "w"); time.sleep(600)
"""
    run = two.child(body).start()
    assert wait_for(touch.exists)
    began = time.monotonic()
    os.kill(run.pid, number)
    result = two.finish(run)
    assert time.monotonic() - began < 10
    assert result.problem is not None
    assert result.problem.kind == "terminated"
    assert result.nccl is not None
    arm, later = result.nccl.arms
    assert (arm.outcome, arm.phase, len(arm.cells)) == ("cut", "measure", 1)
    assert (later.name, later.outcome, later.phase) == ("p2p-off", "cut", "")
    assert result.gpus[0].uuid == result.nccl.uuids[0]


def test_children_die_with_a_probe_that_is_killed(two: NcclRun) -> None:
    """SIGKILL leaves it no last word; the kernel ends its children."""
    touch = two.folder / "measuring"
    run = two.child(f"open({str(touch)!r}, 'w'); time.sleep(600)").start()
    assert wait_for(touch.exists)
    assert len(two.left_behind()) == 2
    run.kill()
    run.communicate()
    assert wait_for(lambda: not two.left_behind())


def test_the_run_s_own_time_ends_arms_and_not_the_result(two: NcclRun) -> None:
    """The running arm is cut, the next one too without having begun, and both are there."""
    nccl = two.child("phases('init', 'load', 'measure'); cell(0); time.sleep(60)").nccl("--deadline", "4")
    assert [(arm.name, arm.outcome) for arm in nccl.arms] == [("default", "cut"), ("p2p-off", "cut")]
    assert ([len(arm.cells) for arm in nccl.arms], nccl.arms[0].phase) == ([1, 0], "measure")
    assert nccl.arms[1].spawn_ms == Unavailable("not read")
