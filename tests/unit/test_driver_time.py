"""What changes with time: energy, temperatures, clocks, and throttle counters that faults and load drive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from support.machines import SECOND, busy, sysfs, with_driver
from testbed import profiles
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import FAULTS, Hardware, plug
from testbed.hardware.faults import Fault
from testbed.hardware.machine import Machine, When
from testbed.hardware.plugged import boottime_ns

SM_CLOCK = 1


def test_energy_is_power_over_time(tmp_path: Path) -> None:
    """100 s idle and then 50 s at full load make the millijoules that the model's watts say."""
    start = boottime_ns()
    power = profiles.load("h100-sxm-8").model.power
    hardware = plug("h100-sxm-8", tmp_path, clock=lambda: start - 150 * SECOND)
    Hardware(tmp_path, clock=lambda: start - 50 * SECOND).load(100, gpu=1)

    with NvmlClient(hardware.env()) as nvml:
        idle, busy = (nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(gpu)) for gpu in (0, 1))
        asked_for = (boottime_ns() - start) / SECOND

        assert 150 * power.idle <= idle <= (150 + asked_for) * power.idle
        expected = 100 * power.idle + 50 * power.full
        assert expected <= busy <= expected + asked_for * power.full
        assert nvml.ask("nvmlDeviceGetPowerUsage", GPU(1)) == power.full
        assert nvml.field(1, 186)["value"]["uiVal"] == power.full
        assert nvml.ask("nvmlDeviceGetUtilizationRates", GPU(1))["gpu"] == 100
        assert nvml.ask("nvmlDeviceGetTemperature", GPU(1), 0) == pytest.approx(64, abs=2)
        assert nvml.ask("nvmlDeviceGetTemperature", GPU(0), 0) == 33
        assert nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", GPU(1)) == 0
        assert nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", GPU(0)) == 1


@pytest.fixture
def throttling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault for this test alone: GPU 0 is slowed down by heat in 400 of 1000 ms."""

    def apply(machine: Machine) -> None:
        machine.holds[0, "hw_thermal"] = 400, When.ALWAYS

    monkeypatch.setitem(FAULTS, "test-throttling", Fault(name="test-throttling", does="", apply=apply))


@pytest.mark.usefixtures("throttling")
def test_counters_grow_while_a_reason_holds_and_keep_what_they_counted(tmp_path: Path) -> None:
    """20 s at 400 per mille are 8 s of HW thermal slowdown; healed, they stay; a reset begins again at 0."""
    start = boottime_ns()
    hardware = with_driver("580.82.07", tmp_path)
    Hardware(tmp_path, clock=lambda: start - 30 * SECOND).reset()
    Hardware(tmp_path, clock=lambda: start - 20 * SECOND).fault("test-throttling")
    Hardware(tmp_path, clock=lambda: start).heal("test-throttling")

    with NvmlClient(hardware.env()) as nvml:

        def counters() -> list[int]:
            return [nvml.field(0, number)["value"]["ullVal"] for number in (269, 270, 271, 75)]

        assert counters() == [0, 8 * SECOND, 0, 8 * SECOND]
        assert nvml.ask("nvmlDeviceGetViolationStatus", GPU(0), 1)["violationTime"] == 8 * SECOND
        assert nvml.field(1, 270)["value"]["ullVal"] == 0
        hardware.fault("test-throttling")
        reasons = {nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", GPU(0)) for _ in samples(1.1)}
        assert reasons == {0x48, 0x1}
        hardware.heal()
        hardware.reset(gpu=0)
        assert counters()[1] == 0


def samples(seconds: float) -> Iterator[None]:
    """As many turns as fit into the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield


def sm_clock(nvml: NvmlClient, gpu: int = 0) -> int:
    clock: int = nvml.ask("nvmlDeviceGetClockInfo", GPU(gpu), SM_CLOCK)
    return clock


def reasons(nvml: NvmlClient, gpu: int = 0) -> int:
    mask: int = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", GPU(gpu))
    return mask


def counters(nvml: NvmlClient, gpu: int = 0) -> list[int]:
    """SW thermal, HW thermal, power brake (as new drivers number them) and SW power cap, in ns."""
    return [nvml.field(gpu, number)["value"]["ullVal"] for number in (269, 270, 271, 74)]


@pytest.mark.parametrize(
    ("fault", "mask", "clock"),
    [
        ({"kind": "sw"}, 0x20, 0.75),
        ({"kind": "hw"}, 0x48, 0.5),
    ],
)
def test_heat_slows_down_what_works_and_nothing_else(
    tmp_path: Path, fault: dict[str, str], mask: int, clock: float
) -> None:
    """Under load the clock falls, the bit stands and the counter grows; idle, none of it; siblings not."""
    hardware = with_driver("590.44.01", tmp_path)
    which = 1 if fault["kind"] == "hw" else 0
    hardware.fault("thermal-slowdown", **fault)

    with NvmlClient(hardware.env()) as nvml:
        assert (reasons(nvml), counters(nvml)) == (1, [0, 0, 0, 0])
        hardware.load(100)
        loaded = sm_clock(nvml, 1)
        assert (reasons(nvml), reasons(nvml, 1)) == (mask, 0)
        assert sm_clock(nvml) == int(loaded * clock)
        assert nvml.ask("nvmlDeviceGetPowerUsage", GPU(0)) < profiles.load("h100-sxm-8").model.power.full
        first = counters(nvml)
        assert [n for n, value in enumerate(first) if value] == [which]
        hardware.load(0)
        still = counters(nvml)
        assert still[which] > first[which]
        assert (reasons(nvml), counters(nvml)) == (1, still)


