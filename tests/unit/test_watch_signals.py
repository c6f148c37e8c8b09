"""Levels: when two readings of one quantity differ, and when they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodegauge_contract import Unavailable
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder
from nodegauge_probes.settings import parse
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.levels import COOL, HOT, WARM, Level, Watched, is_unclear
from nodegauge_probes.watch.reader import Reader, Value
from nodegauge_probes.watch.signals import SIGNALS, total

OPTIONS = parse(["watch"], {}, probes=["watch"], engines=["nccl4py"]).watch
BRAKE, HW_SLOWDOWN, IDLE = 0x80, 0x8, 0x1
REFUSED = Unavailable("NVML_ERROR_UNKNOWN")
UNUSED: Any = None
HOST = Host(sysfs=Path("/"), procfs=Path("/"), every=1)
UNREAD: Any = {"watch": UNUSED, "options": OPTIONS, "host": HOST}


def levels(
    name: str,
    *raws: int | str | Unavailable,
    seconds: float = 1,
    known: dict[str, Value] | None = None,
    **limits: int,
) -> list[Level]:
    """The level after each of these readings, so many seconds apart."""
    signal = next(signal for signal in SIGNALS if signal.name == name)
    gpu = GpuBuilder(0)
    gpu.temperature.set(**limits)
    nvml = Nvml(watch=UNUSED, pause=UNUSED)
    watched = Watched(nvml=nvml, device=Device(0, None), peers=[], limits=gpu, links=[], link_fields=False)
    times = iter([seconds * number for number in range(len(raws))])
    reader = Reader(**UNREAD, values=known or {}, clock=lambda: next(times))
    result: list[Level] = []
    for raw in raws:
        reader.add(signal, watched, raw)
        result.append(reader.values[f"{name} GPU-0"].level)
    return result


def test_a_temperature_has_classes_with_hysteresis() -> None:
    """Warm from 84 °C, hot from 90 °C; either is left 5 °C below its start."""
    seen = levels("temperature", 83, 84, 83, 80, 79, 90, 86, 85)
    assert seen == [COOL, WARM, WARM, WARM, COOL, HOT, HOT, WARM]


def test_a_vendors_limit_decides() -> None:
    assert levels("temperature", 74, 75, 80, gpu_max=80) == [COOL, WARM, HOT]
    assert levels("memory temperature", 84, 90, 95, memory_max=95) == [COOL, WARM, HOT]
    assert levels("margin", 20, 5, 0, tlimit_gpu_max=0) == [COOL, WARM, HOT]


def test_a_limit_of_zero_is_none() -> None:
    """Drivers answer 0 where they have no limit."""
    assert levels("temperature", 60, gpu_max=0) == [COOL]


def test_a_bit_counts_from_its_second_reading_on() -> None:
    """It stays for ten seconds after the last one; bits that no rule looks at never count."""
    masks = [IDLE, HW_SLOWDOWN, IDLE, BRAKE, BRAKE | IDLE, *[IDLE] * 12]
    seen = levels("throttle reasons", *masks)
    assert seen[:5] == [0, 0, 0, 0, BRAKE]
    assert seen[5:13] == [BRAKE] * 8
    assert seen[-1] == 0


def test_a_bit_that_was_reported_stays_over_a_restart() -> None:
    """Until ten seconds without it have passed in this life."""
    known = {"throttle reasons GPU-0": Value(BRAKE, "power brake")}
    seen = levels("throttle reasons", *[IDLE] * 12, known=known)
    assert (seen[0], seen[-1]) == (BRAKE, 0)


def test_a_counter_of_slowdown_has_two_levels() -> None:
    growing = [0, 400_000_000, 800_000_000, 1_100_000_000]
    assert levels("power brake", *growing) == [0, 0, 0, 1]
    seen = levels("power brake", *growing, *[growing[-1]] * 70)
    assert (seen[50], seen[-1]) == (1, 0)
    assert levels("power brake", 5_000_000_000, 0, 100) == [0, 0, 0], "counters restart with the driver"


def test_what_cannot_be_read_changes_after_three_readings() -> None:
    assert levels("recovery action", 0, REFUSED, REFUSED, 0, REFUSED) == [0, 0, 0, 0, 0]
    assert levels("recovery action", 0, REFUSED, REFUSED, REFUSED) == [0, 0, 0, None]
    assert levels("recovery action", REFUSED, 1, 1, 1) == [None, None, None, 1]
    known = {"recovery action GPU-0": Value(None, "")}
    assert levels("recovery action", 0, 0, 0, known=known) == [None, None, 0]


def test_a_width_counts_when_it_was_read_twice() -> None:
    """A link that is being trained is narrower for a moment."""
    assert levels("PCIe width", 16, 8, 16, 8, 8) == [16, 16, 16, 16, 8]


def test_a_link_that_does_not_answer_once_is_no_change() -> None:
    """Three times is; a link that is down is one at once; a lost peer's status stays as it was."""
    seen = levels("links", "1111", "1-11", "1-11", "1011", "1-11", "1-11", "1-11", "1111", "1111", "1111")
    assert seen == [*["1111"] * 3, *["1011"] * 3, "1-11", "1-11", "1-11", "1111"]
    assert levels("P2P", "000", "xxx", "0-0", "005", "00x") == ["000", "000", "000", "005", "005"]


def test_a_quantity_is_unclear_until_its_level_says_whether_it_answers() -> None:
    """That is asked at every look; a lost peer, whose level stays, is not: it may be lost for days."""
    assert is_unclear(None, 0)
    assert is_unclear("11", None)
    assert is_unclear("11", "1-")
    assert is_unclear("1-", "11")
    assert not is_unclear("1-", "0-")
    assert not is_unclear("00-00-", "00-xxx")
    assert not is_unclear(1, 0)


def test_a_counter_that_does_not_answer_once_does_not_grow() -> None:
    """The others' sum alone would be smaller, and its return would look like new errors."""
    last: dict[int, int] = {}
    sums = [total(answers, last) for answers in ([5, 0], [REFUSED, 0], [REFUSED, 2], [5, 2])]
    assert sums == [5, 5, 7, 7]
    assert total([REFUSED, REFUSED], last) == REFUSED


def test_a_field_that_is_no_whole_number_is_unreadable() -> None:
    """`nan` has no level, and `int` refuses it."""
    assert total([float("nan"), 2], {}) == 2

    class Fields(Nvml):
        def fields(self, device: Device, *fields: Any, only: int | None = None) -> list[Any]:
            return [float("nan")] * len(fields)

    reader = Reader(**UNREAD, values={})
    nvml = Fields(watch=UNUSED, pause=UNUSED)
    gpu = Watched(
        nvml=nvml, device=Device(0, None), peers=[], limits=GpuBuilder(0), links=[], link_fields=False
    )
    reader._nvml = nvml
    reader._read_fields(gpu, [signal for signal in SIGNALS if signal.name == "recovery action"])
    assert reader.values["recovery action GPU-0"] == Value(None, "not a whole number")


def test_slow_calls_of_several_gpus_fall_into_several_seconds() -> None:
    reader = Reader(**UNREAD, values={})
    reader._opened_at = 0
    seconds = set()
    for gpu in range(8):
        for reader._looks in range(1, 31):
            if reader._is_nth(30, gpu):
                seconds.add(reader._looks)
    assert len(seconds) == 8
