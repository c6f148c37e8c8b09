"""Rules about temperature: close to the vendor's limit warns; heat that slowed the GPU down fails.

Up to Ampere the driver gives limits in °C; from Ada on, a margin (°C left) counts down to `tlimit_gpu_max`,
for memory to `tlimit_memory_max`.
A margin of 0 or less is unreliable on some GPUs (leptonai/gpud skips it), so it counts only with a growing
counter or a temperature that the policy calls hot.  At a vendor's limit, a failure needs a counter that grew
(`throttle`); without a vendor's limit, the policy's number decides.  Failures need load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Gpu
from nodegauge_judge import activity, throttle
from nodegauge_judge.case import Case, HealthRule, lower_watts, number, of_gpu, once
from nodegauge_judge.history.model import WARM_LIMIT
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Judged, Load, Scalar, Severity
from nodegauge_judge.rule import AIR_FLOW, ONE_HOT, Observation
from nodegauge_judge.thresholds import Thresholds

PLAUSIBLE_LIMIT = range(50, 131)
"""°C that a vendor's limit can be; drivers answer 0 where they have none."""
PLAUSIBLE_READING = range(1, 151)
PLAUSIBLE_OFFSET = range(-30, 31)
"""°C that a T.Limit can be; anything else is not a distance (perhaps an absolute limit)."""


class Heat(Struct, frozen=True, kw_only=True):
    """How close a GPU is to a limit: `left` °C, negative above it.

    `warns_at`: °C left at which it warns.  `grew`: whether a counter shows that heat slowed it down, which a
    failure at a vendor's limit needs; None for the policy's limit, which needs no counter.
    """

    left: float
    warns_at: float
    grew: bool | None
    text: str
    evidence: dict[str, Scalar]

    @property
    def severity(self) -> Severity | None:
        """Its severity under load."""
        if self.left <= 0 and self.grew is not False:
            return Severity.FAIL
        return Severity.WARN if self.left <= self.warns_at else None


def hot(case: Case) -> Iterator[Observation]:
    """GPUs close to the temperature at which they slow down, or above it."""
    return _observe(case, _core)


def memory_hot(case: Case) -> Iterator[Observation]:
    """GPUs whose memory is close to its limit or above it; cards without a sensor report 0 °C."""
    return _observe(case, _memory)


def hot_for_long(case: Case) -> Iterator[Observation]:
    """GPUs at a temperature at which throttling is likely, in most of their last runs under load."""
    limits = case.thresholds
    for gpu_index, gpu in enumerate(case.result.gpus):
        recent = warm(case, gpu_index)[-limits.hot_for_long_of :]
        if (
            activity.of_window(case, gpu_index) is Load.LOADED
            and recent.count("1") >= limits.hot_for_long_runs
        ):
            often = f"{recent.count('1')} of the last {len(recent)} runs under load"
            message = f"At {limits.throttling_likely} °C or above in {often}; throttling is likely there."
            evidence: dict[str, Scalar] = {"runs": recent.count("1"), "of_runs": len(recent)}
            yield of_gpu(gpu, Severity.INFO, message, evidence, weight=recent.count("1"))


