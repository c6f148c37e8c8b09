"""The watch probe under a driver that hangs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodegauge_judge import judge_health
from support.probing import Probe
from support.watch_probe import Watch, terminated
from testbed.profiles import Profile
from testbed.wait import wait_for

On = Callable[[str | Profile], Watch]


@pytest.fixture
def watch(probe: Callable[[str | Profile], Probe]) -> On:
    """`watch("h100-sxm-8")`: that machine, plugged in, and the watch probe on it."""
    return lambda profile: Watch(probe(profile))


def test_an_xid_is_reported_though_the_reading_hangs(watch: On) -> None:
    """Once, with what was read: a GPU with a fatal Xid is the one whose calls hang."""
    on = watch("titan-rtx-nv2")
    on.life()

    def fails() -> None:
        on.probe.hardware.fault("hung-call", call="nvmlDeviceGetPowerUsage")
        on.probe.hardware.fault("xid", gpu=1, number=79)

    ended = on.after(fails, "--deadline", "6")
    assert "Xid 79 GPU-1" in ended.why
    assert ended.result is not None
    assert ended.result.problem is not None
    assert ended.result.problem.kind == "call-hung"
    assert [gpu.xids.seen for gpu in ended.result.gpus] == [[], [79]]
    assert {"xid", "call-hung"} <= {finding.code for finding in judge_health(ended.result).findings}
    stored = on.stored()
    assert (stored["xids"], [one["code"] for one in stored["reported_xids"]]) == ([], [79])


def test_an_xid_waits_for_the_next_life_if_the_container_is_asked_to_end(watch: On) -> None:
    """Nobody reads the document that SIGTERM leaves."""
    on = watch("titan-rtx-nv2")
    on.life()
    with on.started("--window", "30", "--deadline", "60") as process:
        on.calm(process)
        on.probe.hardware.fault("xid", gpu=1, number=79, per_second=1)
        wait_for(lambda: on.stored()["xids"], what="the Xid in the state")
        terminated(process)
    on.probe.hardware.heal()
    assert "Xid 79 GPU-1" in on.life().why
