"""Findings about temperature: near the vendor's limit is a warning, heat that slowed the GPU down a failure.

Up to Ampere the driver gives limits in °C; from Ada on a margin (°C left) counts down to `tlimit_gpu_max`.  A
margin of 0 or less is unreliable on some GPUs (leptonai/gpud skips it), so it needs a temperature that is hot
by the policy's numbers, or a counter, beside it.  Where the vendor gives a limit, only a counter that grew
(`throttle`) makes a failure of reaching it; where none is known, the policy's own number does.  Failures need
load: a job that ended, or a sensor of an idle card, gates nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nodegauge_contract import Gpu
from nodegauge_judge import load, throttle
from nodegauge_judge.case import Case, Hit, full_name, gather, number, short_name
from nodegauge_judge.findings import Code
from nodegauge_judge.history.gpu_history import WARM_LIMIT
from nodegauge_judge.model import Answer, Finding, Load, Scalar, Severity
from nodegauge_judge.thresholds import Thresholds

PLAUSIBLE_LIMIT = range(50, 131)
"""°C that a vendor's limit can be; drivers answer 0 where they have none."""
PLAUSIBLE_READING = range(1, 151)
PLAUSIBLE_OFFSET = range(-30, 31)
"""°C that a T.Limit can be; anything else is no distance (an absolute limit, say)."""


class Heat(Struct, frozen=True, kw_only=True):
    """How near a GPU is to a limit: `left` °C, negative beyond it.

    `warns_at`: °C left at which it warns.  `grew`: whether a counter says that heat slowed it down, which a
    failure at a vendor's limit needs; None where the limit is the policy's and needs no counter.
    """

    left: float
    warns_at: float
    grew: bool | None
    words: str
    evidence: dict[str, Scalar]

    @property
    def severity(self) -> Severity | None:
        """What it comes to under load."""
        if self.left <= 0 and self.grew is not False:
            return Severity.FAIL
        return Severity.WARN if self.left <= self.warns_at else None


def hot(case: Case) -> Iterator[Finding]:
    """GPUs near the temperature at which they slow down, or beyond it."""
    yield from gather(Code.HOT, _hits(case, [core(case, place) for place in _places(case)]))


def memory_hot(case: Case) -> Iterator[Finding]:
    """GPUs whose memory is near its limit, or beyond it; 0 °C is what cards without a sensor report."""
    yield from gather(Code.MEMORY_HOT, _hits(case, [memory(case, place) for place in _places(case)]))


def hot_for_long(case: Case) -> Iterator[Finding]:
    """GPUs that keep a temperature at which throttling is likely, run by run under load."""
    limits = case.thresholds
    hits: list[Hit] = []
    for place, gpu in enumerate(case.result.gpus):
        lately = warm(case, place)[-limits.hot_for_long_of :]
        if load.of_window(case, place) is Load.LOADED and lately.count("1") >= limits.hot_for_long_runs:
            often = f"{lately.count('1')} of the last {len(lately)} runs under load"
            message = f"At {limits.throttling_likely} °C or above in {often}; throttling is likely there."
            evidence: dict[str, Scalar] = {"runs": lately.count("1"), "of_runs": len(lately)}
            hits.append(_hit(gpu, Severity.INFO, message, evidence, weight=lately.count("1")))
    yield from gather(Code.HOT_FOR_LONG, hits)


def answer_hot(case: Case, place: int) -> Answer:
    """What the run says of one GPU's core temperature."""
    return _answer(case, place, core(case, place))


def answer_memory_hot(case: Case, place: int) -> Answer:
    """What the run says of one GPU's memory temperature."""
    return _answer(case, place, memory(case, place))


def core(case: Case, place: int) -> Heat | None:
    """The core by the vendor's nearest limit, else by the policy's; None where nothing can be told."""
    gpu, limits = case.result.gpus[place], case.thresholds
    celsius, limit = hottest(gpu), _limit(gpu.temperature.gpu_max)
    grew = throttle.heat_grew(case, place)
    heats: list[Heat] = []
    if limit is not None and celsius is not None:
        heats.append(_by_limit(celsius, limit, margin=limits.hot_margin, grew=grew))
    margin = number(gpu.temperature.margin)
    if margin is not None and (margin > 0 or grew or (celsius is not None and celsius >= limits.hot_warn)):
        left = margin - _offset(gpu.temperature.tlimit_gpu_max)
        heats.append(_by_margin(celsius, left, margin=limits.hot_margin, grew=grew))
    if heats:
        return min(heats, key=lambda heat: heat.left)
    return _by_policy(celsius, limits) if limit is None and celsius is not None else None


