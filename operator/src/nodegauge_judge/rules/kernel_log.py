"""Rules about the kernel's log, if the policy asks for that witness: what NVML did not tell, and a log that
cannot be read.

A line is about the past, which a reset may have mended, and whoever may write to the log may have written it:
it warns, however bad it is, and sets no taint.  What it means comes from the catalogues of pasted logs.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import KernelEvent, KernelLog
from nodegauge_contract.paste import Statement, StatementKind
from nodegauge_judge.case import Case, HealthRule, clip, number
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, REBOOT, RESET, SAVE, Observation
from nodegauge_judge.rules import driver_errors, stated
from nodegauge_judge.rules.failure_catalogue import failure_of
from nodegauge_judge.rules.xid_catalogue import bucket_of

STANDS_S = 86_400.0
"""Seconds for which a line counts.  Chosen by this project: a day, so that somebody sees it."""


def logged(case: Case) -> Iterator[Observation]:
    """What the log says of this boot that NVML did not tell."""
    now, log = number(case.result.host.boottime_ms), case.result.kernel_log
    if now is None or log is None:
        return
    for event in log.events:
        age, statement = max(0.0, now / 1000 - event.last), _statement(event)
        by_catalogue = stated.severity(statement)
        severity = driver_errors.severity_of_stated(case, statement) if _is_xid(event) else by_catalogue
        if age > STANDS_S or severity is None:
            continue
        location, gpus = stated.location_of(case, statement)
        meaning, advice = _meaning(event)
        times = f", {event.count} times" if event.count > 1 else ""
        since = ", before the probe's first look" if event.before else ""
        yield Observation(
            severity=Severity.INFO if severity is Severity.INFO else Severity.WARN,
            location=location,
            short=f"{location} ({meaning})",
            message=f'{meaning}: the kernel\'s log, {_ago(age)} ago{times}{since}: "{clip(event.text)}".',
            evidence=_evidence(event, age) | {"advice": advice},
            weight=event.last,
            gpus=gpus,
        )


def unread(case: Case) -> Iterator[Observation]:
    """A log that was asked for and cannot be read, or not all of it."""
    log = case.result.kernel_log
    if log is None:
        return
    if log.unread:
        yield Observation(
            severity=Severity.WARN,
            location="node",
            message=f"The policy asks for the kernel's log, which cannot be read: {clip(log.unread)}.",
            evidence={"answer": clip(log.unread)},
        )
    if log.lost or log.dropped:
        yield Observation(
            severity=Severity.INFO, location="node", message=_gap(log), evidence=_missed(log), weight=log.lost
        )


def _gap(log: KernelLog) -> str:
    lost = f"{log.lost} bytes or records were skipped, because they came too fast" if log.lost else ""
    dropped = f"{log.dropped} events had no room or no readable time" if log.dropped else ""
    return f"The kernel's log was not read in full: {'; '.join(filter(None, (lost, dropped)))}."


def _missed(log: KernelLog) -> dict[str, Scalar]:
    return {"lost": log.lost, "dropped": log.dropped}


def _is_xid(event: KernelEvent) -> bool:
    return event.kind == StatementKind.XID


def _statement(event: KernelEvent) -> Statement:
    return Statement(
        kind=event.kind,
        line=0,
        text=event.text,
        source="kernel log",
        subject=event.subject,
        code=event.code,
        count=event.count,
    )


def _meaning(event: KernelEvent) -> tuple[str, str]:
    """In words, and what to do."""
    if _is_xid(event) and event.code is not None:
        bucket = bucket_of(event.code)
        return f"Xid {event.code} ({bucket.xids.get(event.code, bucket.name)})", bucket.advice
    failure = failure_of(event.kind)
    code = f" (SXid {event.code})" if event.code is not None else ""
    return f"{failure.meaning[0].upper()}{failure.meaning[1:]}{code}", failure.advice


def _evidence(event: KernelEvent, age: float) -> dict[str, Scalar]:
    evidence: dict[str, Scalar] = {"kind": clip(event.kind), "lines": event.count, "age_seconds": round(age)}
    return evidence | ({"code": event.code} if event.code is not None else {})


def _ago(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


RULES = (
    HealthRule(
        code="kernel-log",
        title="the kernel's log reports a failure that NVML did not tell",
        meaning=(
            "The policy asks for the kernel's log as a second witness (`probes.health.kernelLog`). It has an "
            "error of an NVSwitch (SXid), an Xid from before the probe listened, or a GPU that the driver "
            "could not start. An Xid of which NVML told within ten seconds is left out. A line is about the "
            "past, which a reset may have mended, so it warns and sets no taint."
        ),
        when={
            Severity.INFO: "an Xid that a program alone can cause, or the non-fatal SXid 22013",
            Severity.WARN: "within a day: any other Xid or SXid, or a GPU that the driver could not start",
        },
        next_step="read the lines around it: `dmesg -T | grep -iE 'NVRM|Xid|nvswitch'` on the node.",
        way_out=(
            SAVE,
            "What helps: ADVICE.",
            DRIVER_LOG,
            "SXids: appendix D of NVIDIA's Fabric Manager User Guide lists each, fatal or not.",
            "If it is fatal: " + DRAIN[0].lower() + DRAIN[1:],
            RESET,
            REBOOT,
        ),
        check=logged,
    ),
    HealthRule(
        code="kernel-log-unread",
        title="the kernel's log cannot be read",
        meaning=(
            "The policy asks for the kernel's log (`probes.health.kernelLog`), and the probe cannot read it: "
            "there is no such file, its group may not read it, or it does not answer. Errors that only the "
            "log has stay unseen, so the node does not pass. Lines that came too fast are skipped and "
            "counted, which is only information."
        ),
        when={
            Severity.INFO: "lines were skipped, or events had no room or no readable time",
            Severity.WARN: "the file is missing, refused, or has not answered for a minute",
        },
        next_step="`ls -ln` of the file on the node; compare with `kernelLog.path` and `kernelLog.group`.",
        way_out=(
            "`ls -ln /var/log/kern.log` on the node: set `kernelLog.group` of the policy to a group that may "
            "read it.",
            "A node with a journal alone has no such file: install rsyslog, or let a unit write "
            "`journalctl -kf` into one.",
            "SELinux needs a type that may read logs; the audit log of the node says what it refused.",
            "To do without: `kernelLog.enabled: false`.",
        ),
        check=unread,
    ),
)
