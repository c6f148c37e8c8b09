"""Cumulative throttle counters, and the rule that finds the three whose field ids moved between drivers.

SW thermal, HW thermal and HW power brake did not exist before driver 575, were fields 251 to 253 in 575 to
580.65, and are 269 to 271 since 580.82; 269 to 271 used to be power-smoothing constants.  The wrong numbers
read as "never throttled" without any error, so near the change both trios are read, and one is used only if
it answers and the other does not.  Source: nvidia-ml-py wheels of those releases compared, and
a trace of nvidia-smi 580.65.06 in NVIDIA/k8s-test-infra.

Only the growth of counters is judged.  They are read at both ends of the sampling window, each time with
CLOCK_BOOTTIME, so that the first run has a growth, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodegauge_contract import Counters, Growth, Int, Text, Unavailable
from nodegauge_probes.collectors.telemetry import energy
from nodegauge_probes.host.kernel import boottime_ms
from nodegauge_probes.host.kernel import growth as difference
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.values import ULL
from nodegauge_probes.result_builder import GpuBuilder

OLD_TRIO, NEW_TRIO = (251, 252, 253), (269, 270, 271)
FIRST_WITH_COUNTERS, LAST_IN_DOUBT = 575, 580
"""Field ids of SW thermal, HW thermal and power brake; the drivers between which they moved."""

FI_POWER, FI_THERMAL, FI_SYNC_BOOST, FI_LOW_UTILIZATION = 74, 75, 76, 78
"""NVML_FI_DEV_PERF_POLICY_*: fields whose numbers never changed."""

PERF_POLICY_THERMAL = 1

Reading = int | float | Unavailable


class Snapshot(Struct, frozen=True):
    """One reading of a GPU's counters, with CLOCK_BOOTTIME in ms from just before it."""

    boottime_ms: int
    counters: Counters
    energy_mj: Int


def snapshot(nvml: Nvml, device: Device, gpu: GpuBuilder, *, driver: Text) -> Snapshot:
    """Read all counters of one GPU, in nanoseconds, and its energy, into the result and for comparison."""
    boottime = boottime_ms()
    taken = Snapshot(boottime, _read(nvml, device, driver=driver), energy(nvml, device))
    gpu.counters = taken.counters
    gpu.power.set(energy_mj=taken.energy_mj)
    return taken


def growth(before: Snapshot, after: Snapshot) -> Growth:
    """The growth between two snapshots of one GPU."""
    old, new = before.counters, after.counters
    return Growth(
        elapsed_ms=after.boottime_ms - before.boottime_ms,
        sw_power_cap_ns=difference(old.sw_power_cap_ns, new.sw_power_cap_ns),
        sw_thermal_ns=difference(old.sw_thermal_ns, new.sw_thermal_ns),
        hw_thermal_ns=difference(old.hw_thermal_ns, new.hw_thermal_ns),
        power_brake_ns=difference(old.power_brake_ns, new.power_brake_ns),
        thermal_violation_ns=difference(old.thermal_violation_ns, new.thermal_violation_ns),
        energy_mj=difference(before.energy_mj, after.energy_mj),
    )


def _read(nvml: Nvml, device: Device, *, driver: Text) -> Counters:
    def stable(field: int) -> Int:
        return _whole(nvml.fields(device, field, only=ULL)[0])

    power_cap, thermal, boost, low = map(stable, (FI_POWER, FI_THERMAL, FI_SYNC_BOOST, FI_LOW_UTILIZATION))
    if isinstance(thermal, Unavailable):
        call = "nvmlDeviceGetViolationStatus"
        answer = nvml.integer(device, call, PERF_POLICY_THERMAL, pick=lambda status: status.violationTime)
        thermal = thermal if isinstance(answer, Unavailable) else answer
    old, new = (nvml.fields(device, *trio, only=ULL) for trio in (OLD_TRIO, NEW_TRIO))
    trio, (sw_thermal, hw_thermal, brake) = choose(driver, old=old, new=new)
    return Counters(
        trio=trio,
        sw_power_cap_ns=power_cap,
        sync_boost_ns=boost,
        sw_thermal_ns=sw_thermal,
        hw_thermal_ns=hw_thermal,
        power_brake_ns=brake,
        thermal_violation_ns=thermal,
        low_utilization_ns=low,
    )


def choose(driver: Text, *, old: Sequence[Reading], new: Sequence[Reading]) -> tuple[Text, list[Int]]:
    """The name of this driver's trio and its values; or why it is unknown."""
    major = _major(driver)
    if major is None:
        return _none("the driver version is unknown, and the counters' field ids depend on it")
    if major < FIRST_WITH_COUNTERS:
        return _none(f"driver {driver} has no such counters (they came with {FIRST_WITH_COUNTERS})")
    if major > LAST_IN_DOUBT:
        return _named(NEW_TRIO), [_whole(value) for value in new]
    old_answers, new_answers = _is_readable(old), _is_readable(new)
    if old_answers == new_answers:
        which, ending = ("both sets", "") if old_answers else ("neither set", "s")
        return _none(f"driver {driver}: {which} of field ids answer{ending}, so the right one is unknown")
    trio, values = (OLD_TRIO, old) if old_answers else (NEW_TRIO, new)
    return _named(trio), [_whole(value) for value in values]


def _is_readable(trio: Sequence[Reading]) -> bool:
    return all(isinstance(value, int) for value in trio)


def _none(reason: str) -> tuple[Text, list[Int]]:
    return Unavailable(reason), [Unavailable(reason)] * 3


def _named(trio: tuple[int, ...]) -> str:
    return f"{trio[0]}-{trio[-1]}"


def _major(driver: Text) -> int | None:
    head = driver.partition(".")[0] if isinstance(driver, str) else ""
    return int(head) if head.isdigit() else None


def _whole(value: Reading) -> Int:
    return Unavailable("not a whole number") if isinstance(value, float) else value