def memory(case: Case, place: int) -> Heat | None:
    """The memory by the vendor's limit; None where there is no sensor or no limit."""
    gpu = case.result.gpus[place]
    span = gpu.window.memory_temperature if gpu.window is not None else None
    sampled = _reading(span.max) if span is not None else None
    celsius = sampled if sampled is not None else _reading(gpu.temperature.memory)
    limit = _limit(gpu.temperature.memory_max)
    if celsius is None or limit is None:
        return None
    margin = case.thresholds.memory_hot_margin
    words = f"Memory is at {celsius:g} °C; the vendor's limit is {limit:g} °C"
    return Heat(
        left=limit - celsius,
        warns_at=margin,
        grew=throttle.software_heat_grew(case, place),
        words=f"{words} (warns from {limit - margin:g} °C)",
        evidence={"memory_celsius": celsius, "limit_celsius": limit},
    )


def hottest(gpu: Gpu) -> float | None:
    """The hottest sample of the window, or the single reading where there was no window."""
    span = gpu.window.temperature if gpu.window is not None else None
    sampled = _reading(span.max) if span is not None else None
    return sampled if sampled is not None else _reading(gpu.temperature.gpu)


def band(celsius: float, thresholds: Thresholds) -> str:
    """What people call a temperature: information beside the vendor's limits (source: the field's words)."""
    if celsius <= thresholds.band_excellent:
        return "excellent"
    if celsius < thresholds.band_good:
        return "good"
    return "warm" if celsius < thresholds.throttling_likely else "throttling-likely"


def warm(case: Case, place: int) -> str:
    """The GPU's last runs under load with this one, where it was one: see `GpuMemory.warm`."""
    past = case.past(place)
    before = past.warm if past is not None else ""
    celsius = hottest(case.result.gpus[place])
    if celsius is None or load.of_window(case, place) is not Load.LOADED:
        return before
    return (before + ("1" if celsius >= case.thresholds.throttling_likely else "0"))[-WARM_LIMIT:]


def _places(case: Case) -> range:
    return range(len(case.result.gpus))


def _by_limit(celsius: float, limit: float, *, margin: float, grew: bool) -> Heat:
    return Heat(
        left=limit - celsius,
        warns_at=margin,
        grew=grew,
        words=f"{celsius:g} °C; the vendor's limit is {limit:g} °C (warns from {limit - margin:g} °C)",
        evidence={"celsius": celsius, "limit_celsius": limit},
    )


def _by_margin(celsius: float | None, left: float, *, margin: float, grew: bool) -> Heat:
    at = f" at {celsius:g} °C" if celsius is not None else ""
    evidence: dict[str, Scalar] = {"margin_celsius": left}
    return Heat(
        left=left,
        warns_at=margin,
        grew=grew,
        words=f"{left:g} °C left to the vendor's limit{at} (warns from {margin:g} left)",
        evidence=evidence if celsius is None else evidence | {"celsius": celsius},
    )


def _by_policy(celsius: float, limits: Thresholds) -> Heat:
    failed = celsius >= limits.hot_fail
    name, limit = ("hotFail", limits.hot_fail) if failed else ("hotWarn", limits.hot_warn)
    return Heat(
        left=limits.hot_fail - celsius,
        warns_at=limits.hot_fail - limits.hot_warn,
        grew=None,
        words=f"{celsius:g} °C; the driver gives no limit, the policy's {name} is {limit} °C",
        evidence={"celsius": celsius, "limit_celsius": limit},
    )


def _answer(case: Case, place: int, heat: Heat | None) -> Answer:
    """Bad beyond the limit, good `hotLeaveMargin` below it; between them it neither enters nor leaves."""
    loaded = load.of_window(case, place)
    if loaded is Load.IDLE:
        return Answer.NO_LOAD
    if loaded is Load.UNKNOWN or heat is None:
        return Answer.UNSURE
    if heat.severity is Severity.FAIL:
        return Answer.BAD
    return Answer.GOOD if heat.left >= case.thresholds.hot_leave_margin else Answer.UNSURE


def _hits(case: Case, heats: list[Heat | None]) -> Iterator[Hit]:
    for place, heat in enumerate(heats):
        if heat is None or heat.severity is None:
            continue
        failed = heat.severity is Severity.FAIL and load.of_window(case, place) is Load.LOADED
        slowed = ", and a counter says that heat slowed it down" if failed and heat.grew else ""
        yield _hit(
            case.result.gpus[place],
            Severity.FAIL if failed else Severity.WARN,
            f"{heat.words}{slowed}.",
            heat.evidence,
            weight=-heat.left,
        )


def _hit(gpu: Gpu, severity: Severity, message: str, evidence: dict[str, Scalar], *, weight: float) -> Hit:
    return Hit(
        severity=severity,
        place=full_name(gpu),
        short=short_name(gpu),
        message=message,
        evidence=evidence,
        weight=weight,
    )


def _reading(value: object) -> float | None:
    found = number(value)
    return found if found is not None and PLAUSIBLE_READING[0] <= found <= PLAUSIBLE_READING[-1] else None


def _limit(value: object) -> float | None:
    found = number(value)
    return found if found is not None and PLAUSIBLE_LIMIT[0] <= found <= PLAUSIBLE_LIMIT[-1] else None


def _offset(value: object) -> float:
    found = number(value)
    return found if found is not None and PLAUSIBLE_OFFSET[0] <= found <= PLAUSIBLE_OFFSET[-1] else 0
