"""The GPU's condition at one moment: temperatures with their limits, power with its limits, clocks.

Both families of temperature limits are asked for: absolute thresholds (up to Ampere and on consumer boards)
and T.Limit distances (from Ada on); a GPU answers one of them or both.  Nothing is converted.
"""

from __future__ import annotations

from nodegauge_contract import Fan, Int, Unavailable
from nodegauge_contract.gpu import MAX_FANS
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.values import signed
from nodegauge_probes.result_builder import GpuDraft

SENSOR_GPU = 0
FI_MEMORY_TEMPERATURE = 82
FI_POWER_AVERAGE, FI_POWER_INSTANT, SCOPE_GPU = 185, 186, 0
CLOCK_SM, CLOCK_MEMORY = 1, 2

THRESHOLDS = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
"""NVML_TEMPERATURE_THRESHOLD_*."""

TLIMITS = {"tlimit_shutdown": 193, "tlimit_slowdown": 194, "tlimit_memory_max": 195, "tlimit_gpu_max": 196}
"""NVML_FI_DEV_TEMPERATURE_*_TLIMIT: °C left until the event, negative below the slowdown point."""

_POWER = {
    "usage_mw": "nvmlDeviceGetPowerUsage",
    "enforced_limit_mw": "nvmlDeviceGetEnforcedPowerLimit",
    "default_limit_mw": "nvmlDeviceGetPowerManagementDefaultLimit",
    "source": "nvmlDeviceGetPowerSource",
}


def temperature(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    gpu.temperature["gpu"] = gpu_temperature(nvml, device)
    gpu.temperature["memory"] = memory_temperature(nvml, device)
    for field, threshold in THRESHOLDS.items():
        gpu.temperature[field] = nvml.integer(device, "nvmlDeviceGetTemperatureThreshold", threshold)
    gpu.temperature["margin"] = nvml.integer(device, "nvmlDeviceGetMarginTemperature")
    for field, value in zip(TLIMITS, nvml.fields(device, *TLIMITS.values()), strict=True):
        gpu.temperature[field] = _distance(value)


def gpu_temperature(nvml: Nvml, device: Device) -> Int:
    """The GPU's own temperature in °C."""
    older = (("nvmlDeviceGetTemperature", SENSOR_GPU),)
    return nvml.integer(device, "nvmlDeviceGetTemperatureV", SENSOR_GPU, otherwise=older)


def memory_temperature(nvml: Nvml, device: Device) -> Int:
    """The memory's temperature in °C, on boards that have a sensor there."""
    memory = nvml.whole_field(device, FI_MEMORY_TEMPERATURE)
    return Unavailable("no memory sensor (reads 0)") if memory == 0 else memory


def power(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    for field, call in _POWER.items():
        gpu.power[field] = nvml.integer(device, call)
    gpu.power["energy_mj"] = energy(nvml, device)
    for field, number in (("average_mw", FI_POWER_AVERAGE), ("instant_mw", FI_POWER_INSTANT)):
        gpu.power[field] = nvml.whole_field(device, (number, SCOPE_GPU))
    call = "nvmlDeviceGetPowerManagementLimitConstraints"
    gpu.power["min_limit_mw"] = nvml.integer(device, call, pick=lambda limits: limits[0])
    gpu.power["max_limit_mw"] = nvml.integer(device, call, pick=lambda limits: limits[1])


def energy(nvml: Nvml, device: Device) -> Int:
    """Millijoules since driver load; Volta and newer."""
    return nvml.integer(device, "nvmlDeviceGetTotalEnergyConsumption")


def clocks(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    gpu.clocks["sm_mhz"] = nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_SM)
    gpu.clocks["memory_mhz"] = nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_MEMORY)
    gpu.clocks["max_sm_mhz"] = nvml.integer(device, "nvmlDeviceGetMaxClockInfo", CLOCK_SM)
    gpu.clocks["max_memory_mhz"] = nvml.integer(device, "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY)
    gpu.clocks["pstate"] = nvml.integer(device, "nvmlDeviceGetPerformanceState")


def fans(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """The GPU's own fans; none on passive boards."""
    count = nvml.integer(device, "nvmlDeviceGetNumFans")
    if isinstance(count, Unavailable):
        # A driver that cannot count fans knows one.
        percent = nvml.integer(device, "nvmlDeviceGetFanSpeed")
        gpu.fans = [] if isinstance(percent, Unavailable) else [Fan(percent=percent)]
        return
    for fan in range(min(count, MAX_FANS)):
        gpu.fans.append(
            Fan(
                percent=nvml.integer(device, "nvmlDeviceGetFanSpeed_v2", fan),
                target=nvml.integer(device, "nvmlDeviceGetTargetFanSpeed", fan),
                rpm=nvml.fan_rpm(device, fan),
            )
        )


def _distance(value: int | float | Unavailable) -> Int:
    if isinstance(value, Unavailable):
        return value
    return signed(value) if isinstance(value, int) else Unavailable("not a whole number")
