"""GPUs as the BMC of their baseboard sees them: health, power, heat, NVLink ports, throttling.

A second witness beside NVML, and the only one while driver or operating system are down.  Durations of
throttling are sums since the board began to count: `growth` says how much of them is new.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from nodegauge_bmc import values
from nodegauge_bmc.tree import Tree
from nodegauge_bmc.values import Resource, link, member
from nodegauge_contract.chassis import HARDWARE, POWER, SOFTWARE, THERMAL, BoardGpu
from nodegauge_contract.values import NOT_READ, Num, Unavailable

NO_REASON = frozenset({"na", "n/a", "none", "idle", "gpuidle", ""})
"""How boards say that nothing slows a GPU down."""
MAX_REASONS = 16
MAX_MEMORIES = 16
DURATIONS = {
    POWER: ("PowerLimitThrottleDuration",),
    THERMAL: ("ThermalLimitThrottleDuration",),
    HARDWARE: ("Oem", "Nvidia", "HardwareViolationThrottleDuration"),
    SOFTWARE: ("Oem", "Nvidia", "GlobalSoftwareViolationThrottleDuration"),
}
"""Cause to member of `ProcessorMetrics` (DMTF DSP0268) or of NVIDIA's `NvidiaProcessorMetrics`."""
MARGIN_SENSOR = re.compile(r".*(?:TEMP_1|T_?LIMIT.*)", re.IGNORECASE)
"""NVIDIA's sensor of the margin to the GPU's limit (`..._TEMP_1`; `..._TEMP_0` is the temperature: on the
recorded DGX H100 both add up to 87 °C on each GPU)."""
MEMORY_SENSOR = re.compile(r"[^/]*(?:DRAM|HBM|MEM)[^/]*TEMP[^/]*", re.IGNORECASE)
"""Boards without a resource of the memory list its sensor among those of the GPU's chassis, by name alone."""


async def read_gpus(tree: Tree, systems: list[Resource]) -> list[BoardGpu]:
    """Every GPU that a system lists among its processors."""
    listed = await asyncio.gather(*(tree.collection(link(system, "Processors")) for system in systems))
    gpus = [
        processor
        for processors in listed
        for processor in processors or []
        if processor.get("ProcessorType") == "GPU"
    ]
    return list(await asyncio.gather(*(_gpu(tree, gpu) for gpu in gpus)))


async def _gpu(tree: Tree, resource: Resource) -> BoardGpu:
    environment, metrics, ports, sensors = await asyncio.gather(
        tree.get(link(resource, "EnvironmentMetrics")),
        tree.get(link(resource, "Metrics")),
        tree.members(link(resource, "Ports")),
        _chassis_sensors(tree, resource),
    )
    celsius, memory = await asyncio.gather(
        _celsius(tree, member(environment or {}, "TemperatureCelsius"), sensors),
        _memory_celsius(tree, resource, sensors),
    )
    count, up, slowest = _nvlink(ports)
    name = values.text(resource.get("Id", resource.get("Name")))
    return BoardGpu(
        name=name if isinstance(name, str) else "GPU",
        serial=values.text(resource.get("SerialNumber")),
        uuid=values.text(resource.get("UUID")),
        state=values.state(resource),
        health=values.health(resource),
        watts=values.watts(member(environment or {}, "PowerWatts", "Reading")),
        limit_watts=values.watts(member(environment or {}, "PowerLimitWatts", "SetPoint")),
        ports=count,
        ports_up=up,
        port_gbps=slowest,
        throttle_reasons=_reasons(metrics or {}),
        celsius=celsius,
        memory_celsius=memory,
        throttled_seconds={
            cause: float(seconds)
            for cause, path in DURATIONS.items()
            if isinstance(seconds := values.duration(member(metrics or {}, *path)), int | float)
        },
    )


