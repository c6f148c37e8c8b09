"""The rule about clocks: a GPU that runs slower than its identical siblings at the same work.

Identical means the same model, maximum clock, power limit and application clocks.  The same work means the
same window, like utilisation, and power that the lower clock explains.  A GPU with an explanation of its own
is neither judged nor compared with: a slowdown with a rule of its own, its power limit, a clock that a user
set.  GPUs that are slow alike are compared with nodes of the same model and settings, or with their own past.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from zlib import crc32

from msgspec import Struct

from nodegauge_contract import Gpu
from nodegauge_judge import activity, throttle
from nodegauge_judge.case import Case, HealthRule, identity, number, of_gpu, once, text
from nodegauge_judge.history.model import ClockHistory
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Judged, Load, NodeClock, Severity
from nodegauge_judge.peers import usual
from nodegauge_judge.rule import REPORT, VENDOR, Observation
from nodegauge_judge.rules import thermal
from nodegauge_judge.rules.power import is_at_limit, is_capped, share_of_limit
from nodegauge_judge.throttle import Bit

SET_BY_USER = (0x2, 0x10, 0x100)
"""nvmlClocksEventReason: ApplicationsClocksSetting, SyncBoost, DisplayClockSetting."""
IDLE = 0x1
"""nvmlClocksEventReasonGpuIdle: a pause of the work, which says nothing of the clock at work."""
EXPLAINED = (Bit.HW_SLOWDOWN, Bit.SW_THERMAL, Bit.HW_THERMAL, Bit.POWER_BRAKE)


LIKE_UTILIZATION = 20
"""Points of utilisation by which the same work may differ.  Chosen by this project: a GPU that waits for
others at times stays within it."""
LIKE_POWER = 0.15
"""Share of the power limit by which a GPU with the same work may draw more than a faster one.  Chosen by this
project: a slower chip draws less, so more than the noise of a window means heavier work."""
LEAST_LOCKED = 0.25
"""Share of the siblings' clock below which a clock that stands still is stuck, not locked.  Chosen by this
project: only idle clocks are lower (345 of 1980 MHz on H100), and nobody locks those for work."""
STEP_MHZ = 15
"""MHz between two SM clocks.  Source: `nvidia-smi -q -d SUPPORTED_CLOCKS` of data centre GPUs."""
UNDERSIZED = 2
"""NVML_POWER_SOURCE_UNDERSIZED."""
VOLTAGE_EXPONENT = 3
"""Power falls at most with the third power of the clock (dynamic power is C V^2 f, and the voltage falls with
the clock): a GPU that draws less than that has lighter work."""


class Pace(Struct, frozen=True, kw_only=True):
    """One GPU's SM clock and the median of its siblings', in MHz, over the window.  `locked`: it may be a
    setting, for it stands at its own ceiling, and neither power, heat nor a counter tells of a fault."""

    own: float
    siblings: float
    count: int
    locked: bool

    @property
    def share(self) -> float:
        """Own clock as a share of the siblings'."""
        return self.own / self.siblings


class Usual(Struct, frozen=True, kw_only=True):
    """What the node's clock is compared with, in MHz: the median of `nodes` nodes, itself included, or for 0
    the highest that it had itself."""

    mhz: float
    nodes: int


def slow_clock(case: Case) -> Iterator[Observation]:
    """Busy GPUs whose clock is well below that of their identical siblings, and nodes all of whose GPUs are
    well below comparable nodes or their own past."""
    yield from _below_siblings(case)
    node, among = of_node(case), _usual(case)
    limit = case.thresholds.slow_clock_fail
    if node is None or among is None or node.mhz >= limit * among.mhz:
        return
    against = (
        f"the median of {among.nodes} nodes with this model and these settings"
        if among.nodes
        else "this node in an earlier run (too few nodes of this kind tell a fault from a setting)"
    )
    yield Observation(
        severity=Severity.FAIL if among.nodes else Severity.WARN,
        location="all GPUs at work",
        message=f"{node.mhz} MHz against {among.mhz:g} MHz of {against}: "
        f"{node.mhz / among.mhz:.0%}, below {limit:.0%}.",
        evidence={"sm_mhz": node.mhz, "usual_mhz": among.mhz, "nodes": among.nodes, "limit": limit},
        weight=1 - node.mhz / among.mhz,
        gpus=tuple(identity(gpu) for n, gpu in enumerate(case.result.gpus) if _clock(case, n) is not None),
    )


@once
def of_node(case: Case) -> NodeClock | None:
    """The node's clock: the median over GPUs at work whose clock nothing explains, the power cap included
    (without a reason, the clock does not depend on the kernel).  None without such a GPU, or for several
    models or settings."""
    gpus = case.result.gpus
    seen = [
        (make, clock)
        for n in range(len(gpus))
        for make, capped in (_kind(case, n),)
        if (clock := _clock(case, n)) is not None and not capped
    ]
    makes = {make for make, _ in seen}
    if len(makes) != 1 or not text(gpus[0].name):
        return None
    return NodeClock(fingerprint=makes.pop(), mhz=round(median(clock for _, clock in seen)))


