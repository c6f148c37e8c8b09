"""All that a load run has seen so far, and the document's part about it.

It is complete at every moment, because the run can be ended at any.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

from nodegauge_contract import (
    NOT_READ,
    Growth,
    Int,
    LoadEnd,
    LoadGpu,
    LoadResult,
    LoadSensor,
    Num,
    Sensor,
    Storage,
)
from nodegauge_contract.load import MAX_LOAD_SENSORS
from nodegauge_probes.load import statistics
from nodegauge_probes.load.protocol import Copies, Interval, Memory, Ready
from nodegauge_probes.load.statistics import Pick, Reading, extreme, short, slope_per_minute, steady

NEAR_12_V = range(10_000, 14_001)
"""Millivolts: ATX allows 5 to 8 % (12 V rails), a supply in trouble more."""


class Stop(Struct, frozen=True, kw_only=True):
    """Where the probe stops the load of a GPU itself: temperature, distance to the slowdown, temperature of
    the memory, °C; each may be unknown."""

    celsius: Int = NOT_READ
    margin: Int = NOT_READ
    memory_celsius: Int = NOT_READ


class GpuRecord(Struct, kw_only=True):
    """One GPU so far."""

    index: int
    """NVML's index."""
    uuid: str
    """Its UUID."""
    stop: Stop
    """Where the probe stops its load."""
    limit_mw: Int
    """The enforced power limit before the load, mW."""
    ended: LoadEnd = LoadEnd.CUT
    """Why its load ended; cut until it has."""
    message: str = ""
    """What CUDA or the probe says about that end."""
    over: bool = False
    """Whether its load has ended."""
    seconds: Num = NOT_READ
    """Seconds under load, once it has ended."""
    idle: list[Reading] = field(default_factory=list)
    """Samples before the process that loads it starts."""
    copying: list[Reading] = field(default_factory=list)
    """Samples while it is set up and copies."""
    loaded: list[Reading] = field(default_factory=list)
    """Samples while it computes."""
    growth: Growth | None = None
    """Throttle counters and energy, from before the load until after it."""
    ready: Ready | None = None
    """What its process reported when it was set up."""
    alone: Copies | None = None
    """Its copies while the other GPUs copied nothing."""
    together: Copies | None = None
    """Its copies while all GPUs copied."""
    memory: Memory | None = None
    """Its copies within its memory."""
    intervals: list[Interval] = field(default_factory=list)
    """What it computed, about one a second, oldest first."""

    def end(self, how: LoadEnd, message: str = "", *, seconds: float | None = None) -> None:
        """The load of this GPU is over; what ended it first counts."""
        if not self.over:
            self.over, self.ended, self.message = True, how, message
            self.seconds = NOT_READ if seconds is None else round(seconds, 3)

    def build(self) -> LoadGpu:
        loaded = list(self.loaded)
        late, first = steady(loaded), list(self.idle)[-1:]
        masks = statistics.numbers(loaded, lambda each: each.sample.reasons)
        gpu = LoadGpu(
            index=self.index,
            ended=self.ended,
            message=self.message,
            seconds=self.seconds,
            samples=len(loaded),
            limit_mw=self.limit_mw,
            idle_mw=statistics.median(self.idle, _power),
            steady_mw=statistics.median(late, _power),
            max_mw=extreme(loaded, _power, max),
            reached_ms=statistics.reached_ms(loaded, limit_mw=self.limit_mw) if loaded else NOT_READ,
            start_c=extreme(first, _celsius, max),
            steady_c=statistics.median(late, _celsius),
            max_c=extreme(loaded, _celsius, max),
            slope_c_per_min=slope_per_minute(late, _celsius) if loaded else NOT_READ,
            memory_start_c=extreme(first, _memory_celsius, max),
            memory_steady_c=statistics.median(late, _memory_celsius),
            memory_max_c=extreme(loaded, _memory_celsius, max),
            margin_c=extreme(loaded, lambda each: each.margin, min),
            stop_c=self.stop.celsius,
            stop_margin_c=self.stop.margin,
            sm_mhz=statistics.median(late, _sm_mhz),
            sm_mhz_min=extreme(loaded, _sm_mhz, min),
            memory_mhz=statistics.median(late, lambda each: each.memory_mhz),
            generation=_usual([*self.copying, *loaded], lambda each: each.sample.generation),
            width=_usual([*self.copying, *loaded], lambda each: each.sample.width),
            reasons_read=len(masks) or extreme(loaded, lambda each: each.sample.reasons, max),
            reasons=statistics.reasons(loaded),
            growth=self.growth,
        )
        return self._with_reports(gpu)

    def _with_reports(self, gpu: LoadGpu) -> LoadGpu:
        """Add what the process that drives the GPUs has reported."""
        if (ready := self.ready) is not None:
            gpu = replace(gpu, kernel=ready.kernel, checksum=ready.checksum, expected=ready.expected)
        if (copies := self.alone) is not None:
            gpu = replace(gpu, h2d_gbps=short(copies.h2d), d2h_gbps=short(copies.d2h))
        if (copies := self.together) is not None:
            gpu = replace(gpu, h2d_all_gbps=short(copies.h2d), d2h_all_gbps=short(copies.d2h))
        if self.memory is not None:
            gpu = replace(gpu, memory_gbps=short(self.memory.gbps))
        intervals = list(self.intervals)
        if not intervals:
            return gpu
        late, last = intervals[-max(1, len(intervals) // 3) :], intervals[-1]
        return replace(
            gpu,
            tflops=short(median(each.tflops for each in late)),
            tflops_first=short(intervals[0].tflops),
            checks=last.checks,
            mismatches=last.mismatches,
            memory_mismatches=last.memory_mismatches,
        )


def _power(each: Reading) -> Int:
    return each.sample.power_mw


def _celsius(each: Reading) -> Int:
    return each.sample.temperature


def _memory_celsius(each: Reading) -> Int:
    return each.sample.memory_temperature


def _sm_mhz(each: Reading) -> Int:
    return each.sample.sm_mhz


def _usual(readings: list[Reading], pick: Pick) -> Int:
    """The middle value, which is one of those that were read."""
    return extreme(readings, pick, lambda values: sorted(values)[len(values) // 2])


class SensorRecord(Struct):
    """One sensor's values in hwmon's units."""

    sensor: Sensor
    idle: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)

    def build(self) -> LoadSensor:
        def statistic(values: list[float], choose: Callable[[list[float]], float]) -> Num:
            return short(choose(values)) if values else NOT_READ

        return LoadSensor(
            chip=self.sensor.chip,
            name=self.sensor.name,
            label=self.sensor.label,
            idle=statistic(list(self.idle), median),
            loaded=statistic(list(self.loaded), median),
            min=statistic(list(self.loaded), min),
            max=statistic(list(self.loaded), max),
            samples=len(self.loaded),
        )


class LoadRecord(Struct, kw_only=True):
    """One run so far."""

    planned: float
    """Seconds that the load was to last."""
    expected: int
    """GPUs that the node should have; 0 if unknown."""
    skipped: str = ""
    """A `LoadSkip` if nothing was loaded; else empty."""
    ended: LoadEnd = LoadEnd.CUT
    """Why the load of the node ended; cut until it has."""
    message: str = ""
    """Explains `skipped` or `ended`, or names GPUs that took no part."""
    loaded_seconds: Num = NOT_READ
    """Seconds in which at least one GPU computed."""
    gpus: list[GpuRecord] = field(default_factory=list)
    """The GPUs that are loaded."""
    storage: Storage | None = None
    """What was read from storage; None if nobody asked for it."""
    sensors: dict[tuple[str, str, int], SensorRecord] = field(default_factory=dict)
    """Supply sensors by chip, name and place among those of the same names."""

    def add_sensors(self, sensors: list[Sensor], *, loaded: bool) -> None:
        """One reading of all sensors; supplies of one kind are told apart by their order."""
        count: dict[tuple[str, str], int] = {}
        for sensor in sensors:
            number = count[sensor.chip, sensor.name] = count.get((sensor.chip, sensor.name), 0) + 1
            if not isinstance(sensor.value, int | float):
                continue
            key = (sensor.chip, sensor.name, number)
            if key not in self.sensors and not (
                _is_relevant(sensor) and len(self.sensors) < MAX_LOAD_SENSORS
            ):
                continue
            record = self.sensors.setdefault(key, SensorRecord(sensor))
            (record.loaded if loaded else record.idle).append(sensor.value)

    def build(self) -> LoadResult:
        gpus = list(self.gpus)
        spans = [each.loaded[-1].ms / 1000 for each in gpus if len(each.loaded) > 1]
        rates = [
            (len(each.loaded) - 1) / span
            for each, span in zip((each for each in gpus if len(each.loaded) > 1), spans, strict=True)
            if span > 0
        ]
        return LoadResult(
            seconds=short(self.planned),
            loaded_seconds=self.loaded_seconds,
            hz=short(min(rates)) if rates else NOT_READ,
            expected=self.expected,
            skipped=self.skipped,
            ended="" if self.skipped else self.ended,
            message=self.message,
            gpus=[each.build() for each in gpus],
            sensors=[each.build() for each in list(self.sensors.values())],
            storage=self.storage,
        )


def _is_relevant(sensor: Sensor) -> bool:
    """Power, and what is near 12 V when it is first read."""
    kind = sensor.name.rstrip("0123456789")
    return kind == "power" or (
        kind == "in" and isinstance(sensor.value, int | float) and round(sensor.value) in NEAR_12_V
    )
