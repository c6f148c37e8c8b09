"""Cumulative throttle counters, and the rule that finds the three whose field ids moved between drivers.

SW thermal, HW thermal and HW power brake did not exist before driver 575, were fields 251 to 253 in 575 to
580.65, and are 269 to 271 since 580.82, where 269 to 271 used to be power-smoothing constants.  Read by the
wrong number they say "never throttled" without any error, so near the move both trios are read and one is
taken only if it answers and the other does not.  Source: nvidia-ml-py wheels of those releases compared, and
a trace of nvidia-smi 580.65.06 in NVIDIA/k8s-test-infra.

Counters are judged by growth between runs, never by value.  They are read at both ends of the sampling
window, each time beside CLOCK_BOOTTIME, so that a run without a predecessor has a growth, too; whether it is
plausible is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodegauge_contract import NOT_READ, Int, Text, Unavailable
from nodegauge_probes.collectors.telemetry import energy
from nodegauge_probes.host.boot import boottime_ms
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.values import ULL
from nodegauge_probes.result_builder import GpuDraft

OLD_TRIO, NEW_TRIO = (251, 252, 253), (269, 270, 271)
FIRST_WITH_COUNTERS, LAST_IN_DOUBT = 575, 580
TRIO_FIELDS = ("sw_thermal_ns", "hw_thermal_ns", "power_brake_ns")

STABLE = {
    "sw_power_cap_ns": 74,
    "thermal_violation_ns": 75,
    "sync_boost_ns": 76,
    "low_utilization_ns": 78,
}
"""NVML_FI_DEV_PERF_POLICY_*: fields whose numbers never moved."""

PERF_POLICY_THERMAL = 1

Reading = int | float | Unavailable


GROWING = (
    "sw_power_cap_ns",
    "sw_thermal_ns",
    "hw_thermal_ns",
    "power_brake_ns",
    "thermal_violation_ns",
)
"""Counters whose growth within the window is told, beside the energy's."""


class Mark(Struct, frozen=True):
    """One reading of a GPU's counters, with CLOCK_BOOTTIME in ms from just before it."""

    boottime_ms: int
    values: dict[str, Int | Text]
    energy_mj: Int


def mark(nvml: Nvml, device: Device, gpu: GpuDraft, *, driver: Text) -> Mark:
    """Read all counters of one GPU, in nanoseconds, and its energy, into the draft and for comparison."""
    boottime = boottime_ms()
    values = _read(nvml, device, driver=driver)
    taken = Mark(boottime, values, energy(nvml, device))
    gpu.counters.update(taken.values)
    gpu.power["energy_mj"] = taken.energy_mj
    return taken


def growth(before: Mark, after: Mark) -> dict[str, Int]:
    """The members of `Growth`: what grew between two marks of one GPU."""
    grown = {name: _grown(before.values[name], after.values[name]) for name in GROWING}
    elapsed = after.boottime_ms - before.boottime_ms
    return {"elapsed_ms": elapsed, **grown, "energy_mj": _grown(before.energy_mj, after.energy_mj)}


def _grown(before: Int | Text, after: Int | Text) -> Int:
    if isinstance(before, int) and isinstance(after, int):
        return after - before if after >= before else Unavailable("went back: the counters began anew")
    return next((value for value in (before, after) if isinstance(value, Unavailable)), NOT_READ)


def _read(nvml: Nvml, device: Device, *, driver: Text) -> dict[str, Int | Text]:
    found: dict[str, Int | Text] = {}
    for field, number in STABLE.items():
        found[field] = _whole(nvml.fields(device, number, only=ULL)[0])
    if isinstance(found["thermal_violation_ns"], Unavailable):
        call = "nvmlDeviceGetViolationStatus"
        answer = nvml.integer(device, call, PERF_POLICY_THERMAL, pick=lambda status: status.violationTime)
        if not isinstance(answer, Unavailable):
            found["thermal_violation_ns"] = answer
    old, new = (nvml.fields(device, *trio, only=ULL) for trio in (OLD_TRIO, NEW_TRIO))
    found["trio"], values = choose(driver, old=old, new=new)
    found.update(zip(TRIO_FIELDS, values, strict=True))
    return found


def choose(driver: Text, *, old: Sequence[Reading], new: Sequence[Reading]) -> tuple[Text, list[Int]]:
    """Which trio this driver's counters are, by name, and its values; or why it cannot be told."""
    major = _major(driver)
    if major is None:
        return _none("driver version not known, and the counters' field ids depend on it")
    if major < FIRST_WITH_COUNTERS:
        return _none(f"driver {driver} has no such counters (they came with {FIRST_WITH_COUNTERS})")
    if major > LAST_IN_DOUBT:
        return _named(NEW_TRIO), [_whole(value) for value in new]
    old_answers, new_answers = _answers(old), _answers(new)
    if old_answers == new_answers:
        which = "both sets" if old_answers else "neither set"
        return _none(f"driver {driver}: {which} of field ids answers, so it cannot be told which is meant")
    trio, values = (OLD_TRIO, old) if old_answers else (NEW_TRIO, new)
    return _named(trio), [_whole(value) for value in values]


def _answers(trio: Sequence[Reading]) -> bool:
    return all(isinstance(value, int) for value in trio)


def _none(reason: str) -> tuple[Text, list[Int]]:
    return Unavailable(reason), [Unavailable(reason)] * len(TRIO_FIELDS)


def _named(trio: tuple[int, ...]) -> str:
    return f"{trio[0]}-{trio[-1]}"


def _major(driver: Text) -> int | None:
    head = driver.partition(".")[0] if isinstance(driver, str) else ""
    return int(head) if head.isdigit() else None


def _whole(value: Reading) -> Int:
    return Unavailable("not a whole number") if isinstance(value, float) else value
