"""GPUs as the BMC of their baseboard sees them: health, power, NVLink ports, throttle reasons.

A second witness beside NVML, and the only one while driver or operating system are down.  Durations of
throttling are lifetime sums on these boards, so only reasons of now are taken.
"""

from __future__ import annotations

import asyncio

from nodegauge_bmc import values
from nodegauge_bmc.tree import Tree
from nodegauge_bmc.values import Resource, link, member
from nodegauge_contract.chassis import BoardGpu
from nodegauge_contract.values import NOT_READ, Num, Unavailable

NO_REASON = frozenset({"na", "n/a", "none", "idle", "gpuidle", ""})
"""How boards say that nothing slows a GPU down."""
MAX_REASONS = 16


async def of(tree: Tree, systems: list[Resource]) -> list[BoardGpu]:
    """Every GPU that a system lists among its processors."""
    listed = await asyncio.gather(*(tree.collection(link(system, "Processors")) for system in systems))
    gpus = [one for processors in listed for one in processors or [] if one.get("ProcessorType") == "GPU"]
    return list(await asyncio.gather(*(_gpu(tree, one) for one in gpus)))


async def _gpu(tree: Tree, resource: Resource) -> BoardGpu:
    environment, metrics, ports = await asyncio.gather(
        tree.get(link(resource, "EnvironmentMetrics")),
        tree.get(link(resource, "Metrics")),
        tree.members(link(resource, "Ports")),
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
        celsius=values.celsius(member(environment or {}, "TemperatureCelsius", "Reading")),
    )


def _nvlink(ports: list[tuple[str, Resource | None]] | None) -> tuple[Num, Num, Num]:
    """NVLink ports, how many are up, and Gbit/s of the slowest of these.  A port without a state is no port
    that is down: unless every one has a state, the numbers are not known."""
    given = [one for _, one in ports or [] if one is not None]
    nvlinks = [one for one in given if str(one.get("PortProtocol", "")).lower() == "nvlink"]
    if not nvlinks:
        return NOT_READ, NOT_READ, NOT_READ
    missing = (
        len(ports or []) - len(given) + sum(not isinstance(one.get("LinkStatus"), str) for one in nvlinks)
    )
    if missing:
        unknown = Unavailable(f"{missing} of {len(ports or [])} ports could not be read")
        return unknown, unknown, NOT_READ
    up = [one for one in nvlinks if one["LinkStatus"] == "LinkUp"]
    rates = [values.number(one.get("CurrentSpeedGbps"), low=1, high=10_000, unit="Gbit/s") for one in up]
    numbers = [rate for rate in rates if isinstance(rate, int | float)]
    return len(nvlinks), len(up), min(numbers) if numbers else NOT_READ


def _reasons(metrics: Resource) -> list[str]:
    """Why the GPU is slowed down now, in the BMC's words."""
    listed = metrics.get("ThrottleReasons") or member(metrics, "Oem", "Nvidia", "ThrottleReasons") or []
    if not isinstance(listed, list):
        return []
    read = [word for one in listed if isinstance(word := values.text(one), str)]
    return [word for word in read if word.lower() not in NO_REASON][:MAX_REASONS]
