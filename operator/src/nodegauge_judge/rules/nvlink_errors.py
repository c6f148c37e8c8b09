"""The rule about NVLinks that are up and make errors, by the growth of their counters.

The limits are those of NVIDIA/DCGM (docs/adr/0038): it tolerates neither a replay nor a recovery, and CRC
errors below a rate.  A counter at its maximum tells nothing (`counter-saturated`).  With MIG on (NVML then
reports every link as down) and of virtual GPUs nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import LinkErrors
from nodegauge_judge.case import Case, HealthRule, number, of_gpu
from nodegauge_judge.history.growth import full_links
from nodegauge_judge.interconnect import board
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, RESET, SAVE, SAVE_FIRST, Observation

Part = tuple[Severity, str, float]
"""How bad one kind of errors is, what it is, and how many there are."""


def nvlink_errors(case: Case) -> Iterator[Observation]:
    """GPUs whose links made errors since the last run, or since the driver was loaded."""
    for gpu_index, gpu in enumerate(case.result.gpus if not board.hides_links(case) else ()):
        kinds = [*_new(case, gpu_index), *_old(case, gpu_index)]
        for severity in (Severity.FAIL, Severity.WARN):
            parts = [each for each in kinds if each[0] is severity]
            if parts:
                text = "; ".join(text for _, text, _ in parts)
                weight = max(count for _, _, count in parts)
                yield of_gpu(gpu, severity, f"{text}.", _evidence(gpu.link_errors), weight=weight)


def errors_read(case: Case) -> bool:
    """Whether at least one GPU counts errors of its links, and every GPU that does is known to have no new
    ones."""
    known = [
        getattr(growth, name) is not None or (count == 0 and name not in full_links(gpu.link_errors))
        for gpu, now, growth in zip(case.result.gpus, case.growth.counts, case.growth.gpus, strict=True)
        for name in ("link_crc", "link_faults")
        if (count := getattr(now, name)) is not None or _half_read(gpu.link_errors)
    ]
    return bool(known) and all(known) and not board.hides_links(case)


def _half_read(links: LinkErrors) -> bool:
    """Whether some counters up to NVLink 4 answered, but not all."""
    read = [
        isinstance(count, int) for count in (links.replay, links.recovery, links.crc_flit, links.crc_data)
    ]
    return any(read) and not all(read)


def _new(case: Case, gpu_index: int) -> Iterator[Part]:
    limits, growth = case.thresholds, case.growth.gpus[gpu_index]
    fifth, seconds = _corrects(case.result.gpus[gpu_index].link_errors), case.growth.interval.seconds
    since = "since the last run"
    uncorrected = growth.link_crc if fifth else 0
    for count, what in ((growth.link_faults, _FAULTS[fifth]), (uncorrected, _UNCORRECTED)):
        if count:
            severity = Severity.FAIL if count >= limits.nvlink_errors else Severity.WARN
            yield severity, f"{count} {what} {since} (fails from {limits.nvlink_errors})", count
    if growth.link_crc and not fifth and seconds:
        rate = growth.link_crc / seconds
        severity = Severity.FAIL if rate >= limits.nvlink_crc_per_second else Severity.WARN
        limit = f"(fails from {limits.nvlink_crc_per_second:g})"
        yield severity, f"{growth.link_crc} CRC errors {since}, {rate:.3g} a second {limit}", rate


def _old(case: Case, gpu_index: int) -> Iterator[Part]:
    """Totals without an earlier reading: some may be old, so they only warn.  Of CRC errors, which links live
    with, those count that are too many even if they came evenly since the node was booted."""
    links, now = case.result.gpus[gpu_index].link_errors, case.growth.counts[gpu_index]
    fifth, up = _corrects(links), (number(case.result.host.boottime_ms) or 0) / 1000
    least = 1 if fifth else max(1, case.thresholds.nvlink_crc_per_second * up)
    crc = _UNCORRECTED if fifth else "CRC errors"
    for name, what, limit in (("link_faults", _FAULTS[fifth], 1), ("link_crc", crc, least)):
        count, growth = getattr(now, name), case.growth.gpus[gpu_index]
        known = getattr(growth, name) is not None or case.growth.interval.early or name in full_links(links)
        if count is not None and count >= limit and not known:
            why = growth.why(name) or "there is no earlier reading to compare with"
            yield (
                Severity.WARN,
                f"{count} {what} since the driver was loaded; some may be old: {why}",
                count,
            )


def _corrects(links: LinkErrors) -> bool:
    """Whether these are the counters of NVLink 5, which corrects errors."""
    return not isinstance(links.crc_flit, int)


def _evidence(links: LinkErrors) -> dict[str, str | int | float | bool]:
    """The counters above zero, which tell the kinds apart."""
    counts = {f"link_{name}": getattr(links, name) for name in links.__struct_fields__}
    return {name: count for name, count in counts.items() if isinstance(count, int) and count}


_FAULTS = {False: "NVLink replays or recoveries", True: "NVLink recoveries or faulty packets"}
_UNCORRECTED = "NVLink errors after correction"

RULES = (
    HealthRule(
        code="nvlink-errors",
        title="NVLinks make errors",
        meaning=(
            "NVLinks that are up send packets again, are trained again, or receive wrong bits. nodegauge "
            "judges how much their counters grew since the last run, with the limits of NVIDIA's DCGM. On a "
            "first run, or after the counters restarted, a count only warns. A replay repairs what went "
            "wrong, but a sound link makes none, and such a link may go down next."
        ),
        when={
            Severity.WARN: (
                "CRC errors since the last run; or, with no earlier reading to compare with, replays, "
                "recoveries, NVLink 5's errors, or `nvlinkCrcPerSecond` CRC errors a second since the boot"
            ),
            Severity.FAIL: (
                "since the last run `nvlinkErrors` (default 1) or more replays or recoveries; on NVLink 5 "
                "recoveries, faulty packets or errors after correction; or `nvlinkCrcPerSecond` (default "
                "100) CRC errors a second"
            ),
        },
        next_step=f"run `nvidia-smi nvlink -e -i INDEX`; {SAVE_FIRST}. Drain, then reset the GPU.",
        way_out=(
            "`nvidia-smi nvlink -e -i INDEX` shows the error counters of each link; the far end counts, too.",
            SAVE,
            DRIVER_LOG + " Xid 74 is an NVLink error, 144 to 150 are those of NVLink 5.",
            DRAIN,
            "Bridged cards: power off and reseat the bridge. " + RESET,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NVLINK),
        check=nvlink_errors,
        readable=errors_read,
    ),
)
