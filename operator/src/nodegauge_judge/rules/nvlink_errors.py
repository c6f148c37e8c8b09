"""The rule about NVLinks that are up and make errors, by the growth of their counters.

It does not apply with MIG on (NVML then reports every link as down) or to virtual GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, of_gpu
from nodegauge_judge.history.growth import GpuGrowth
from nodegauge_judge.interconnect import board
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import DRIVER_LOG, RESET, Observation
from nodegauge_judge.rules.nvlink import links_read


def nvlink_errors(case: Case) -> Iterator[Observation]:
    """GPUs whose links made errors since the last run."""
    if not board.hides_links(case):
        for gpu, growth in zip(case.result.gpus, case.growth.gpus, strict=True):
            yield from _errors(gpu, growth)


def _errors(gpu: Gpu, growth: GpuGrowth) -> Iterator[Observation]:
    """A failed recovery without an earlier reading may be old: it only warns."""
    failed, count = growth.link_recovery_failed, gpu.link_errors.recovery_failed
    if failed:
        message = f"{_recoveries(failed)} failed since the last run."
        yield of_gpu(gpu, Severity.FAIL, message, {"recovery_failed": failed}, weight=1 + failed)
    elif failed is None and isinstance(count, int) and count > 0:
        why = growth.why("link_recovery_failed") or "there is no earlier reading to compare with"
        message = f"{_recoveries(count)} failed since the driver was loaded; some may be old: {why}."
        yield of_gpu(gpu, Severity.WARN, message, {"recovery_failed": count})
    if growth.link_errors:
        plural = "" if growth.link_errors == 1 else "s"
        message = f"{growth.link_errors} NVLink error{plural} (CRC, replay, recovery) since the last run."
        yield of_gpu(gpu, Severity.WARN, message, {"errors": growth.link_errors})


def _recoveries(count: int) -> str:
    return f"{count} NVLink recover{'y' if count == 1 else 'ies'}"


RULES = (
    HealthRule(
        code="nvlink-errors",
        title="NVLinks make errors",
        meaning=(
            "NVLinks that are up repeat packets, are trained again, or receive wrong bits. nodegauge judges "
            "how much their counters grew since the last run, since the totals may be old."
        ),
        when={
            Severity.WARN: (
                "CRC, replay or recovery errors since the last run; or a failed recovery with no earlier "
                "reading to compare with"
            ),
            Severity.FAIL: "a link recovery failed since the last run",
        },
        next_step="run `nvidia-smi nvlink -e -i INDEX` and reseat the bridge or board of that link.",
        way_out=(
            "`nvidia-smi nvlink -e -i INDEX` shows the error counters of each link.",
            DRIVER_LOG + " Xid 74 is an NVLink error.",
            "Bridged cards: power off and reseat the bridge. " + RESET,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NVLINK),
        check=nvlink_errors,
        readable=links_read,
    ),
)
