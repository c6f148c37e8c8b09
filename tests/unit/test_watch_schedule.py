"""When the watch probe reports, by a clock of the test; and when two readings of one quantity differ."""

from itertools import accumulate, cycle, pairwise
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import Unavailable
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder
from nodegauge_probes.settings import parse
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.levels import COOL, HOT, WARM, Level, Watched, is_unclear
from nodegauge_probes.watch.reader import Reader, Value
from nodegauge_probes.watch.schedule import (
    BRAKE_CHANGES,
    BRAKE_TOGETHER,
    BRAKE_WITHIN_S,
    BRAKED_S,
    SHORTEST_S,
    decide,
    different,
    due_after,
    is_braked,
    note,
    reported,
    xid_name,
)
from nodegauge_probes.watch.signals import SIGNALS, total
from nodegauge_probes.watch.state import Pair, SeenXid, State

CONFIRM = (10.0, 60.0, 300.0)
HEAT = "temperature GPU-3"


class Watching:
    """A watch probe on a node; `readings`: when it took one, and why."""

    def __init__(self) -> None:
        self.state = State(boot_id="boot")
        self.readings: list[tuple[float, str]] = []
        self.values: dict[str, Pair] = {HEAT: (0, "40 °C")}
        self.reason = ""
        """The whole reason of the last reading."""

    def run(self, *, start: int, end: int) -> None:
        """One look per second."""
        for second in range(start, end):
            self.look(float(second))

    def look(self, now: float) -> None:
        """Take a reading at this second, if there is a reason to."""
        decision = decide(self.values, self.state, now=now, confirm=CONFIRM, interval=3600)
        if decision is None:
            return
        reported(self.state, decision, values=self.values, now=now)
        self.state.xids, self.reason = [], decision.why
        self.readings.append((now, decision.why.partition(":")[0]))

    def set(self, level: int, *, now: float) -> None:
        self.values[HEAT] = (level, f"{40 + 30 * level} °C")
        note(self.state, [HEAT], now=now)

    def hear(self, gpu: int, code: int, *, now: float, count: int = 1) -> None:
        self.state.xids.append(SeenXid(gpu=gpu, code=code, count=count, first=now, last=now))
        note(self.state, [xid_name(gpu, code)], now=now)


def test_a_calm_hour() -> None:
    """Only the regular readings come."""
    node = Watching()
    node.run(start=0, end=4000)
    confirmed = [(at, "confirmed") for at in (10.0, 70.0, 370.0)]
    assert node.readings == [(0.0, "first"), *confirmed, (3970.0, "due")]


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ((4000, 8000), [4000, 4010, 4070, 4370, 8000, 8010, 8070, 8370]),
        ((1000, 1015), [1000, 1010, 1015, 1025, 1085, 1385]),
    ],
    ids=["a fault, and its end", "in the middle of confirmations"],
)
def test_every_change_is_confirmed_alike(changes: tuple[int, int], times: list[int]) -> None:
    node, start = Watching(), 0
    for level, at in zip((1, 0), changes, strict=True):
        node.run(start=start, end=at)
        node.set(level, now=at)
        start = at
    node.run(start=start, end=start + 1000)
    assert [at for at, why in node.readings[4:] if why != "due"] == times


def test_changes_that_come_within_a_second_are_one_reading() -> None:
    node = Watching()
    node.run(start=0, end=1000)
    for number in range(3):
        now = 1000 + 0.2 * number
        node.values |= {f"P2P GPU-{gpu}": (gpu == number, "") for gpu in range(number + 1)}
        node.state.values |= {f"P2P GPU-{number}": (0, "")}
        note(node.state, [f"P2P GPU-{number}"], now=now)
        node.look(now)
    node.look(1000 + SHORTEST_S)
    assert [at for at, _ in node.readings[4:]] == [1000, 1000 + SHORTEST_S]


def test_an_xid_is_told_once_and_not_confirmed() -> None:
    """Nor does it end the confirmations of something else."""
    node = Watching()
    node.run(start=0, end=20)
    node.hear(1, 31, now=20, count=2)
    node.run(start=20, end=21)
    assert node.reason == "changed: Xid 31 GPU-1, 2 times"
    node.run(start=21, end=1000)
    assert node.readings[2:] == [(20.0, "changed"), (80.0, "confirmed"), (380.0, "confirmed")]


