"""What the watch probe compares: one `Signal` per quantity, with how it is read and when two values differ.

A signal turns its last readings into a *level*; a changed level is a change.  Numbers that move all the time
(temperatures, counters) have few levels with some hysteresis, all others are their own level.  Nothing here
judges: a level only says that the full reading is worth taking.

A new quantity is one line in `SIGNALS` (of each GPU), or one key in `host.py` (of the node).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from nodegauge_contract import Int, Unavailable
from nodegauge_probes.collectors import counters, sampling, telemetry, topology
from nodegauge_probes.nvml import library
from nodegauge_probes.nvml.library import Device, Field, Nvml
from nodegauge_probes.nvml.results import signed
from nodegauge_probes.result_builder import GpuBuilder
from nodegauge_probes.watch_options import Options

Level = int | str | None
"""None: it cannot be read."""


class Sample(NamedTuple):
    """One reading: when (monotonic seconds) and what."""

    at: float
    raw: int | str


class Watched(Struct, kw_only=True):
    """One GPU, with what does not change while it is watched."""

    nvml: Nvml
    device: Device
    peers: list[Device]
    limits: GpuBuilder
    """Its temperature limits, as the health probe reads them."""
    links: list[int]
    link_fields: bool
    """Whether the state of links is a field."""
    trio: tuple[int, ...] = ()
    """Field ids of the counters of software thermal, hardware thermal, power brake; empty without them."""


Reading = Callable[[Watched], Any]
Leveller = Callable[[Sequence[Sample], Level, Watched, Options], Level]


def latest(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """The value itself."""
    return samples[-1].raw


def twice(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """The value itself, once it was read twice in a row."""
    alike = len(samples) > 1 and samples[-1].raw == samples[-2].raw
    return samples[-1].raw if before is None or alike else before


BIT_HOLD_S = 10
COUNTER_WINDOW_S = 60


def bits(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """Bits that were set in two readings in a row (`bitWarnSamples`), until ten seconds without them.

    HW slowdown may be set briefly while clocks change (nvml.h)."""
    now = samples[-1].at
    recent = [int(each.raw) for each in samples if now - each.at <= BIT_HOLD_S]
    in_a_row = last = 0
    for mask in recent:
        in_a_row |= last & mask
        last = mask
    kept = before if isinstance(before, int) else 0
    if now - samples[0].at >= BIT_HOLD_S:
        seen = 0
        for mask in recent:
            seen |= mask
        kept &= seen
    return (in_a_row | kept) & sum(sampling.SLOWDOWN)


def grows(
    threshold: Callable[[Options], float], *, over: Callable[[Options], float], window: float, unit: float = 1
) -> Leveller:
    """1 from `threshold` units of growth within a window on, 0 after a window with at most `over`."""

    def level(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
        now, newest = samples[-1]
        first = next(each for each in samples if now - each.at <= window)
        growth = max(0.0, (int(newest) - int(first.raw)) / unit)
        if growth >= threshold(options) > 0:
            return 1
        is_over = now - samples[0].at >= window and growth <= over(options)
        return 0 if is_over or not before else 1

    return level


def slowed(threshold: Callable[[Options], float]) -> Leveller:
    """1 while a counter of nanoseconds grows."""
    return grows(
        threshold, over=lambda o: o.throttle_share * COUNTER_WINDOW_S, window=COUNTER_WINDOW_S, unit=1e9
    )


COOL, WARM, HOT = range(3)


def _heat(left_to_hot: float, left_to_warm: float, *, before: Level, hysteresis: float) -> int:
    """The class, from °C left until either class; a class is left only `hysteresis` below its start."""
    was = before if isinstance(before, int) else COOL
    if left_to_hot <= 0 or (was == HOT and left_to_hot < hysteresis):
        return HOT
    return WARM if left_to_warm <= 0 or (was >= WARM and left_to_warm < hysteresis) else COOL


def core_heat(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """By the vendor's limit in °C if there is one; by the policy's numbers."""
    degrees, limit = int(samples[-1].raw), _limit(gpu.limits.temperature.value.gpu_max)
    warm = min(options.temperature, limit - options.margin if limit else options.temperature)
    hot = limit or options.temperature_fail
    return _heat(hot - degrees, warm - degrees, before=before, hysteresis=options.hysteresis)


def memory_heat(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    degrees, limit = int(samples[-1].raw), _limit(gpu.limits.temperature.value.memory_max)
    warm = limit - options.margin if limit else options.memory_temperature
    hot = limit or options.memory_temperature_fail
    return _heat(hot - degrees, warm - degrees, before=before, hysteresis=options.hysteresis)


def margin_heat(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """By the °C that are left to the GPU's T.Limit."""
    limit = gpu.limits.temperature.value.tlimit_gpu_max
    left = int(samples[-1].raw) - (limit if isinstance(limit, int) and abs(limit) <= 30 else 0)
    return _heat(left, left - options.margin, before=before, hysteresis=options.hysteresis)


