"""Faults around the GPU and on machines made for them: fans, supplies, rails, ports, clocks, repairs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from support.machines import snapshot, sysfs, with_driver
from testbed import profiles
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, HardwareError, plug
from testbed.profiles.hostmodel import HwmonChip, HwmonSensor
from testbed.profiles.model import Fans

SUPPLY = HwmonChip(
    name="corsairpsu",
    sensors=(
        HwmonSensor(name="in1", label="v_in", value=230000, alarm=0),
        HwmonSensor(name="in2", label="v_out +12v", value=12050, alarm=0, min=11400, max=12600, lcrit=8410),
        HwmonSensor(name="power1", label="power total", value=212_000_000, alarm=0),
        HwmonSensor(name="power2", value=90_000_000, average=True),
        HwmonSensor(name="fan1", value=650),
    ),
)


@pytest.fixture
def workstation(tmp_path: Path) -> Hardware:
    """A pair of TITANs whose supply can be read."""
    result = profiles.load("titan-rtx-nv2")
    made = msgspec.structs.replace(
        result,
        host=msgspec.structs.replace(result.host, hwmon=(SUPPLY,)),
        model=msgspec.structs.replace(result.model, fans=Fans(count=2, idle=30, full=80, rpm=3000)),
    )
    return plug(made, tmp_path / "workstation")


def read(hardware: Hardware, name: str) -> str:
    """A file of the supply's chip."""
    return (sysfs(hardware) / "class/hwmon/hwmon0" / name).read_text().strip()


def test_hwmon_has_the_files_that_the_chip_has_and_no_other(workstation: Hardware) -> None:
    """Values, labels, alarms and limits where the profile gives them; a mean is called average."""
    files = {path.name for path in (sysfs(workstation) / "class/hwmon/hwmon0").iterdir()}

    assert files == {
        *("name", "in1_input", "in1_label", "in1_alarm"),
        *("in2_input", "in2_label", "in2_alarm", "in2_min", "in2_max", "in2_lcrit"),
        *("power1_input", "power1_label", "power1_alarm", "power2_average", "fan1_input"),
    }
    assert (read(workstation, "name"), read(workstation, "in2_input")) == ("corsairpsu", "12050")


def test_a_supply_raises_an_alarm_on_its_watts_first(workstation: Hardware) -> None:
    """The first sensor with an alarm, watts before volts; or the one that was named; healed, none."""
    workstation.fault("psu-alarm")
    assert [read(workstation, f"{name}_alarm") for name in ("power1", "in1", "in2")] == ["1", "0", "0"]
    workstation.heal()
    workstation.fault("psu-alarm", sensor="in1")
    assert [read(workstation, f"{name}_alarm") for name in ("power1", "in1", "in2")] == ["0", "1", "0"]
    workstation.heal()
    assert [read(workstation, f"{name}_alarm") for name in ("power1", "in1", "in2")] == ["0", "0", "0"]
    with pytest.raises(HardwareError, match="no hwmon sensor with an alarm called power2"):
        workstation.fault("psu-alarm", sensor="power2")


def test_a_rail_out_of_its_limits_raises_its_alarm(workstation: Hardware) -> None:
    """The 12 V rail at 88 per cent is below the chip's limit; at 99 per cent it is like any other."""
    workstation.fault("rail-out-of-range")
    assert (read(workstation, "in2_input"), read(workstation, "in2_alarm")) == ("10604", "1")
    workstation.heal()
    workstation.fault("rail-out-of-range", percent=99)
    assert (read(workstation, "in2_input"), read(workstation, "in2_alarm")) == ("11929", "0")