def test_the_power_brake_stands_while_idle(tmp_path: Path) -> None:
    """Its bits and its counter do not need load; under load the clock is halved."""
    hardware = with_driver("590.44.01", tmp_path)
    hardware.fault("power-brake")

    with NvmlClient(hardware.env()) as nvml:
        assert reasons(nvml) == 0x88
        before = counters(nvml)[2]
        assert counters(nvml)[2] > before > 0
        hardware.load(100)
        assert sm_clock(nvml) == sm_clock(nvml, 1) // 2


def test_a_power_cap_counts_while_it_holds_and_limits_what_is_drawn(tmp_path: Path) -> None:
    """A limit below what full load takes: enforced limit, bit, counter and watts say so."""
    hardware = with_driver("590.44.01", tmp_path)
    hardware.fault("power-cap-low", percent=50)

    with NvmlClient(hardware.env()) as nvml:
        assert counters(nvml)[3] == 0
        hardware.load(100)
        limit = nvml.ask("nvmlDeviceGetEnforcedPowerLimit", GPU(0))
        assert limit * 2 == nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", GPU(0))
        assert reasons(nvml) == 0x4
        assert counters(nvml)[3] > 0
        assert nvml.field(0, 186)["value"]["uiVal"] == limit


def test_sysfs_and_nvml_agree_on_the_pcie_link(tmp_path: Path) -> None:
    """Low while idle on a consumer board, full under load, and half the lanes when half are gone; clocks and
    P-state wake with the link."""
    hardware = plug("titan-rtx-nv2", tmp_path)
    device = sysfs(hardware) / "bus/pci/devices" / hardware.profile.gpus[0].address
    speeds = {"2.5 GT/s PCIe": 1, "8.0 GT/s PCIe": 3}

    with NvmlClient(hardware.env()) as nvml:

        def both() -> list[tuple[int, int]]:
            reported = [
                nvml.ask(f"nvmlDeviceGetCurrPcieLink{what}", GPU(0)) for what in ("Generation", "Width")
            ]
            speed = speeds[(device / "current_link_speed").read_text().strip()]
            return [(reported[0], reported[1]), (speed, int((device / "current_link_width").read_text()))]

        def core() -> tuple[int, int]:
            return nvml.ask("nvmlDeviceGetPerformanceState", GPU(0)), sm_clock(nvml)

        idle = both()
        assert core() == (8, 300)
        hardware.load(80)
        assert core() == (2, 1770)
        hardware.load(100)
        loaded = both()
        hardware.fault("pcie-width-halved")
        halved = both()

    assert idle[0] == idle[1]
    assert idle[0][0] == 1
    assert loaded == [(3, 16)] * 2
    assert halved == [(3, 8)] * 2


def test_counted_seconds_are_there_from_the_start_and_go_with_a_restart(tmp_path: Path) -> None:
    """4,252 s of power cap from before the plugging stand in the counter until the driver is loaded anew."""
    result = profiles.load("rtx4000ada-1")
    counted = msgspec.structs.replace(result.gpus[0], counted={"sw_power_cap": 4252})
    hardware = plug(msgspec.structs.replace(result, gpus=(counted,)), tmp_path)

    with NvmlClient(hardware.env()) as nvml:
        assert counters(nvml)[3] == 4252 * SECOND
        hardware.reset()
        assert counters(nvml)[3] == 0


@pytest.mark.parametrize(("kind", "restarted"), [("driver-reload", [0, 1]), ("gpu-reset", [1])])
def test_counters_begin_anew(tmp_path: Path, kind: str, restarted: list[int]) -> None:
    """Energy goes back on all GPUs when the driver is loaded anew, on one when one is reset; heat stays."""
    hardware = busy("rtx3090-nv4-2", tmp_path)

    with NvmlClient(hardware.env()) as nvml:

        def energy() -> list[int]:
            return [nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(gpu)) for gpu in (0, 1)]

        before, heat = energy(), nvml.ask("nvmlDeviceGetTemperature", GPU(1), 0)
        hardware.fault("counters-restarted", kind=kind, gpu=1)
        after = energy()
        assert [gpu for gpu in (0, 1) if after[gpu] < before[gpu]] == restarted
        assert nvml.ask("nvmlDeviceGetTemperature", GPU(1), 0) == heat


def test_with_its_last_client_an_idle_gpu_forgets_what_it_counted(tmp_path: Path) -> None:
    """Persistence off: counters last while anybody is there or anything runs, and begin anew after that."""
    hardware = plug("rtx3090-nv4-2", tmp_path, clock=lambda: boottime_ns() - 100 * SECOND)
    again = Hardware(tmp_path)
    again.load(100, gpu=1)

    def energy(nvml: NvmlClient) -> list[int]:
        return [nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(gpu)) for gpu in (0, 1)]

    again.fault("counters-restarted", kind="last-client")
    with NvmlClient(hardware.env()) as first:
        assert first.ask("nvmlDeviceGetPersistenceMode", GPU(0)) == 0
        one = energy(first)
        with NvmlClient(hardware.env()) as second:
            two = energy(second)
            assert all(later >= sooner for later, sooner in zip(two, one, strict=True))
        first.ask("nvmlShutdown")
        first.ask("nvmlInit")
        three = energy(first)
    assert three[0] < two[0]  # idle: nobody was there
    assert three[1] > two[1]  # a job was
