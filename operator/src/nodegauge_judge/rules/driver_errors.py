"""Rules about what the driver itself reports: the recovery action that it asks for, and Xid errors.

The recovery action is NVML field 230.  NVML reports Xids only to those who listen, and a health pod does for
seconds every few minutes, so it catches few of them; other rules judge the marks that an Xid leaves behind
(memory, recovery action, lost GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nodegauge_contract import Gpu
from nodegauge_contract.paste import Statement, StatementKind
from nodegauge_judge.case import Case, HealthRule, all_answered, of_gpu, short_name
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity, XidRule
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, RESET, SAVE, SAVE_FIRST, VENDOR, Observation
from nodegauge_judge.rules import stated
from nodegauge_judge.rules.xid_catalogue import blamed_elsewhere, bucket_of, is_of_program, numbers

NO_ACTION = 0
ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain P2P",
    4: "drain and reset the GPU",
    5: "recover IMEX",
    6: "reset the bus",
    7: "reboot the system",
}
PASSING = (3, 5)
"""Drain P2P and recover IMEX: the GPU itself stays fit for work, so they only warn.  Source of the values:
nvml.h, NVML_GPU_RECOVERY_ACTION_*."""
MOST_NAMED = 8
"""Xids of one GPU that a message names."""

_OWN = "or as a rule of `spec.xids` says"


def recovery_action(case: Case) -> Iterator[Observation]:
    """GPUs whose driver asks for an action; in a pasted log the last one that it asked for."""
    asked = {
        each.subject: each
        for each in stated.statements(case)
        if each.kind == StatementKind.ACTION and each.code
    }
    for statement in asked.values():
        location, gpus = stated.location_of(case, statement)
        asks = statement.code or NO_ACTION
        yield Observation(
            severity=_urgency(asks),
            location=location,
            message=f"The driver asks {_request(asks)} (recovery action {asks}; 0 is none): "
            f"{stated.quoted(statement)}.",
            evidence=stated.evidence(statement) | {"recovery_action": asks},
            weight=asks,
            gpus=gpus,
        )
    for gpu in case.result.gpus:
        action = gpu.repair.action
        if not isinstance(action, int) or action == NO_ACTION:
            continue
        yield of_gpu(
            gpu,
            _urgency(action),
            f"The driver asks {_request(action)} (recovery action {action}; 0 is none).",
            evidence={"recovery_action": action},
            weight=action,
        )


def _urgency(action: int) -> Severity:
    return Severity.WARN if action in PASSING or action not in ACTIONS else Severity.FAIL


def _request(action: int) -> str:
    return f"to {ACTIONS[action]}" if action in ACTIONS else "for something that this version does not know"


def action_read(case: Case) -> bool:
    """Whether every GPU that supports it reported its recovery action."""
    return all_answered(gpu.repair.action for gpu in case.result.gpus)


def xid(case: Case) -> Iterator[Observation]:
    """GPUs with Xids, by severity: by the policy's rules, and for codes without a rule by the catalogue."""
    yield from _stated(case)
    lost = case.result.watch.lost if case.result.watch is not None else 0
    if lost > 0:
        message = f"{lost} more Xids came than the watch container had room for; the kernel log has them."
        yield Observation(
            severity=Severity.WARN, location="node", message=message, evidence={"lost_xids": lost}
        )
    ruled = {code for rule in case.node.xids for code in rule.codes}
    for gpu_index, gpu in enumerate(case.result.gpus):
        unruled = sorted(set(gpu.xids.seen) - ruled)
        for severity in (Severity.FAIL, Severity.WARN):
            own = [_own(case, gpu_index, rule) for rule in case.node.xids if rule.severity is severity]
            listed = _xids(gpu, severity, [xid for xid in unruled if _severity(gpu, xid) is severity])
            parts = [part for part in (*own, listed) if part is not None]
            if parts:
                yield replace(
                    parts[0],
                    message=" ".join(part.message for part in parts),
                    evidence={
                        name: value for part in reversed(parts) for name, value in part.evidence.items()
                    },
                    weight=max(part.weight for part in parts),
                )


