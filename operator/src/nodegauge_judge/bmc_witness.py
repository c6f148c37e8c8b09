"""What a node's BMC says beside NVML: the second witness in findings about power, heat and NVLink.

Its own findings and gates are in `chassis`.  Here its reading only adds words: it makes no finding worse and
clears none, and a reading that is missing or says nothing changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from nodegauge_contract.chassis import HARDWARE, THERMAL, BoardGpu
from nodegauge_judge.case import Case, number
from nodegauge_judge.chassis.judge import CHASSIS_RULES, judge_chassis
from nodegauge_judge.chassis.supplies import SPARE_SHARE
from nodegauge_judge.model import GpuIdentity, Psu
from nodegauge_judge.rule import Observation

OF_SUPPLIES = frozenset(
    {
        "supplies-short",
        "redundancy-lost",
        "supply-failed",
        "supply-warning",
        "supply-no-input",
        "spare-watts",
        "chassis-rail",
    }
)
OF_COOLING = frozenset({"inlet-hot", "fan-failed"})
PLAUSIBLE_CELSIUS = (1.0, 150.0)
_TITLES = {rule.code: rule.title for rule in CHASSIS_RULES}


def seconded(case: Case, code: str, observation: Observation) -> Observation:
    """The observation, with what the BMC says of the same thing."""
    says = _SAYS.get(code)
    sentence = says(case, observation) if says is not None and case.chassis is not None else ""
    if not sentence:
        return observation
    return replace(
        observation,
        message=f"{observation.message} {sentence}",
        evidence=observation.evidence | {"bmc": sentence},
    )


def spare_watts(case: Case) -> int | None:
    """Watts that the working supplies give beyond full load (beyond the load of now, where full load is not
    known); None unless the BMC calls every supply and rail healthy, states these numbers, and full load is
    within the share that `spare-watts` asks for."""
    if case.chassis is None:
        return None
    judged = judge_chassis(case.chassis, thresholds=case.thresholds)
    drawn = judged.load_watts if judged.peak_watts is None else judged.peak_watts
    faulty = any(finding.code in OF_SUPPLIES for finding in judged.findings)
    if judged.psu is not Psu.OK or faulty or drawn is None or judged.capacity_watts is None:
        return None
    capacity = judged.capacity_watts
    return capacity - drawn if 0 < drawn <= SPARE_SHARE * capacity else None


def board_gpu(case: Case, identity: GpuIdentity) -> BoardGpu | None:
    """The GPU as the BMC shows it, by serial number or UUID; None if not exactly one is it."""
    if case.chassis is None:
        return None
    ours = {_key(identity.serial), _key(identity.uuid)} - {""}
    matches = [gpu for gpu in case.chassis.gpus if {_key(gpu.serial), _key(gpu.uuid)} & ours]
    return matches[0] if len(matches) == 1 else None


def ports(gpu: BoardGpu | None) -> tuple[int, int] | None:
    """NVLink ports that are up, and all of them; None if the BMC does not tell."""
    up, listed = (number(gpu.ports_up), number(gpu.ports)) if gpu is not None else (None, None)
    if up is None or listed is None or not 0 <= up <= listed <= 1000:
        return None
    return int(up), int(listed)


def _of_power(case: Case, observation: Observation) -> str:
    return _sentences(_agrees(case, OF_SUPPLIES), _slowed(case, observation, HARDWARE))


def _of_heat(case: Case, observation: Observation) -> str:
    gpu = _gpu_of(case, observation)
    celsius, memory = (number(gpu.celsius), number(gpu.memory_celsius)) if gpu is not None else (None, None)
    read = [
        f"{_at(celsius)} at this GPU" if _at(celsius) else "",
        f"{_at(memory)} at its memory" if _at(memory) else "",
    ]
    temperatures = " and ".join(text for text in read if text)
    return _sentences(
        _agrees(case, OF_COOLING),
        f"The BMC reads {temperatures}." if temperatures else "",
        _slowed(case, observation, THERMAL, HARDWARE),
    )


def slowdown(gpu: BoardGpu, *causes: str) -> float:
    """The longest of these causes' seconds that the BMC counted since its reading before; 0 for none."""
    lately = [gpu.throttled_lately_seconds.get(cause, 0.0) for cause in causes]
    return max((value for value in lately if 0 < value < math.inf), default=0.0)


def _slowed(case: Case, observation: Observation, *causes: str) -> str:
    gpu = _gpu_of(case, observation)
    window = number(case.chassis.since_seconds) if case.chassis is not None else None
    seconds = slowdown(gpu, *causes) if gpu is not None else 0.0
    if not window or not seconds:
        return ""
    return f"The BMC counted {seconds:.3g} s of such slowdown in {window:.0f} s."


def _gpu_of(case: Case, observation: Observation) -> BoardGpu | None:
    return board_gpu(case, observation.gpus[0]) if observation.gpus else None


def _at(celsius: float | None) -> str:
    low, high = PLAUSIBLE_CELSIUS
    return f"{celsius:g} °C" if celsius is not None and low <= celsius <= high else ""


def _sentences(*texts: str) -> str:
    return " ".join(text for text in texts if text)


def _of_links(case: Case, observation: Observation) -> str:
    known = ports(_gpu_of(case, observation))
    if known is None or known[0] == known[1]:
        return ""
    return f"The BMC agrees: {known[0]} of {known[1]} ports are up."


def _agrees(case: Case, codes: Iterable[str]) -> str:
    """The BMC's own findings of these codes in a sentence; empty if it has none."""
    assert case.chassis is not None, "only asked of a case with a BMC's reading"
    findings = judge_chassis(case.chassis, thresholds=case.thresholds).findings
    subjects = {finding.code: finding.subject for finding in reversed(findings) if finding.code in codes}
    named = [
        f"{_TITLES[code]}{'' if subject == 'node' else f' ({subject})'} [{code}]"
        for code, subject in subjects.items()
    ]
    return f"The BMC agrees: {', '.join(reversed(named))}." if named else ""


def _key(value: object) -> str:
    """A serial number or UUID as it compares: BMCs leave out `GPU-` and write other cases."""
    return value.strip().lower().removeprefix("gpu-").replace("-", "") if isinstance(value, str) else ""


_SAYS: dict[str, Callable[[Case, Observation], str]] = {
    "power-brake": _of_power,
    "insufficient-power": _of_power,
    "psu-fault": _of_power,
    "rail": _of_power,
    "hot": _of_heat,
    "memory-hot": _of_heat,
    "sw-thermal-slowdown": _of_heat,
    "hw-thermal-slowdown": _of_heat,
    "nvlink-degraded": _of_links,
}
