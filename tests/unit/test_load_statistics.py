"""What the load probe makes of its samples: steady state, slope, first moments, its stop, other users."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from nodegauge_contract import NOT_READ, Int, LoadEnd, LoadReason, Sensor, Temperature, Unavailable
from nodegauge_probes.collectors.sampling import Sample
from nodegauge_probes.load import statistics
from nodegauge_probes.load.record import GpuRecord, LoadRecord, Stop
from nodegauge_probes.load.statistics import Reading
from nodegauge_probes.load.watcher import UNKNOWN_STOP_C, newcomer, stop_of, too_hot
from nodegauge_probes.nccl.precondition import GpuUse

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
GPU = {"utilization": 100, "temperature": 50, "memory_temperature": NO, "power_mw": 300_000, "sm_mhz": 1_500}
USUAL = Sample(**GPU, reasons=0, pstate=0, generation=4, width=16)


def reading(ms: int, *, margin: Int = NO, **members: Int) -> Reading:
    return Reading(ms=ms, sample=replace(USUAL, **members), margin=margin, memory_mhz=2_000)


def series(member: str, values: Sequence[Int], *, step: int = 500) -> list[Reading]:
    return [reading(n * step, **{member: value}) for n, value in enumerate(values)]


def test_steady_is_the_last_third_of_the_time() -> None:
    """Of the time, not of the samples: a pause does not make the beginning count."""
    uneven = [reading(ms) for ms in (0, 100, 200, 300, 9_000, 20_000, 25_000, 30_000)]
    assert [each.ms for each in statistics.steady(uneven)] == [20_000, 25_000, 30_000]
    assert statistics.steady([]) == []
    assert len(statistics.steady([reading(0)])) == 1


@pytest.mark.parametrize(
    ("celsius", "slope"),
    [
        ([60, 60, 60, 60, 60], 0),
        ([60, 61, 62, 63, 64], 120),
        ([64, 63, 62, 61, 60], -120),
        ([60, NO, 62, 63, 64], 120),
        *((few, None) for few in ([], [60], [60, 61, 62], [NO] * 5)),
    ],
)
def test_a_slope_is_degrees_per_minute(celsius: list[Int], slope: float | None) -> None:
    """Half a second between samples; an unreadable one is left out, not taken for a zero.  Of two samples
    whole degrees would be any slope."""
    seen = statistics.slope_per_minute(series("temperature", celsius), lambda each: each.sample.temperature)
    assert isinstance(seen, Unavailable) if slope is None else seen == pytest.approx(slope)


def test_the_time_to_the_limit_is_that_of_the_first_sample_there() -> None:
    rising = series("power_mw", [80_000, 269_999, 270_000, 300_000, 100_000])
    assert statistics.reached_ms(rising, limit_mw=300_000) == 1_000
    assert isinstance(statistics.reached_ms(rising, limit_mw=700_000), Unavailable)
    assert statistics.reached_ms(rising, limit_mw=NO) == NO
    unreadable = series("power_mw", [NO, NO])
    assert isinstance(statistics.reached_ms(unreadable, limit_mw=300_000), Unavailable)


def test_reasons_have_their_first_moment() -> None:
    masks = series("reasons", [0x4, NO, 0x4 | 0x20, 0x20, 0x4])
    assert statistics.reasons(masks) == [
        LoadReason(bit=0x4, samples=3, longest=1, first_ms=0),
        LoadReason(bit=0x20, samples=2, longest=2, first_ms=1_000),
    ]


@pytest.mark.parametrize(
    ("value", "short"),
    [(0, 0), (12.0, 12), (1.23456, 1.235), (49.9178, 49.92), (690_000.5, 690_000.5), (3.00004, 3)],
)
def test_numbers_keep_what_means_something(value: float, short: float) -> None:
    assert statistics.short(value) == short
    assert type(statistics.short(value)) is type(short)


ABSOLUTE = Temperature(slowdown=89, memory_max=95, gpu_max=85)
DISTANCES = Temperature(slowdown=NO, margin=49, tlimit_slowdown=-2, tlimit_gpu_max=0)


def test_the_stop_is_below_the_vendor_s_slowdown() -> None:
    """Absolute limits up to Ampere, distances from Ada on, both where a board has both."""
    assert stop_of(ABSOLUTE, below=3) == Stop(celsius=86, margin=NOT_READ, memory_celsius=92)
    assert (stop_of(DISTANCES, below=3).celsius, stop_of(DISTANCES, below=3).margin) == (NO, 1)
    both = stop_of(replace(DISTANCES, slowdown=89), below=10)
    assert (both.celsius, both.margin) == (79, 8)


def test_without_the_vendor_s_limits_there_is_a_stop_all_the_same() -> None:
    assert stop_of(Temperature(), below=3).celsius == UNKNOWN_STOP_C
    used_up = stop_of(Temperature(margin=0, tlimit_slowdown=-2), below=3)
    assert used_up.celsius == UNKNOWN_STOP_C
    assert isinstance(used_up.margin, Unavailable)


@pytest.mark.parametrize(
    ("hot", "stop"),
    [
        (reading(0, temperature=86), Stop(celsius=86)),
        (reading(0, margin=1), Stop(margin=1)),
        (reading(0, memory_temperature=95), Stop(celsius=86, memory_celsius=92)),
    ],
)
def test_any_of_three_temperatures_stops_the_load(hot: Reading, stop: Stop) -> None:
    assert too_hot(hot, stop)
    cooler = Stop(celsius=87, margin=0, memory_celsius=96)
    assert too_hot(hot, cooler) == ""


def test_what_cannot_be_read_stops_nothing() -> None:
    silent = reading(0, temperature=NO, margin=NO)
    assert too_hot(silent, Stop(celsius=86, margin=1, memory_celsius=92)) == ""


def use(processes: Int = 1, used_mib: Int = 3_000) -> GpuUse:
    return GpuUse(processes=processes, used_mib=used_mib, free_mib=NO, virtualization=NO)


@pytest.mark.parametrize(
    ("now", "somebody"),
    [
        (use(), False),
        (use(processes=2), True),
        (use(processes=0, used_mib=3_900), False),
        (use(processes=NO, used_mib=4_100), True),
        (use(processes=NO, used_mib=NO), False),
    ],
)
def test_a_newcomer_shows_as_process_or_as_memory(now: GpuUse, somebody: bool) -> None:
    """PID namespaces hide processes; a little more memory is the driver's own."""
    assert bool(newcomer(use(), now)) is somebody