def _stated(case: Case) -> Iterator[Observation]:
    """Xids of a pasted kernel log.  Those that a program alone causes are no fault of the hardware; a rule of
    the policy counts all of the text, because nobody knows its time."""
    alike: dict[tuple[str, Severity], list[Statement]] = {}
    for each in stated.statements(case):
        if (
            each.kind == StatementKind.XID
            and each.code is not None
            and (severity := severity_of_stated(case, each))
        ):
            alike.setdefault((each.subject, severity), []).append(each)
    for (_, severity), same in alike.items():
        location, gpus = stated.location_of(case, same[0])
        codes = [each.code or 0 for each in same]
        message, evidence = _in_catalogue(codes)
        blamed = [who for each in same if (who := blamed_elsewhere(each.code or 0, each.text))]
        whose = f" Its reason accuses {blamed[0]}." if blamed else ""
        yield Observation(
            severity=severity,
            location=location,
            message=f"Xid {message[0]}, {stated.quoted(same[0])}.{whose} NVIDIA's advice: {message[1]}.",
            evidence=stated.evidence(same[0]) | evidence,
            weight=len(codes),
            gpus=gpus,
        )


def severity_of_stated(case: Case, statement: Statement) -> Severity | None:
    """How bad an Xid of a log is; None if a rule of the policy says nothing of so few."""
    code = statement.code or 0
    rule = next((rule for rule in case.node.xids if code in rule.codes), None)
    if rule is not None:
        return rule.severity if statement.count >= rule.count else None
    if is_of_program(code):
        return Severity.INFO
    return Severity.WARN if blamed_elsewhere(code, statement.text) else bucket_of(code).severity


def _in_catalogue(xids: list[int]) -> tuple[tuple[str, str], dict[str, Scalar]]:
    """Their names and NVIDIA's advice in words, and the evidence."""
    names = ", ".join(_with_meaning(xid) for xid in xids[:MOST_NAMED])
    more = f" and {len(xids) - MOST_NAMED} more" if len(xids) > MOST_NAMED else ""
    buckets = dict.fromkeys(bucket_of(xid).name for xid in xids)
    advice = dict.fromkeys(bucket_of(xid).advice for xid in xids)
    evidence: dict[str, Scalar] = {"xids": ", ".join(map(str, xids)), "resolution": ", ".join(buckets)}
    return (f"{names}{more}", "; ".join(advice)), evidence


def xids_watched(case: Case) -> bool:
    """Whether the driver would have reported an Xid on every GPU that supports such events."""
    registered = [gpu.xids.registered for gpu in case.result.gpus]
    return all_answered(registered) and False not in registered


def _own(case: Case, gpu_index: int, rule: XidRule) -> Observation | None:
    """What this rule of the policy says of one GPU.  Its window ends now, or with the last of its Xids of a
    report in this document, wherever most are in it: so one that came late is not judged as if nothing had
    happened."""
    gpu, counts = case.result.gpus[gpu_index], case.xids
    keys = {f"{counts.gpus[gpu_index]} {code}": code for code in sorted(set(rule.codes))}
    kept = {code: counts.kept[key] for key, code in keys.items() if key in counts.kept}
    ends = {counts.now, *(at for key in keys for at in counts.fresh.get(key, ()))}
    windows = [
        {
            code: history.until(end).after(min(counts.now, end) - rule.window).total
            for code, history in kept.items()
        }
        for end in sorted(ends, reverse=True)
    ]
    recent = max(windows, key=lambda window: sum(window.values()))
    came = [str(code) for code, count in recent.items() if count]
    total = sum(recent.values())
    if total < rule.count:
        return None
    times = "once" if total == 1 else f"{total} times" + (" together" if len(came) > 1 else "")
    codes = " and ".join([", ".join(came[:-1]), came[-1]] if len(came) > 1 else came)
    return of_gpu(
        gpu,
        rule.severity or Severity.INFO,
        f"Xid {codes} came {times} within {_in_words(rule.window)} on {short_name(gpu)} "
        f"(the policy's limit is {rule.count}).",
        evidence={"xids": ", ".join(came), "count": total, "within_seconds": rule.window},
        weight=total,
    )


