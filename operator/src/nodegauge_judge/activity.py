"""Was a GPU at work?  Rules that need load give no answer for an idle GPU.

Otherwise a taint would lift itself: it drains the load, an idle GPU cannot throttle, three "good" runs lift
the taint, and the next job throttles again.  Load is measured over the interval since the last run (busy
time, from counters) and over the sampling window of a few seconds (utilisation).
"""

from __future__ import annotations

from nodegauge_judge.case import Case, number, once
from nodegauge_judge.model import Load

GPU_IDLE = 0x1
"""nvmlClocksEventReasonGpuIdle."""
ACCURACY = 0.05
"""Of a power reading (NVIDIA's NVML reference, nvmlDeviceGetPowerUsage: within 5 %).  A GPU that draws so
little more than its lowest idle power did nothing that can be told: over hours it would add up."""


@once
def busy_seconds(case: Case, gpu_index: int) -> float | None:
    """Seconds of the interval in which the GPU was busy; None without an interval or if unknown.

    It is the interval less the growth of LOW_UTILIZATION (field 78) if the driver counts that; else by mean
    power: nothing near idle watts, all of it from `busyPowerShare` of the way to the power limit on.  A GPU
    that was never seen idle counts as busy at that share of the limit itself, and is unknown below it.
    """
    seconds, grown = case.growth.interval.seconds, case.growth.gpus[gpu_index]
    if grown.reason or seconds is None:
        return None
    if grown.low_utilization is not None and _counts_idleness(case, gpu_index):
        return max(0.0, seconds - grown.low_utilization)
    share = _power_share(case, gpu_index, seconds=seconds)
    return None if share is None else seconds * share


@once
def of_interval(case: Case, gpu_index: int) -> Load:
    """Load for rules that judge counters: over the interval, else in the window alone."""
    busy = busy_seconds(case, gpu_index)
    if busy is not None:
        return Load.LOADED if busy >= case.thresholds.busy_floor else Load.IDLE
    return _window(case, gpu_index)


@once
def of_window(case: Case, gpu_index: int) -> Load:
    """Load for rules that judge the window.

    A job that ended before the window leaves a busy interval and cool GPUs, so the median of the window must
    be busy too.
    """
    busy = busy_seconds(case, gpu_index)
    if busy is None:
        return _window(case, gpu_index)
    if busy < case.thresholds.busy_floor:
        return Load.IDLE
    window = case.result.gpus[gpu_index].window
    median = number(window.utilization.median) if window and window.utilization else None
    return Load.LOADED if median is None or median >= case.thresholds.busy_utilization else Load.IDLE


def of_node(case: Case) -> Load:
    """Loaded if any GPU was; idle if every GPU is known to have been idle."""
    loads = {of_interval(case, gpu_index) for gpu_index in range(len(case.result.gpus))}
    if Load.LOADED in loads:
        return Load.LOADED
    return Load.IDLE if loads == {Load.IDLE} else Load.UNKNOWN


@once
def idle_watts(case: Case, gpu_index: int) -> float | None:
    """The lowest mean power over any window, this one included, in which the GPU was idle all the time."""
    past, now = case.past(gpu_index), _idle_now(case, gpu_index)
    if past is None or past.idle_dw is None:
        return now
    return past.idle_dw / 10 if now is None else min(past.idle_dw / 10, now)


def _window(case: Case, gpu_index: int) -> Load:
    window = case.result.gpus[gpu_index].window
    lowest = number(window.utilization.min) if window and window.utilization else None
    if lowest is None:
        return _window_by_power(case, gpu_index)
    return Load.LOADED if lowest >= case.thresholds.busy_utilization else Load.IDLE


def _window_by_power(case: Case, gpu_index: int) -> Load:
    """For drivers without utilisation, as with MIG on: loaded if every sample is well above idle power, idle
    if the idle bit is set in every sample."""
    window, limit = case.result.gpus[gpu_index].window, _limit_watts(case, gpu_index)
    lowest = number(window.power_mw.min) if window and window.power_mw else None
    if lowest is not None and limit and lowest / 1000 >= case.thresholds.busy_power_share * limit:
        return Load.LOADED
    return Load.IDLE if _is_idle(case, gpu_index) else Load.UNKNOWN


def _limit_watts(case: Case, gpu_index: int) -> float | None:
    limit = number(case.result.gpus[gpu_index].power.enforced_limit_mw)
    return None if limit is None or limit <= 0 else limit / 1000


def _counts_idleness(case: Case, gpu_index: int) -> bool:
    """Whether to believe LOW_UTILIZATION: a counter that is zero, or that did not grow although the window
    saw an idle GPU, would make every idle GPU look busy."""
    total = case.growth.counts[gpu_index].low_utilization_ms
    return bool(total) and (
        bool(case.growth.gpus[gpu_index].low_utilization) or not _is_idle(case, gpu_index)
    )


def _power_share(case: Case, gpu_index: int, *, seconds: float) -> float | None:
    energy, idle = case.growth.gpus[gpu_index].energy_cj, idle_watts(case, gpu_index)
    limit, share = _limit_watts(case, gpu_index), case.thresholds.busy_power_share
    if energy is None or limit is None:
        return None
    watts = energy / 100 / seconds
    if idle is None:
        return 1.0 if watts >= share * limit else None
    if limit <= idle:
        return None
    return 0.0 if watts <= idle * (1 + ACCURACY) else min(1.0, (watts - idle) / (share * (limit - idle)))


@once
def _is_idle(case: Case, gpu_index: int) -> bool:
    """The driver called the GPU idle in every sample."""
    events = case.result.gpus[gpu_index].events
    read = number(events.read)
    return bool(read) and any(seen.bit == GPU_IDLE and seen.samples == read for seen in events.seen)


def _idle_now(case: Case, gpu_index: int) -> float | None:
    """Mean watts of this window if the GPU was idle: from its energy, else the median of the samples."""
    window = case.result.gpus[gpu_index].window
    if window is None or not _is_idle(case, gpu_index):
        return None
    energy = number(window.growth.energy_mj) if window.growth else None
    elapsed = number(window.growth.elapsed_ms) if window.growth else None
    if energy is not None and energy >= 0 and elapsed is not None and elapsed > 0:
        return energy / elapsed
    median = number(window.power_mw.median) if window.power_mw else None
    return median / 1000 if median is not None and median >= 0 else None