def test_what_ended_a_gpu_first_counts() -> None:
    record = GpuRecord(index=0, uuid="GPU-0", stop=Stop(), limit_mw=300_000)
    assert record.build().ended == "cut"
    record.end(LoadEnd.FAILED, "CUDA said so", seconds=1.25)
    record.end(LoadEnd.GAVE_WAY, "later", seconds=9)
    built = record.build()
    assert (built.ended, built.message, built.seconds) == ("failed", "CUDA said so", 1.25)


def sensor(name: str, value: Int, chip: str = "pmbus") -> Sensor:
    return Sensor(chip=chip, name=name, value=value)


def test_rails_and_watts_are_followed_from_idle_to_load() -> None:
    record = LoadRecord(planned=30, expected=0)
    idle = [sensor("in1", 12_100), sensor("in1", 12_000), sensor("in2", 230_000), sensor("power1", 200)]
    record.add_sensors([*idle, sensor("fan1", 12_000), sensor("curr1", 12_000)], loaded=False)
    for millivolts in (11_900, 11_500, NO):
        record.add_sensors([sensor("in1", 12_090), sensor("in1", millivolts)], loaded=True)
    first, second, watts = record.build().sensors
    assert (first.name, first.idle, first.min, first.samples) == ("in1", 12_100, 12_090, 3)
    assert (second.idle, second.loaded, second.min, second.max) == (12_000, 11_700, 11_500, 11_900)
    assert (watts.name, watts.idle, watts.loaded) == ("power1", 200, NOT_READ)


def test_a_run_that_loaded_nothing_has_no_end() -> None:
    assert LoadRecord(planned=30, expected=0, skipped="busy").build().ended == ""
    assert LoadRecord(planned=30, expected=0).build().ended == "cut"
