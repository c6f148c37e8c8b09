"""What a message goes without when it has no room, first things first.

Only what no verdict and no label rests on is ever left out: distances among network cards and affinities
(the printed matrix uses them), numbers by which people look a device up, sensors that are neither a supply's
volts and watts nor raise an alarm; of a benchmark, pairs that do not touch the slowest one, and the ends of
messages.  What is left out reads as "not read" and stands in `omitted`, so nothing can take it for an answer.
Whoever makes a verdict rest on one of these takes it off the list.  No I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from nodegauge_contract.model import Result, Sensor
from nodegauge_contract.values import NOT_READ, Num, Unavailable

SUPPLY = ("in", "power")
"""Sensors that tell of a supply: volts and watts."""

SHORT = 80
"""Characters of a message that still say what happened, if not all of its words."""


def _without_nic_distances(result: Result) -> Result:
    return replace(result, nics=replace(result.nics, to_nic=[]))


def _without_affinities(result: Result) -> Result:
    gpus = [replace(gpu, cpus=NOT_READ, memory_nodes=NOT_READ) for gpu in result.gpus]
    return replace(result, gpus=gpus)


def _without_serials(result: Result) -> Result:
    gpus = [replace(gpu, serial=NOT_READ, minor=NOT_READ, module_id=NOT_READ) for gpu in result.gpus]
    return replace(result, gpus=gpus)


def _with_telling_sensors(result: Result) -> Result:
    """Those of supplies, those with an alarm, those that cannot be read, and all of a chip without volts."""
    supplies = {sensor.chip for sensor in result.sensors if sensor.name.startswith(SUPPLY)}
    kept = [sensor for sensor in result.sensors if sensor.chip not in supplies or _tells(sensor)]
    return replace(result, sensors=kept)


def _tells(sensor: Sensor) -> bool:
    raised = isinstance(sensor.alarm, int) and sensor.alarm != 0
    return raised or sensor.name.startswith(SUPPLY) or isinstance(sensor.value, Unavailable)


def _with_slowest_pairs(result: Result) -> Result:
    """Of each arm the rows of the two GPUs whose copies are the slowest; the others read as "not read"."""
    if result.nccl is None:
        return result
    arms = [replace(arm, pairs=_slowest(arm.pairs)) for arm in result.nccl.arms]
    return replace(result, nccl=replace(result.nccl, arms=arms))


def _slowest(pairs: list[list[Num]]) -> list[list[Num]]:
    known = [
        (speed, i, j)
        for i, row in enumerate(pairs)
        for j, speed in enumerate(row)
        if i != j and isinstance(speed, int | float)
    ]
    kept = min(known)[1:] if known else ()
    return [row if i in kept else [NOT_READ] * len(row) for i, row in enumerate(pairs)]


def _with_short_words(result: Result) -> Result:
    if result.nccl is None:
        return result
    arms = [replace(arm, message=arm.message[:SHORT]) for arm in result.nccl.arms]
    nccl = replace(result.nccl, arms=arms, message=result.nccl.message[:SHORT])
    return replace(result, nccl=nccl)


GIVEN_UP: tuple[tuple[str, Callable[[Result], Result]], ...] = (
    ("nics.to_nic", _without_nic_distances),
    ("gpus.affinities", _without_affinities),
    ("sensors.others", _with_telling_sensors),
    ("gpus.serials", _without_serials),
    ("bench.pairs", _with_slowest_pairs),
    ("bench.messages", _with_short_words),
)
"""Names in `omitted`, and what the document is without them; each is gone together with those before it."""
