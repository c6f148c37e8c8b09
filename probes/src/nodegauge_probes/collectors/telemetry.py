"""The GPU's condition at one moment: temperatures and power with their limits, clocks, fans.

Both families of temperature limits are read: absolute thresholds (up to Ampere and on consumer boards) and
T.Limits, which a margin counts down to (from Ada on); a GPU has one of them or both.  Nothing is converted.
"""

from __future__ import annotations

from nodegauge_contract import Fan, Int, Unavailable
from nodegauge_contract.gpu import MAX_FANS
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.results import signed
from nodegauge_probes.result_builder import GpuBuilder

SENSOR_GPU = 0
FI_MEMORY_TEMPERATURE = 82
FI_POWER_AVERAGE, FI_POWER_INSTANT, SCOPE_GPU = 185, 186, 0
CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY = range(3)
APP_TARGET = 1
"""NVML_CLOCK_ID_APP_CLOCK_TARGET."""

SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX = range(4)
"""NVML_TEMPERATURE_THRESHOLD_*."""

FI_TLIMITS = 193, 194, 195, 196
"""NVML_FI_DEV_TEMPERATURE_*_TLIMIT (shutdown, slowdown, memory, GPU): the margin in °C after which the event
may come (nvml.h), as nvmlDeviceGetMarginTemperature counts it; it may be negative."""


def temperature(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    def threshold(kind: int) -> Int:
        return nvml.integer(device, "nvmlDeviceGetTemperatureThreshold", kind)

    out = gpu.temperature
    out.set(gpu=gpu_temperature(nvml, device))
    out.set(memory=memory_temperature(nvml, device))
    out.set(shutdown=threshold(SHUTDOWN))
    out.set(slowdown=threshold(SLOWDOWN))
    out.set(memory_max=threshold(MEMORY_MAX))
    out.set(gpu_max=threshold(GPU_MAX))
    out.set(margin=nvml.integer(device, "nvmlDeviceGetMarginTemperature"))
    shutdown, slowdown, memory, limit = map(_distance, nvml.fields(device, *FI_TLIMITS))
    out.set(
        tlimit_shutdown=shutdown, tlimit_slowdown=slowdown, tlimit_memory_max=memory, tlimit_gpu_max=limit
    )


def gpu_temperature(nvml: Nvml, device: Device) -> Int:
    """The GPU's temperature in °C."""
    older = (("nvmlDeviceGetTemperature", SENSOR_GPU),)
    return nvml.integer(device, "nvmlDeviceGetTemperatureV", SENSOR_GPU, fallbacks=older)


def memory_temperature(nvml: Nvml, device: Device) -> Int:
    """The memory's temperature in °C, on boards with a sensor there."""
    memory = nvml.whole_field(device, FI_MEMORY_TEMPERATURE)
    return Unavailable("no memory sensor (reads 0)") if memory == 0 else memory


def power(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    gpu.power.set(usage_mw=nvml.integer(device, "nvmlDeviceGetPowerUsage"))
    gpu.power.set(enforced_limit_mw=nvml.integer(device, "nvmlDeviceGetEnforcedPowerLimit"))
    gpu.power.set(default_limit_mw=nvml.integer(device, "nvmlDeviceGetPowerManagementDefaultLimit"))
    gpu.power.set(source=nvml.integer(device, "nvmlDeviceGetPowerSource"))
    gpu.power.set(energy_mj=energy(nvml, device))
    gpu.power.set(average_mw=nvml.whole_field(device, (FI_POWER_AVERAGE, SCOPE_GPU)))
    gpu.power.set(instant_mw=nvml.whole_field(device, (FI_POWER_INSTANT, SCOPE_GPU)))
    call = "nvmlDeviceGetPowerManagementLimitConstraints"
    gpu.power.set(min_limit_mw=nvml.integer(device, call, pick=lambda limits: limits[0]))
    gpu.power.set(max_limit_mw=nvml.integer(device, call, pick=lambda limits: limits[1]))


def energy(nvml: Nvml, device: Device) -> Int:
    """Millijoules since driver load; Volta and newer."""
    return nvml.integer(device, "nvmlDeviceGetTotalEnergyConsumption")


def clocks(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    gpu.clocks.set(sm_mhz=nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_SM))
    gpu.clocks.set(memory_mhz=nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_MEMORY))
    gpu.clocks.set(max_sm_mhz=nvml.integer(device, "nvmlDeviceGetMaxClockInfo", CLOCK_SM))
    gpu.clocks.set(max_memory_mhz=nvml.integer(device, "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY))
    gpu.clocks.set(pstate=nvml.integer(device, "nvmlDeviceGetPerformanceState"))
    gpu.clocks.set(app_sm_mhz=_app_clock(nvml, device, CLOCK_GRAPHICS))
    gpu.clocks.set(app_memory_mhz=_app_clock(nvml, device, CLOCK_MEMORY))


def _app_clock(nvml: Nvml, device: Device, domain: int) -> Int:
    """An application clock; the first call is the one that CUDA 14 removes."""
    other = (("nvmlDeviceGetClock", domain, APP_TARGET),)
    return nvml.integer(device, "nvmlDeviceGetApplicationsClock", domain, fallbacks=other)


def fans(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """The GPU's fans; passive boards have none."""
    count = nvml.integer(device, "nvmlDeviceGetNumFans")
    if isinstance(count, Unavailable):
        # A driver without this call supports one fan.
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
