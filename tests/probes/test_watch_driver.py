"""The watch probe under a driver that hangs, or that refuses some calls and answers others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodegauge_judge import judge_health
from support.machines import SECOND
from support.probing import Probe
from support.watch_probe import Watch
from testbed.hardware import Hardware
from testbed.hardware.fault import FAULTS, Fault
from testbed.hardware.machine import Machine
from testbed.hardware.plugged import boottime_ns
from testbed.profiles import Profile
from testbed.wait import DEADLINE_SECONDS, wait_for

On = Callable[[str | Profile], Watch]
UNKNOWN, RESET_REQUIRED = 999, 16
READINGS = (
    "nvmlDeviceGetTemperatureV nvmlDeviceGetFieldValues nvmlDeviceGetTotalEccErrors nvmlDeviceGetNvLinkState"
    " nvmlDeviceGetRemappedRows nvmlDeviceGetMigMode nvmlDeviceGetPowerSource nvmlDeviceGetEnforcedPowerLimit"
    " nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetP2PStatus"
)


def refused(machine: Machine, *, calls: str = "", gpu: int = 1, code: int = UNKNOWN) -> None:
    """A GPU answers some calls with an error, and all others."""
    for call in calls.split():
        machine.calls[gpu, call] = code


@pytest.fixture
def watch(probe: Callable[[str | Profile], Probe], monkeypatch: pytest.MonkeyPatch) -> On:
    """`watch("h100-sxm-8")`: that machine, plugged in, and the watch probe on it."""
    monkeypatch.setitem(FAULTS, "refused", Fault(name="refused", does="", apply=refused))
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
    assert ended.result.problem.kind == "call-hung"
    assert [gpu.xids.seen for gpu in ended.result.gpus] == [[], [79]]
    assert {"xid", "call-hung"} <= {finding.code for finding in judge_health(ended.result).findings}
    stored = on.stored()
    assert (stored["xids"], [one["code"] for one in stored["reported_xids"]]) == ([], [79])


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetTemperature"])
def test_an_xid_is_reported_that_comes_while_a_look_hangs(watch: On, call: str) -> None:
    """As when a GPU falls off the bus: the call under way does not return, and then comes the Xid."""
    on = watch("titan-rtx-nv2")
    on.life()
    machine = on.probe.hardware.directory

    def fails() -> None:
        on.probe.hardware.fault("hung-call", call=call)
        Hardware(machine, clock=lambda: boottime_ns() + SECOND).fault("xid", gpu=1, number=79)

    ended = on.after(fails, "--deadline", "6")
    assert ended.result.problem.call == call.removesuffix("_v2")
    assert [gpu.xids.seen for gpu in ended.result.gpus] == [[], [79]]
    assert {"xid", "call-hung"} <= {finding.code for finding in judge_health(ended.result).findings}
    again = on.life("--deadline", "6").result
    assert again.gpus == []


def test_an_xid_waits_for_the_next_life_if_the_container_is_asked_to_end(watch: On) -> None:
    """Nobody reads the document that SIGTERM leaves."""
    on = watch("titan-rtx-nv2")
    on.life()
    with on.started("--window", "30", "--deadline", "60") as process:
        on.calm(process)
        on.probe.hardware.fault("xid", gpu=1, number=79, per_second=1)
        wait_for(lambda: on.stored()["xids"], what="the Xid in the state")
        process.terminate()
        process.wait(timeout=DEADLINE_SECONDS)
    on.probe.hardware.heal()
    assert "Xid 79 GPU-1" in on.life().why


def test_a_gpu_that_becomes_unreadable_is_reported_twice_at_most(watch: On) -> None:
    """Its quantities change together, and not one per life of the container."""
    on = watch("h100-sxm-8")
    on.life()
    ended = on.after(lambda: on.probe.hardware.fault("refused", calls=READINGS))
    assert "GPU-1" in ended.why
    assert len(on.reports(looks=100)) <= 1
    ended = on.after(on.probe.hardware.heal)
    assert "GPU-1" in ended.why


def test_a_gpu_that_must_be_reset_is_one_report_though_most_calls_answer(watch: On) -> None:
    """Also where only a call says so that is made now and then: a new handle is asked everything at once."""
    on = watch("titan-rtx-nv2")
    on.life()
    on.probe.hardware.fault("refused", calls="nvmlDeviceGetRetiredPages", code=RESET_REQUIRED)
    assert on.reports(looks=75) == ["changed: error GPU-1 none -> reset-required"]


def test_the_loss_of_a_gpu_is_no_news_of_its_peers(watch: On) -> None:
    """Its own error says it all; its links are down for both ends."""
    on = watch("titan-rtx-nv2")
    on.life()
    on.probe.hardware.fault("gpu-lost", gpu=1)
    first, *more = on.reports()
    assert "error GPU-1 none -> gpu-lost" in first
    assert "P2P" not in " ".join([first, *more])