def answer_hot(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's core temperature."""
    return _answer(case, gpu_index, _core(case, gpu_index))


def answer_memory_hot(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's memory temperature."""
    return _answer(case, gpu_index, _memory(case, gpu_index))


@once
def _core(case: Case, gpu_index: int) -> Heat | None:
    """The core against the vendor's nearest limit, else the policy's; None if unknown."""
    gpu, limits = case.result.gpus[gpu_index], case.thresholds
    celsius, limit = hottest(gpu), _limit(gpu.temperature.gpu_max)
    grew = throttle.heat_grew(case, gpu_index)
    heats: list[Heat] = []
    if limit is not None and celsius is not None:
        heats.append(_by_limit(celsius, limit, margin=limits.hot_margin, grew=grew))
    margin = number(gpu.temperature.margin)
    if margin is not None and (margin > 0 or grew or (celsius is not None and celsius >= limits.hot_warn)):
        left = margin - _offset(gpu.temperature.tlimit_gpu_max)
        heats.append(_by_margin(celsius, left, margin=limits.hot_margin, grew=grew))
    if heats:
        return min(heats, key=lambda heat: heat.left)
    if limit is not None or celsius is None:
        return None
    return _by_policy(celsius, "hot", warn=limits.hot_warn, fail=limits.hot_fail)


@once
def _memory(case: Case, gpu_index: int) -> Heat | None:
    """The memory against the vendor's limit, else the policy's; None without a sensor.

    A driver that gives T.Limits alone has no limit in °C for memory: `tlimit_memory_max` (field 195) is the
    margin at which memory slows the GPU down, 0 on H100 to GB200.  NVML's margin counts to the nearest of all
    slowdown points, so it is memory's only if memory is the hotter part; and on the recorded machines it
    follows the core.  So the policy's number holds beside it.
    """
    gpu, limits = case.result.gpus[gpu_index], case.thresholds
    celsius, limit = hottest_memory(gpu), _limit(gpu.temperature.memory_max)
    if celsius is None:
        return None
    grew = throttle.software_heat_grew(case, gpu_index)
    if limit is not None:
        return _of_memory(_by_limit(celsius, limit, margin=limits.memory_hot_margin, grew=grew))
    heats = [_by_policy(celsius, "memoryHot", warn=limits.memory_hot_warn, fail=limits.memory_hot_fail)]
    margin, offset = (
        number(gpu.temperature.margin),
        _within(gpu.temperature.tlimit_memory_max, PLAUSIBLE_OFFSET),
    )
    believed = margin is not None and (margin > 0 or grew or celsius >= limits.memory_hot_warn)
    if margin is not None and offset is not None and believed and celsius >= (hottest(gpu) or 0):
        heats.append(_by_margin(celsius, margin - offset, margin=limits.memory_hot_margin, grew=grew))
    return _of_memory(_worst(heats))


def _of_memory(heat: Heat) -> Heat:
    """The same, in words and evidence that say memory."""
    evidence = {
        f"memory_{name}" if name == "celsius" else name: value for name, value in heat.evidence.items()
    }
    return replace(heat, text=f"Memory: {heat.text}", evidence=evidence)


def _worst(heats: Sequence[Heat]) -> Heat:
    """The one with the worst severity; of several, the one closest to its limit."""
    order = (Severity.FAIL, Severity.WARN, None)
    return min(heats, key=lambda heat: (order.index(heat.severity), heat.left))


def hottest_memory(gpu: Gpu) -> float | None:
    """The hottest sample of the memory in the window, or the single reading without a window."""
    span = gpu.window.memory_temperature if gpu.window is not None else None
    sampled = _reading(span.max) if span is not None else None
    return sampled if sampled is not None else _reading(gpu.temperature.memory)


def hottest(gpu: Gpu) -> float | None:
    """The hottest sample of the window, or the single reading without a window."""
    span = gpu.window.temperature if gpu.window is not None else None
    sampled = _reading(span.max) if span is not None else None
    return sampled if sampled is not None else _reading(gpu.temperature.gpu)


def band(celsius: float, thresholds: Thresholds) -> str:
    """The name of a temperature's band, for information (source: see `hot_warn` in `thresholds`)."""
    if celsius <= thresholds.band_excellent:
        return "excellent"
    if celsius < thresholds.band_good:
        return "good"
    return "warm" if celsius < thresholds.throttling_likely else "throttling-likely"


def warm(case: Case, gpu_index: int) -> str:
    """The GPU's last runs under load, this one included if it was under load: see `GpuHistory.warm`."""
    past = case.past(gpu_index)
    before = past.warm if past is not None else ""
    celsius = hottest(case.result.gpus[gpu_index])
    if celsius is None or activity.of_window(case, gpu_index) is not Load.LOADED:
        return before
    return (before + ("1" if celsius >= case.thresholds.throttling_likely else "0"))[-WARM_LIMIT:]


def _by_limit(celsius: float, limit: float, *, margin: float, grew: bool) -> Heat:
    return Heat(
        left=limit - celsius,
        warns_at=margin,
        grew=grew,
        text=f"{celsius:g} °C; the vendor's limit is {limit:g} °C (warns from {limit - margin:g} °C)",
        evidence={"celsius": celsius, "limit_celsius": limit},
    )


def _by_margin(celsius: float | None, left: float, *, margin: float, grew: bool) -> Heat:
    at = f" at {celsius:g} °C" if celsius is not None else ""
    evidence: dict[str, Scalar] = {"margin_celsius": left}
    return Heat(
        left=left,
        warns_at=margin,
        grew=grew,
        text=f"{left:g} °C left to the vendor's limit{at} (warns from {margin:g} left)",
        evidence=evidence if celsius is None else evidence | {"celsius": celsius},
    )


def _by_policy(celsius: float, field: str, *, warn: float, fail: float) -> Heat:
    """Against the policy's `{field}Warn` and `{field}Fail`."""
    name, limit = (f"{field}Fail", fail) if celsius >= fail else (f"{field}Warn", warn)
    return Heat(
        left=fail - celsius,
        warns_at=fail - warn,
        grew=None,
        text=f"{celsius:g} °C; the driver gives no limit, the policy's {name} is {limit:g} °C",
        evidence={"celsius": celsius, "limit_celsius": limit},
    )


def _answer(case: Case, gpu_index: int, heat: Heat | None) -> Answer:
    """Bad above the limit, good `hotLeaveMargin` below it, unsure between them."""
    loaded = activity.of_window(case, gpu_index)
    if loaded is Load.IDLE:
        return Answer.NO_LOAD
    if loaded is Load.UNKNOWN or heat is None:
        return Answer.UNSURE
    if heat.severity is Severity.FAIL:
        return Answer.BAD
    return Answer.GOOD if heat.left >= case.thresholds.hot_leave_margin else Answer.UNSURE


def _observe(case: Case, measure: Callable[[Case, int], Heat | None]) -> Iterator[Observation]:
    for gpu_index, gpu in enumerate(case.result.gpus):
        heat = measure(case, gpu_index)
        if heat is None or heat.severity is None:
            continue
        failed = heat.severity is Severity.FAIL and activity.of_window(case, gpu_index) is Load.LOADED
        slowed = ", and a counter shows that heat slowed it down" if failed and heat.grew else ""
        yield of_gpu(
            gpu,
            Severity.FAIL if failed else Severity.WARN,
            f"{heat.text}{slowed}.",
            heat.evidence | lower_watts(gpu),
            weight=-heat.left,
        )


def _reading(value: object) -> float | None:
    return _within(value, PLAUSIBLE_READING)


def _limit(value: object) -> float | None:
    return _within(value, PLAUSIBLE_LIMIT)


def _offset(value: object) -> float:
    return _within(value, PLAUSIBLE_OFFSET) or 0


def _within(value: object, plausible: range) -> float | None:
    celsius = number(value)
    return celsius if celsius is not None and plausible[0] <= celsius <= plausible[-1] else None


RULES = (
    HealthRule(
        code="hot",
        title="a GPU is hot",
        meaning=(
            "The GPU is close to the temperature at which its driver starts to slow it down, or above it. "
            "Reaching the vendor's limit fails only if a counter also shows that heat slowed the GPU down; "
            "a margin of 0 alone never fails, since some GPUs report it for no reason. The GPU counts as "
            "cool again `hotLeaveMargin` (5) °C below the limit. Bands, for information: excellent up to "
            "`bandExcellent` (75), good below `bandGood` (80), throttling likely from `throttlingLikely` "
            "(84)."
        ),
        when={
            Severity.WARN: (
                "within `hotMargin` (5) °C of the vendor's limit; without a vendor limit, at or above "
                "`hotWarn` (80) °C"
            ),
            Severity.FAIL: (
                "under load, at or above the vendor's limit while a counter of thermal slowdown grew; "
                "without a vendor limit, at or above `hotFail` (90) °C"
            ),
        },
        next_step="check fans, air flow and inlet temperature of the node.",
        alone=ONE_HOT,
        way_out=(
            AIR_FLOW,
            "Until it is cool: `nvidia-smi -pl LOWER_WATTS -i INDEX` lowers the power limit (nodegauge then "
            "reports power-cap-low).",
        ),
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=Judged.UNDER_LOAD),
        check=hot,
        answer_per_gpu=answer_hot,
        history_bit=0,
    ),
    HealthRule(
        code="memory-hot",
        title="GPU memory is hot",
        meaning=(
            "The GPU's memory (HBM, GDDR) is close to its limit or above it. The core may still be cool. "
            "From Hopper on, drivers give margins (T.Limit) and no limit in °C for memory, so the policy's "
            "numbers apply beside the margin."
        ),
        when={
            Severity.WARN: (
                "within `memoryHotMargin` (5) °C of the vendor's limit for memory (a temperature, or its "
                "T.Limit where memory is hotter than the core); without a limit in °C, at or above "
                "`memoryHotWarn` (95) °C"
            ),
            Severity.FAIL: (
                "under load, at or above the vendor's limit while the counter of software thermal slowdown "
                "grew; without a limit in °C, at or above `memoryHotFail` (105) °C"
            ),
        },
        next_step="check fans, air flow and inlet temperature of the node.",
        alone="one GPU alone: suspect its heat sink or thermal pads, and what blocks the air to it.",
        way_out=(
            "`nvidia-smi -q -d TEMPERATURE` on the node shows memory temperature and limit.",
            "One GPU alone: heat sink or thermal pads; replace the board through your vendor. All of them: "
            "air flow and inlet.",
        ),
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=Judged.UNDER_LOAD),
        check=memory_hot,
        answer_per_gpu=answer_memory_hot,
        history_bit=1,
    ),
    HealthRule(
        code="hot-for-long",
        title="a GPU stays hot",
        meaning=(
            "In run after run under load, the GPU is as hot as GPUs are when they start to slow down. "
            "Nothing is wrong yet, but clocks fall with heat long before a limit is reached."
        ),
        when={
            Severity.INFO: (
                "at `throttlingLikely` (84) °C or above in `hotForLongRuns` (3) of the last `hotForLongOf` "
                "(4) runs under load"
            )
        },
        next_step="check air flow and dust on your next visit to the rack.",
        alone="one GPU alone: look at its heat sink, fan and dust on your next visit to the rack.",
        way_out=(AIR_FLOW,),
        check=hot_for_long,
    ),
)