def test_a_stopped_fan_is_told_to_turn_and_does_not(workstation: Hardware) -> None:
    """Intended speed and target follow the load on both fans; the rpm of the first are 0."""
    modern = with_fans(workstation, "580.82.07")
    modern.fault("fan-stopped", gpu=1, fan=0)

    with NvmlClient(modern.env()) as nvml:
        assert [nvml.ask("nvmlDeviceGetFanSpeedRPM", GPU(gpu)) for gpu in (0, 1)] == [900, 0]
        modern.load(100)
        assert nvml.ask("nvmlDeviceGetNumFans", GPU(1)) == 2
        assert [nvml.ask("nvmlDeviceGetFanSpeed_v2", GPU(1), fan) for fan in (0, 1)] == [80, 80]
        assert nvml.ask("nvmlDeviceGetTargetFanSpeed", GPU(1), 0) == 80
        assert nvml.refusal("nvmlDeviceGetFanSpeed_v2", GPU(1), 2) == 2
        assert [nvml.ask("nvmlDeviceGetFanSpeedRPM", GPU(gpu)) for gpu in (0, 1)] == [2400, 0]


def with_fans(workstation: Hardware, version: str) -> Hardware:
    """The same machine under a driver that tells rpm."""
    result = workstation.profile
    driver = msgspec.structs.replace(result.driver, version=version)
    return plug(msgspec.structs.replace(result, driver=driver), workstation.directory.with_name(version))


def test_a_port_that_is_down_has_lost_its_link_once(tmp_path: Path) -> None:
    """State and physical state change, also by the card's name; up again, the loss stays counted."""
    hardware = plug("dgx1-v100-8", tmp_path)
    port = sysfs(hardware) / "class/infiniband/mlx5_2/ports/1"

    def now() -> list[str]:
        return [(port / name).read_text().strip() for name in ("state", "phys_state", "counters/link_downed")]

    assert now() == ["4: ACTIVE", "5: LinkUp", "0"]
    hardware.fault("nic-down", nic="mlx5_2")
    assert now() == ["1: DOWN", "2: Polling", "1"]
    hardware.heal()
    assert now() == ["4: ACTIVE", "5: LinkUp", "1"]


def test_a_slow_port_lost_three_of_its_lanes(tmp_path: Path) -> None:
    """100 Gb/s over four lanes become 25 over one; its siblings keep theirs."""
    hardware = plug("dgx1-v100-8", tmp_path)
    hardware.fault("nic-slow", nic=1)

    rates = {p.parts[-4]: p.read_text() for p in sysfs(hardware).glob("class/infiniband/*/ports/1/rate")}
    assert rates.pop(hardware.profile.host.nics[1].name) == "25 Gb/sec (1X EDR)\n"
    assert set(rates.values()) == {"100 Gb/sec (4X EDR)\n"}


@pytest.mark.parametrize(
    ("fault", "call", "quiet", "reported"),
    [
        ("repair-pending", "nvmlDeviceGetRepairStatus", [0, 0], [1, 0]),
        ("memory-unrepairable", "nvmlDeviceGetUnrepairableMemoryFlag_v1", 0, 1),
    ],
)
def test_repairs_are_told_by_drivers_that_know_of_them(
    tmp_path: Path, fault: str, call: str, quiet: object, reported: object
) -> None:
    """On Hopper with a recent driver the call changes; an older one has no such call and no such fault."""
    hardware = with_driver("590.44.01", tmp_path / "new")
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask(call, GPU(2)) == quiet
        hardware.fault(fault, gpu=2)
        assert (nvml.ask(call, GPU(1)), nvml.ask(call, GPU(2))) == (quiet, reported)
    with pytest.raises(HardwareError, match="h100-sxm-8 has no"):
        plug("h100-sxm-8", tmp_path / "old").fault(fault)


def test_a_clock_step_moves_times_of_day_and_nothing_else(tmp_path: Path) -> None:
    """NVML's timestamps jump by an hour, back as well as forth; counters go on as if nothing had been."""
    hardware = plug("pcie-phb-2", tmp_path)
    before = snapshot(hardware)
    with NvmlClient(hardware.env()) as nvml:
        energy = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(0))
        for seconds in (3600, -3600):
            hardware.fault("clock-step", seconds=seconds)
            reported = nvml.field(0, 83)["timestamp"] / 1e6
            assert reported == pytest.approx(time.time() + seconds, abs=60)
            assert snapshot(hardware) == before
            hardware.heal()
        later = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(0))
        assert energy <= later < energy + 60 * 60 * hardware.profile.model.power.idle
