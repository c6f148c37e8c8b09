"""Rules about the machine around the GPUs: its clock, and its NVMe disks.

They touch no GPU, so none of them has a gate.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Disk
from nodegauge_judge.case import Case, HealthRule, clip, number
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.rule import Observation

CLOCK_ERROR_US = 16_000_000
"""The largest error, in microseconds, from which a clock that nothing keeps in step counts.  Source: the
alert NodeClockNotSynchronising of prometheus/node_exporter (docs/node-mixin): not synchronised, and
node_timex_maxerror_seconds >= 16, the kernel's own ceiling (NTP_PHASE_LIMIT)."""
LIVE, DEAD = "live", "dead"
"""States of an NVMe controller that works, and of one that was given up (the kernel's nvme/host/core.c)."""


def clock(case: Case) -> Iterator[Observation]:
    """A clock that nobody sets right."""
    host = case.result.host
    error = number(host.clock_error_us)
    if host.clock_synchronised is not False or error is None or error < CLOCK_ERROR_US:
        return
    yield Observation(
        severity=Severity.INFO,
        location="node",
        message=f"Nothing keeps the clock in step: the kernel's estimate of its error is {error / 1e6:g} s.",
        evidence={"error_seconds": error / 1e6},
    )


def disks(case: Case) -> Iterator[Observation]:
    """NVMe controllers that are not at work, have uncorrected PCIe errors, or are too hot."""
    for disk in case.result.disks:
        troubles = list(_troubles(disk))
        if troubles:
            severity = Severity.WARN if any(warns for warns, _ in troubles) else Severity.INFO
            evidence: dict[str, Scalar] = {"disk": clip(disk.name)}
            evidence |= {
                name: clip(value) if isinstance(value, str) else value
                for name in ("model", "state", "fatal", "nonfatal", "too_hot")
                if isinstance(value := getattr(disk, name), int | str)
            }
            yield Observation(
                severity=severity,
                location=f"disk {clip(disk.name)}",
                message=f"{'; '.join(text for _, text in troubles)}.",
                evidence=evidence,
                weight=len(troubles),
            )


def _troubles(disk: Disk) -> Iterator[tuple[bool, str]]:
    """Whether it warns, and what it is."""
    if isinstance(disk.state, str) and disk.state != LIVE:
        yield disk.state == DEAD, f"The controller is {clip(disk.state)}, not {LIVE}"
    if isinstance(disk.fatal, int) and disk.fatal > 0:
        yield True, f"{disk.fatal} fatal PCIe errors since it was found"
    if isinstance(disk.nonfatal, int) and disk.nonfatal > 0:
        yield False, f"{disk.nonfatal} uncorrected PCIe errors since it was found"
    if disk.too_hot == 1:
        yield True, "The controller warns of its temperature"


RULES = (
    HealthRule(
        code="clock-unsynchronised",
        title="nothing keeps the node's clock in step",
        meaning=(
            "The kernel says that no time service disciplines the clock (STA_UNSYNC), and that its error may "
            "have grown to the ceiling. Logs of nodes are then hard to compare, and tokens and certificates "
            "may count as expired. A virtual machine whose host keeps its clock looks the same and is fine, "
            "so this is only information."
        ),
        when={Severity.INFO: "the clock is not synchronised, and its estimated error is 16 s or more"},
        next_step="`chronyc tracking` or `timedatectl` on the node; start a time service if none runs.",
        way_out=(
            "`timedatectl` on the node: look for `System clock synchronized`.",
            "`systemctl status chronyd systemd-timesyncd`; `chronyc sources` shows what they reach.",
        ),
        check=clock,
    ),
    HealthRule(
        code="disk-error",
        title="an NVMe disk has a fault",
        meaning=(
            "The kernel gave up an NVMe controller, counted uncorrected PCIe errors of it (AER), or the "
            "controller raises its temperature warning. Jobs that read data sets or write checkpoints there "
            "fail or wait. Wear and media errors need the SMART log, which only root may read."
        ),
        when={
            Severity.INFO: "the controller is neither live nor dead, or has uncorrected non-fatal errors",
            Severity.WARN: "the controller is dead, has fatal PCIe errors, or warns of its temperature",
        },
        next_step="`nvme smart-log /dev/nvme0` on the node; `dmesg | grep nvme` for the reason.",
        way_out=(
            "`nvme smart-log` and `nvme error-log` of the disk on the node.",
            "`dmesg | grep -iE 'nvme|AER'`: one that was given up stays so until a reset or a reboot.",
            "If it returns: reseat or replace the disk.",
        ),
        check=disks,
    ),
)