def _in_words(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"


def _xids(gpu: Gpu, severity: Severity, xids: list[int]) -> Observation | None:
    if not xids:
        return None
    (names, advice), evidence = _in_catalogue(xids)
    return of_gpu(
        gpu,
        severity,
        f"Xid {names}, seen while the probe watched. NVIDIA's advice: {advice}.",
        evidence=evidence | {"window_seconds": gpu.window.seconds if gpu.window is not None else 0.0},
        weight=len(xids),
    )


def _severity(gpu: Gpu, xid: int) -> Severity:
    bucket = bucket_of(xid)
    return Severity.WARN if bucket.by_action and gpu.repair.action == NO_ACTION else bucket.severity


def _with_meaning(xid: int) -> str:
    bucket = bucket_of(xid)
    return f"{xid} ({bucket.xids.get(xid, bucket.name)})"


def _listed(severity: Severity) -> str:
    return ", ".join(map(str, numbers(severity)))


RULES = (
    HealthRule(
        code="recovery-action",
        title="the driver asks for a recovery",
        meaning=(
            "The driver says what the GPU needs before it is fit for use again (GPU recovery action, NVML "
            "field 230). It is the best single answer to whether a GPU is sick."
        ),
        when={
            Severity.WARN: "drain P2P (3), recover IMEX (5), or an action that this version does not know",
            Severity.FAIL: (
                "GPU reset (1), node reboot (2), drain and reset (4), bus reset (6) or system reboot (7)"
            ),
        },
        next_step=f"{SAVE_FIRST}; then drain the node and do what the driver asks for.",
        way_out=(
            SAVE,
            "`nvidia-smi -q -i INDEX | grep -i 'recovery action'` on the node names it.",
            DRAIN,
            "Reset: " + RESET[0].lower() + RESET[1:],
            "Reboot: `reboot`; a bus reset or system reboot may need a power cycle.",
            "Drain P2P: end the jobs that use NVLink between GPUs. IMEX: `systemctl restart nvidia-imex`.",
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.RECOVERY_ACTION, runs=1),
        check=recovery_action,
        readable=action_read,
    ),
    HealthRule(
        code="xid",
        title="the driver reported an error (Xid)",
        meaning=(
            "An Xid event came while the probe was listening. In mode Watch the container listens all the "
            "time; health pods listen only for seconds and miss most Xids. The kernel log has all of them, "
            "and other findings show the traces that they leave (gpu-lost, reset-required, "
            "recovery-action, ecc, row-remap). NVIDIA's catalogue puts each Xid into a "
            "resolution bucket. An Xid fails if its bucket takes the GPU out of service (RESET_GPU, "
            "RESTART_BM, WORKFLOW_XID_48 and the like). Xids that a program alone can cause (13, 31, 43) "
            "only warn. An NVLink 5 that went down (149) may be the fault of its other end, of a cable or of "
            "a person; the driver's recovery action says whether this GPU needs a repair. For codes in "
            "`spec.xids` of the policy, those rules decide instead: how many "
            "events, within which time, on one GPU, and how severe that is. Such a finding stands until "
            "fewer events are left within that time."
        ),
        when={
            Severity.INFO: "in a pasted kernel log, an Xid that a program alone can cause",
            Severity.WARN: (
                f"one of {_listed(Severity.WARN)}; an Xid that is on neither list; {_OWN}; or more Xids than "
                "the container had room for while the API server was away"
            ),
            Severity.FAIL: (
                f"one of {_listed(Severity.FAIL)}; {_OWN}. That of a link that went down only warns while "
                "the driver asks for no recovery (recovery-action)"
            ),
        },
        next_step=(
            "look it up: `dmesg | grep -iE 'xid.*SLOT'` on the node. If it failed, "
            f"{SAVE_FIRST}; then drain the node and follow the advice."
        ),
        way_out=(
            SAVE,
            DRIVER_LOG + " It names the process and any other Xids.",
            "The evidence names NVIDIA's resolution bucket. Subcodes, and what NVIDIA advises in each: "
            "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
            "If it failed: " + DRAIN[0].lower() + DRAIN[1:],
            "If the advice is a reset: " + RESET[0].lower() + RESET[1:],
            "Reboot if that is the advice (a lost GPU needs it), or if the reset does not help.",
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.XID, runs=1),
        check=xid,
        readable=xids_watched,
    ),
)