def remembered(case: Case) -> ClockHistory | None:
    """The highest clock that the node had with this model and these settings."""
    now, before = of_node(case), case.history.clock
    if now is None:
        return before
    settings = _digest(now)
    best = before.mhz if before is not None and before.settings == settings else 0
    return ClockHistory(settings, max(best, now.mhz))


@once
def _usual(case: Case) -> Usual | None:
    """Comparable nodes; without them, the node's own past."""
    node, past = of_node(case), case.history.clock
    if node is None:
        return None
    if among := usual(case.peers, node.fingerprint, own=node.mhz):
        return Usual(mhz=among[0], nodes=among[1])
    return Usual(mhz=past.mhz, nodes=0) if past is not None and past.settings == _digest(node) else None


def _digest(node: NodeClock) -> str:
    return f"{crc32(node.fingerprint.encode()):08x}"


def _below_siblings(case: Case) -> Iterator[Observation]:
    limits = case.thresholds
    for gpu_index, gpu in enumerate(case.result.gpus):
        pace = _pace(case, gpu_index)
        if pace is None or pace.share >= limits.slow_clock_warn:
            continue
        failed = pace.share < limits.slow_clock_fail and not pace.locked
        limit = limits.slow_clock_fail if failed else limits.slow_clock_warn
        against = f"{pace.siblings:g} MHz of {pace.count} identical GPU{'' if pace.count == 1 else 's'}"
        yield of_gpu(
            gpu,
            Severity.FAIL if failed else Severity.WARN,
            message=f"{pace.own:g} MHz against {against} at work ({pace.share:.0%}, below {limit:.0%})."
            + (_LOCKED if pace.locked else ""),
            evidence={"sm_mhz": pace.own, "siblings_mhz": pace.siblings, "limit": limit},
            weight=1 - pace.share,
        )