def _limit(limit: Int) -> int:
    """A vendor's limit in °C; 0 without a plausible one (drivers answer 0 where they have none)."""
    return limit if isinstance(limit, int) and 50 <= limit <= 130 else 0


def call(name: str, *arguments: Any, pick: Callable[[Any], Any] = lambda answer: answer) -> Reading:
    """Reading by one call for the GPU; a tuple as text."""

    def read(gpu: Watched) -> Any:
        return gpu.nvml.value(gpu.device, name, *arguments, pick=lambda answer: _plain(pick(answer)))

    return read


def _plain(answer: Any) -> int | str:
    return "/".join(map(str, answer)) if isinstance(answer, tuple | list) else int(answer)


def celsius(raw: int | str) -> str:
    return f"{raw} °C"


def seconds(raw: int | str) -> str:
    """Of a counter in nanoseconds."""
    return f"{int(raw) / 1e9:.1f} s"


def names_of_bits(raw: int | str) -> str:
    return " and ".join(name for bit, name in sampling.SLOWDOWN.items() if int(raw) & bit) or "none"


def reasons(gpu: Watched) -> Int:
    older = (("nvmlDeviceGetCurrentClocksThrottleReasons",),)
    return gpu.nvml.integer(gpu.device, "nvmlDeviceGetCurrentClocksEventReasons", fallbacks=older)


def margin(gpu: Watched) -> Int:
    answer = gpu.nvml.integer(gpu.device, "nvmlDeviceGetMarginTemperature")
    return signed(answer) if isinstance(answer, int) else answer


def link_states(gpu: Watched) -> Any:
    """One character per link; `-` for a link that gives no answer."""
    if not gpu.links:
        return library.NO_SUCH_LINK
    if gpu.link_fields:
        answers = gpu.nvml.fields(gpu.device, *((topology.FI_LINK_STATE, link) for link in gpu.links))
    else:
        state = "nvmlDeviceGetNvLinkState"
        answers = [gpu.nvml.integer(gpu.device, state, link) for link in gpu.links]
    return "".join("-" if isinstance(each, Unavailable) else str(each) for each in answers)


def link_failures(gpu: Watched) -> Any:
    """Recoveries of links that failed (NVLink 5)."""
    if not gpu.links:
        return library.NO_SUCH_LINK
    answers = gpu.nvml.fields(gpu.device, *((counters.FI_RECOVERY_FAILED, link) for link in gpu.links))
    return _total(answers)


def link_errors(gpu: Watched) -> Any:
    """Replays, recoveries and CRC errors of all links up to NVLink 4."""
    if not gpu.links:
        return library.NO_SUCH_LINK
    errors = []
    for link in gpu.links:
        for kind in (counters.DL_REPLAY, counters.DL_RECOVERY, counters.DL_CRC_FLIT):
            errors.append(gpu.nvml.integer(gpu.device, "nvmlDeviceGetNvLinkErrorCounter", link, kind))
            if isinstance(errors[0], Unavailable):
                return errors[0]
    return _total(errors)


def _total(answers: Sequence[Any]) -> Any:
    numbers = [int(each) for each in answers if not isinstance(each, Unavailable)]
    return sum(numbers) if numbers else answers[0]


def p2p(gpu: Watched) -> Any:
    """The P2P statuses towards every other GPU; `-` for one that gives no answer."""
    statuses = [
        gpu.nvml.pair(gpu.device, peer, "nvmlDeviceGetP2PStatus", kind)
        for peer in gpu.peers
        for kind in (library.READ, library.WRITE, library.NVLINK)
    ]
    if all(isinstance(each, Unavailable) for each in statuses):
        return statuses[0] if statuses else Unavailable("no other GPU")
    return "".join("-" if isinstance(each, Unavailable) else str(each) for each in statuses)


def fabric(gpu: Watched) -> Any:
    answer = gpu.nvml.fabric(gpu.device)
    if isinstance(answer, Unavailable):
        return answer
    parts = (answer.state, answer.status, answer.health_mask, answer.health_summary)
    return "/".join("-" if isinstance(each, Unavailable) else str(each) for each in parts)