async def _chassis_sensors(tree: Tree, gpu: Resource) -> dict[str, object]:
    """Readings of the temperature sensors of the GPU's own chassis, by name."""
    chassis = await tree.get(link(gpu, "Links", "Chassis"))
    thermal = await tree.get(link(chassis or {}, "ThermalSubsystem"))
    metrics = await tree.get(link(thermal or {}, "ThermalMetrics"))
    listed = values.items(metrics or {}, "TemperatureReadingsCelsius")
    return {_sensor_name(reading): reading.get("Reading") for reading in listed}


def _sensor_name(reading: object) -> str:
    source = reading.get("DataSourceUri") if isinstance(reading, Mapping) else None
    return source.rsplit("/", 1)[-1] if isinstance(source, str) else ""


async def _celsius(tree: Tree, reading: object, sensors: dict[str, object]) -> Num:
    """The GPU's temperature.  NVIDIA's boards name the margin to the limit in its place: 60 °C on a cool GPU,
    and 0 on a hot one."""
    if not isinstance(reading, Mapping):
        return NOT_READ
    name = _sensor_name(reading)
    sensor = await tree.get(link({"sensor": {"@odata.id": reading.get("DataSourceUri")}}, "sensor"))
    if not MARGIN_SENSOR.fullmatch(name) and (sensor or {}).get("ReadingBasis", "Zero") == "Zero":
        return values.celsius(reading.get("Reading"))
    zeroth = name.removesuffix("1") + "0"
    if zeroth in sensors and zeroth != name:
        return values.celsius(sensors[zeroth])
    return Unavailable("the BMC gives a margin to the limit in its place")


async def _memory_celsius(tree: Tree, gpu: Resource, sensors: dict[str, object]) -> Num:
    """The hottest of the GPU's memory: of its memory resources, else of its chassis' sensors."""
    listed = member(gpu, "Links")
    addresses = values.links(listed, "Memory")[:MAX_MEMORIES] if isinstance(listed, Mapping) else []
    memories = await tree.all(addresses)
    environments = await tree.all(link(memory, "EnvironmentMetrics") for memory in memories)
    read = [member(environment, "TemperatureCelsius", "Reading") for environment in environments]
    if not any(value is not None for value in read):
        read = [value for name, value in sensors.items() if MEMORY_SENSOR.fullmatch(name)]
    known = [value for value in map(values.celsius, read) if isinstance(value, int | float)]
    return max(known) if known else NOT_READ


def _nvlink(ports: list[tuple[str, Resource | None]] | None) -> tuple[Num, Num, Num]:
    """NVLink ports, how many are up, and Gbit/s of the slowest of these.  A port without a state is no port
    that is down: unless every one has a state, the numbers are not known."""
    given = [port for _, port in ports or [] if port is not None]
    nvlinks = [port for port in given if str(port.get("PortProtocol", "")).lower() == "nvlink"]
    if not nvlinks:
        return NOT_READ, NOT_READ, NOT_READ
    missing = (
        len(ports or []) - len(given) + sum(not isinstance(port.get("LinkStatus"), str) for port in nvlinks)
    )
    if missing:
        unknown = Unavailable(f"{missing} of {len(ports or [])} ports could not be read")
        return unknown, unknown, NOT_READ
    up = [port for port in nvlinks if port["LinkStatus"] == "LinkUp"]
    rates = [values.number(port.get("CurrentSpeedGbps"), low=1, high=10_000, unit="Gbit/s") for port in up]
    numbers = [rate for rate in rates if isinstance(rate, int | float)]
    return len(nvlinks), len(up), min(numbers) if numbers else NOT_READ


def _reasons(metrics: Resource) -> list[str]:
    """Why the GPU is slowed down now, in the BMC's words."""
    listed = metrics.get("ThrottleReasons") or member(metrics, "Oem", "Nvidia", "ThrottleReasons") or []
    if not isinstance(listed, list):
        return []
    read = [word for reason in listed if isinstance(word := values.text(reason), str)]
    return [word for word in read if word.lower() not in NO_REASON][:MAX_REASONS]
