"""The rule about power limits.  A cap is a setting: it warns, but it is neither throttling nor a fault.

The bit of the software power cap alone means nothing: it is set on every busy GPU that draws its full power.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_judge import activity, throttle
from nodegauge_judge.case import Case, HealthRule, number, of_gpu, text
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.model import Load, Scalar, Severity
from nodegauge_judge.rule import Observation

SW_POWER_CAP = 0x4
"""nvmlClocksEventReasonSwPowerCap."""
AT_LIMIT = 0.9
"""Share of the power limit from which a capped GPU is at its limit.  Chosen by this project: the driver holds
the average at the limit, and seconds of a changing load stay a little below it."""


def power_cap_low(case: Case) -> Iterator[Observation]:
    """GPUs whose enforced limit (the real cap, out-of-band included) is well below their default limit, and
    busy GPUs that their cap keeps below the vendor's base clock."""
    ratio = case.thresholds.power_cap_ratio
    for gpu_index, gpu in enumerate(case.result.gpus):
        observation = _below_default(gpu, ratio) or _below_base(case, gpu_index)
        if observation is not None:
            yield observation


def is_capped(gpu: Gpu) -> bool:
    """Whether the bit of the software power cap was set in most samples of the window."""
    read = number(gpu.events.read)
    return bool(read) and throttle.seen(gpu, SW_POWER_CAP).samples * 2 > (read or 0)


def share_of_limit(gpu: Gpu) -> float | None:
    """The median power of the window as a share of the enforced limit."""
    limit = number(gpu.power.enforced_limit_mw)
    drawn = number(gpu.window.power_mw.median) if gpu.window is not None and gpu.window.power_mw else None
    return None if drawn is None or limit is None or limit <= 0 else drawn / limit


def is_at_limit(gpu: Gpu) -> bool:
    """Whether the power limit sets the clock: the cap's bit, and power near the limit (or unknown)."""
    share = share_of_limit(gpu)
    return is_capped(gpu) and (share is None or share >= AT_LIMIT)


def _below_default(gpu: Gpu, ratio: float) -> Observation | None:
    enforced, default = number(gpu.power.enforced_limit_mw), number(gpu.power.default_limit_mw)
    if enforced is None or default is None or not 0 < enforced < ratio * default:
        return None
    watts, usual = enforced / 1000, default / 1000
    share = f"{watts / usual:.0%}, warns below {ratio:.0%}"
    return of_gpu(
        gpu,
        Severity.WARN,
        message=f"Capped at {watts:g} W of {usual:g} W by default ({share}).",
        evidence={"enforced_watts": watts, "default_watts": usual, "limit": ratio},
        weight=1 - watts / usual,
    )


def _below_base(case: Case, gpu_index: int) -> Observation | None:
    gpu = case.result.gpus[gpu_index]
    base, window = known_models().base_mhz(text(gpu.name)), gpu.window
    median = number(window.sm_mhz.median) if window is not None and window.sm_mhz is not None else None
    if base is None or median is None or median >= base or not is_capped(gpu):
        return None
    if activity.of_window(case, gpu_index) is not Load.LOADED:
        return None
    usual = number(gpu.power.default_limit_mw)
    evidence: dict[str, Scalar] = {"sm_mhz": median, "base_mhz": base}
    return of_gpu(
        gpu,
        Severity.WARN,
        message=f"The power cap keeps it at {median:g} MHz, below the model's base clock of {base} MHz.",
        evidence=evidence | ({"default_watts": usual / 1000} if usual else {}),
        weight=1 - median / base,
    )


RULES = (
    HealthRule(
        code="power-cap-low",
        title="the power limit is set low",
        meaning=(
            "An administrator or the BMC capped the GPU below its default power limit, or the cap keeps a "
            "busy GPU below its vendor's base clock. The GPU does what its settings say, only slower than "
            "the same model elsewhere. This is neither throttling nor a fault. The software power cap "
            "alone is normal on every busy GPU and raises nothing."
        ),
        when={
            Severity.WARN: (
                "the enforced limit is below `powerCapRatio` (default 0.9) of the default limit; or, under "
                "load and capped in most samples, the median SM clock is below the model's base clock, if "
                "nodegauge knows it"
            )
        },
        next_step="unless it is intended, find out who set it: `nvidia-smi -q -d POWER -i INDEX`.",
        way_out=(
            "`nvidia-smi -q -d POWER -i INDEX` shows current, requested, default and maximum limit.",
            "`nvidia-smi -pl DEFAULT_WATTS -i INDEX` restores it. If the limit drops again, the BMC sets it.",
            "If it is intended, lower `spec.thresholds.powerCapRatio` of the policy.",
        ),
        check=power_cap_low,
    ),
)