def fault(gpu: Watched) -> str:
    """The GPU's own error, without a call: what the calls before it met."""
    return gpu.device.fault.kind if gpu.device.fault else ""


def throttle_field(position: int) -> Callable[[Watched], Field | None]:
    return lambda gpu: gpu.trio[position] if gpu.trio else None


class Signal(Struct, frozen=True, kw_only=True):
    """One quantity of a GPU: read every so many looks, by `read` or as the NVML field `fields` (all due
    fields of a GPU are one call)."""

    name: str
    every: int = 1
    read: Reading | None = None
    fields: Callable[[Watched], Field | None] = field(default=lambda gpu: None)
    level: Leveller = latest
    show: Callable[[int | str], str] = field(default=lambda raw: str(raw) or "none")


OFTEN, SELDOM = 5, 30

SIGNALS = (
    Signal(name="throttle reasons", read=reasons, level=bits, show=names_of_bits),
    Signal(
        name="temperature",
        read=lambda gpu: telemetry.gpu_temperature(gpu.nvml, gpu.device),
        level=core_heat,
        show=celsius,
    ),
    Signal(name="margin", read=margin, level=margin_heat, show=celsius),
    Signal(
        name="memory temperature",
        fields=lambda gpu: telemetry.FI_MEMORY_TEMPERATURE,
        level=memory_heat,
        show=celsius,
    ),
    Signal(
        name="SW thermal",
        fields=throttle_field(0),
        level=slowed(lambda o: o.sw_thermal_seconds),
        show=seconds,
    ),
    Signal(
        name="HW thermal",
        fields=throttle_field(1),
        level=slowed(lambda o: o.hw_thermal_seconds),
        show=seconds,
    ),
    Signal(
        name="power brake",
        fields=throttle_field(2),
        level=slowed(lambda o: o.power_brake_seconds),
        show=seconds,
    ),
    Signal(
        name="thermal violation",
        fields=lambda gpu: None if gpu.trio else counters.FI_THERMAL,
        level=slowed(lambda o: o.sw_thermal_seconds),
        show=seconds,
    ),
    Signal(name="recovery action", fields=lambda gpu: counters.FI_RECOVERY_ACTION),
    Signal(
        name="uncorrectable ECC",
        read=call("nvmlDeviceGetTotalEccErrors", counters.UNCORRECTED, counters.VOLATILE),
    ),
    Signal(name="links", every=OFTEN, read=link_states),
    Signal(name="remapped rows", every=OFTEN, read=call("nvmlDeviceGetRemappedRows")),
    Signal(name="pages pending", every=OFTEN, read=call("nvmlDeviceGetRetiredPagesPendingStatus")),
    Signal(
        name="retired pages",
        every=SELDOM,
        read=call("nvmlDeviceGetRetiredPages", counters.DOUBLE_BIT, pick=len),
    ),
    Signal(name="repair", every=SELDOM, read=call("nvmlDeviceGetRepairStatus")),
    Signal(name="unrepairable", every=SELDOM, read=call("nvmlDeviceGetUnrepairableMemoryFlag_v1")),
    Signal(name="SRAM threshold", every=SELDOM, read=lambda gpu: gpu.nvml.sram_threshold(gpu.device)),
    Signal(
        name="corrected ECC",
        every=SELDOM,
        read=call("nvmlDeviceGetTotalEccErrors", counters.CORRECTED, counters.VOLATILE),
        level=grows(lambda o: o.corrected_per_minute, over=lambda o: 0, window=COUNTER_WINDOW_S),
    ),
    Signal(name="link recoveries failed", every=SELDOM, read=link_failures),
    Signal(
        name="link errors",
        every=SELDOM,
        read=link_errors,
        level=grows(lambda o: 1, over=lambda o: 0, window=10 * COUNTER_WINDOW_S),
    ),
    Signal(name="P2P", every=SELDOM, read=p2p),
    Signal(name="fabric", every=SELDOM, read=fabric),
    Signal(name="PCIe width", every=SELDOM, read=call("nvmlDeviceGetCurrPcieLinkWidth"), level=twice),
    Signal(name="power limit", every=SELDOM, read=call("nvmlDeviceGetEnforcedPowerLimit"), level=twice),
    Signal(name="power source", every=SELDOM, read=call("nvmlDeviceGetPowerSource")),
    Signal(name="MIG", every=SELDOM, read=call("nvmlDeviceGetMigMode", pick=lambda modes: modes[0])),
    Signal(name="error", read=fault),
)
"""In the order in which they are read: a GPU's own error last, after the calls that would meet it."""