def test_a_flapping_quantity_is_braked() -> None:
    """It brings a reading a minute; another quantity is not held up."""
    node = Watching()
    for second in range(1800):
        if second % 5 == 0:
            node.set(second // 5 % 2, now=second)
        node.look(float(second))
    times = [at for at, _ in node.readings if at > 300]
    assert len(times) > 20
    assert all(later - earlier >= BRAKED_S for earlier, later in pairwise(times))
    assert is_braked(node.state, HEAT, now=1800)
    node.state.values["fabric GPU-0"] = ("3", "3")
    node.values["fabric GPU-0"] = ("1", "1")
    node.run(start=1801, end=1802)
    assert node.readings[-1] == (1801.0, "changed")


def test_a_braked_change_is_not_confirmed_faster_than_the_brake_allows() -> None:
    node = Watching()
    for second in range(10 * BRAKE_CHANGES):
        if second % 5 == 0:
            node.set(second // 5 % 2, now=second)
        node.look(float(second))
    [*_, last] = [at for at, _ in node.readings]
    node.set(1 - int(node.state.values[HEAT][0] or 0), now=10 * BRAKE_CHANGES)
    node.run(start=10 * BRAKE_CHANGES, end=1000)
    after = [at for at, _ in node.readings if at > last]
    assert after == [last + BRAKED_S, last + 2 * BRAKED_S, last + 2 * BRAKED_S + CONFIRM[-1]]


@pytest.mark.parametrize("xids", [False, True])
@pytest.mark.parametrize("quantities", [1, 8])
@pytest.mark.parametrize("second", [1, 7, 300, 1800])
def test_what_flaps_brings_no_more_than_a_reading_a_minute(second: int, quantities: int, xids: bool) -> None:
    uneven = [second * share for share in (0.3, 1.9, 0.6, 1.2, 0.2, 1.8)]
    node, times, names = Watching(), accumulate(cycle(uneven)), cycle(range(quantities))
    node.values = {f"temperature GPU-{n}": (0, "") for n in range(quantities)}
    node.run(start=0, end=4000)
    before, hours = len(node.readings), 4
    following = next(times)
    for now in range(4000, 4000 + hours * 3600):
        changed: set[int] = set()
        while following <= now - 4000:
            changed.add(next(names))
            following = next(times)
        if xids:
            for gpu in sorted(changed):
                node.hear(gpu, 31, now=now)
        else:
            flipped = {f"temperature GPU-{n}" for n in changed}
            for name in flipped:
                node.values[name] = (1 - int(node.values[name][0] or 0), "")
            note(node.state, sorted(flipped), now=now)
        node.look(float(now))
    unbraked = BRAKE_TOGETHER + quantities + len(CONFIRM)
    assert len(node.readings) - before <= hours * 3600 / BRAKED_S + unbraked


def test_a_fatal_xid_beside_those_of_a_job_that_fails_again_and_again_is_told_at_once() -> None:
    node = Watching()
    node.run(start=0, end=1000)
    for now in range(1000, 1200):
        if now == 1150:
            node.hear(0, 79, now=now)
        node.hear(1, 31, now=now)
        node.look(float(now))
        if now == 1150:
            assert node.readings[-1] == (1150.0, "changed")
            assert "Xid 79 GPU-0" in node.reason


def test_the_brake_is_said_once_and_let_go_of() -> None:
    """Not again with every change; an hour without one ends it."""
    state = State(boot_id="boot")
    messages = [note(state, [HEAT], now=second) for second in range(2 * BRAKE_CHANGES)]
    assert [bool(message) for message in messages].index(True) == BRAKE_CHANGES
    assert sum(map(len, messages)) == 1
    assert not is_braked(state, HEAT, now=2 * BRAKE_CHANGES + BRAKE_WITHIN_S)


def test_old_changes_are_forgotten_and_a_new_quantity_is_none() -> None:
    """The file would grow with each Xid that ever came, and be too long to be read."""
    state = State(boot_id="boot")
    for code in range(1000):
        note(state, [xid_name(0, code)], now=10.0 * code)
    assert len(state.changes) <= BRAKE_WITHIN_S / 10 + 1
    state = State(boot_id="boot", values={"GPUs": (8, "8")})
    assert different({"GPUs": (8, "8"), "port a/1": ("ACTIVE", "ACTIVE")}, state) == []


def test_a_fleet_that_starts_at_once_is_not_due_at_once() -> None:
    """Each node up to a twentieth later, always by as much, and no moment has many of them."""
    due = [due_after(3600, node=f"gpu-{n}") for n in range(1000)]
    assert due == [due_after(3600, node=f"gpu-{n}") for n in range(1000)]
    assert 3600 <= min(due) < 3605 < 3775 < max(due) <= 3780
    assert max(sum(1 for at in due if start <= at < start + 18) for start in range(3600, 3780, 18)) < 150


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


def test_a_vendors_limit_decides_unless_it_is_zero() -> None:
    """Drivers answer 0 where they have no limit."""
    assert levels("temperature", 74, 75, 80, gpu_max=80) == [COOL, WARM, HOT]
    assert levels("memory temperature", 84, 90, 95, memory_max=95) == [COOL, WARM, HOT]
    assert levels("margin", 20, 5, 0, tlimit_gpu_max=0) == [COOL, WARM, HOT]
    assert levels("temperature", 60, gpu_max=0) == [COOL]


def test_a_bit_counts_from_its_second_reading_on() -> None:
    """It stays for ten seconds after the last one, also over a restart; bits of no rule never count."""
    masks = [IDLE, HW_SLOWDOWN, IDLE, BRAKE, BRAKE | IDLE, *[IDLE] * 12]
    seen = levels("throttle reasons", *masks)
    assert seen[:5] == [0, 0, 0, 0, BRAKE]
    assert seen[5:13] == [BRAKE] * 8
    assert seen[-1] == 0
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
    reader, nvml = Reader(**UNREAD, values={}), Nvml(watch=UNUSED, pause=UNUSED)
    nvml.fields = lambda *_, **__: [float("nan")]
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