def answer_slow_clock(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's clock."""
    loaded = activity.of_window(case, gpu_index)
    if loaded is Load.IDLE:
        return Answer.NO_LOAD
    if loaded is Load.UNKNOWN or _clock(case, gpu_index) is None:
        return Answer.UNSURE
    answers = {_answer_of_siblings(case, gpu_index), _answer_of_peers(case)}
    return next(
        (answer for answer in (Answer.BAD, Answer.UNSURE, Answer.GOOD) if answer in answers), Answer.UNSURE
    )


def _answer_of_siblings(case: Case, gpu_index: int) -> Answer | None:
    pace = _pace(case, gpu_index)
    if pace is None:
        return None
    if pace.share >= case.thresholds.slow_clock_fail:
        return Answer.GOOD
    return Answer.UNSURE if pace.locked else Answer.BAD


@once
def _answer_of_peers(case: Case) -> Answer | None:
    """The node's own past clears nothing: it may have been slow then."""
    node, among = of_node(case), _usual(case)
    if node is None or among is None:
        return None
    if node.mhz >= case.thresholds.slow_clock_fail * among.mhz:
        return Answer.GOOD if among.nodes else None
    return Answer.BAD if among.nodes else Answer.UNSURE


@once
def _pace(case: Case, gpu_index: int) -> Pace | None:
    """None without a clock to compare, or without a sibling."""
    gpu = case.result.gpus[gpu_index]
    workers = _at_work(case)
    own = next((worker for worker in workers if worker.gpu_index == gpu_index), None)
    if own is None or not isinstance(gpu.name, str):
        return None
    others = [
        worker
        for worker in workers
        if worker is not own and worker.kind == own.kind and _same_work(own, worker)
    ]
    if not others:
        return None
    siblings = median(worker.mhz for worker in others)
    locked = _stands(gpu) and own.mhz >= LEAST_LOCKED * siblings and not _is_sick(case, gpu_index)
    return Pace(own=own.mhz, siblings=siblings, count=len(others), locked=locked)


class AtWork(Struct, frozen=True, kw_only=True):
    """A GPU whose clock can be compared: its SM clock in MHz, its kind (`_kind`), the median utilisation of
    the window in percent, and its power as a share of the limit."""

    gpu_index: int
    mhz: float
    kind: tuple[str, bool]
    busy: float | None
    power: float | None


@once
def _at_work(case: Case) -> list[AtWork]:
    """Every GPU that worked and whose clock nothing explains."""
    workers = []
    for gpu_index, gpu in enumerate(case.result.gpus):
        mhz, window = _clock(case, gpu_index), gpu.window
        if mhz is not None and window is not None:
            busy = number(window.utilization.median) if window.utilization else None
            kind, power = _kind(case, gpu_index), share_of_limit(gpu)
            workers.append(AtWork(gpu_index=gpu_index, mhz=mhz, kind=kind, busy=busy, power=power))
    return workers


@once
def _clock(case: Case, gpu_index: int) -> float | None:
    """The median SM clock of a window in which the GPU worked and nothing explains its clock; else None."""
    gpu = case.result.gpus[gpu_index]
    clock = number(gpu.window.sm_mhz.median) if gpu.window is not None and gpu.window.sm_mhz else None
    if activity.of_window(case, gpu_index) is not Load.LOADED or _is_explained(gpu):
        return None
    return clock if clock is not None and clock > 0 else None


def _is_explained(gpu: Gpu) -> bool:
    """Whether a reason sets this GPU's clock; also if the driver gives no reasons, so that one may."""
    return not number(gpu.events.read) or _is_set(gpu, (*SET_BY_USER, *EXPLAINED)) or is_at_limit(gpu)


@once
def _kind(case: Case, gpu_index: int) -> tuple[str, bool]:
    """What the model and its settings say of the clock, and whether power caps it; readings that are missing
    are equal."""
    gpu = case.result.gpus[gpu_index]
    clocks = gpu.clocks
    settings = (clocks.max_sm_mhz, clocks.app_sm_mhz, clocks.app_memory_mhz, gpu.power.enforced_limit_mw)
    known = (number(setting) for setting in settings)
    make = "|".join((text(gpu.name), *("" if value is None else f"{value:.0f}" for value in known)))
    return make, is_capped(gpu)


def _same_work(worker: AtWork, other: AtWork) -> bool:
    """Whether two GPUs did like work, as far as known."""
    if (
        worker.busy is not None
        and other.busy is not None
        and abs(worker.busy - other.busy) > LIKE_UTILIZATION
    ):
        return False
    if worker.power is None or other.power is None:
        return True
    least = other.power * min(1, worker.mhz / other.mhz) ** VOLTAGE_EXPONENT
    return least <= worker.power <= other.power + LIKE_POWER


def _stands(gpu: Gpu) -> bool:
    """Whether the clock was at its highest for half of the window or more, as under a lock (`nvidia-smi -lgc
    MIN,MAX` lets it fall below)."""
    span = gpu.window.sm_mhz if gpu.window is not None else None
    most, middle = (number(span.max), number(span.median)) if span is not None else (None, None)
    return most is not None and middle is not None and most - middle < STEP_MHZ


@once
def _is_sick(case: Case, gpu_index: int) -> bool:
    """Whether power, heat or a counter agrees that the GPU is slowed down."""
    gpu = case.result.gpus[gpu_index]
    slowed = (
        cause(case, gpu_index) for cause in (throttle.sw_thermal, throttle.hw_thermal, throttle.power_brake)
    )
    heats = (seen for check in (thermal.hot, thermal.memory_hot) for seen in check(case))
    return (
        any(reason.bit != IDLE for reason in gpu.events.seen)
        or gpu.power.source == UNDERSIZED
        or any(slowdown is not None and slowdown.severity is not None for slowdown in slowed)
        or any(identity(gpu) in seen.gpus for seen in heats)
    )


def _is_set(gpu: Gpu, bits: tuple[int, ...]) -> bool:
    return any(throttle.seen(gpu, bit).samples for bit in bits)


_LOCKED = (
    " It stands at its own ceiling, as if somebody locked it (`nvidia-smi -lgc`): NVML cannot tell a lock "
    "from a fault."
)

RULES = (
    HealthRule(
        code="slow-clock",
        title="a GPU runs slower than its siblings",
        meaning=(
            "At work in the same window, the GPU's SM clock is well below the median of the node's identical "
            "GPUs (same model, maximum clock, power limit and application clocks) at like utilisation and "
            "power, and nothing explains it: no slowdown with a rule of its own, no power limit that it has "
            "reached, no clock set by a user. Or all GPUs at work are slow alike: slower than nodes of the "
            "same model and settings. The slowest GPU sets the pace of a job over all of them."
        ),
        when={
            Severity.WARN: (
                "under load, below `slowClockWarn` (0.93) of its siblings' median SM clock; also "
                "down to a quarter of it, if the clock stands at its own ceiling and neither power, heat nor "
                "a counter tells of a fault: NVML cannot tell a locked clock. Or all GPUs are below "
                "`slowClockFail` of the node's own best, and fewer than two other nodes of this kind are "
                "known"
            ),
            Severity.FAIL: (
                "under load, below `slowClockFail` (0.8) of its siblings' median SM clock; or all GPUs below "
                "that share of the median of at least three nodes, this one included"
            ),
        },
        next_step="compare `nvidia-smi -q -d CLOCK,PERFORMANCE -i INDEX` with a sibling's.",
        way_out=(
            "`nvidia-smi -q -d CLOCK,PERFORMANCE -i INDEX` on the node: compare clocks, limits and reasons.",
            "Locked clocks: `nvidia-smi -rgc -i INDEX` and `nvidia-smi -rac -i INDEX` unlock them.",
            REPORT,
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.SLOW_GPU, judged=Judged.UNDER_LOAD),
        check=slow_clock,
        answer_per_gpu=answer_slow_clock,
        history_bit=4,
    ),
)
