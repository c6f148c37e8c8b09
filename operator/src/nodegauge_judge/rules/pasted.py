"""Rules about pasted text: one that is cut, one without readings of health, and what no paste can tell.

A paste is a reading of one moment by somebody else.  What it does not contain is unknown, never healthy, so
the last rule says with every paste what it leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_contract.model import PASTED
from nodegauge_contract.paste import StatementKind
from nodegauge_judge import activity
from nodegauge_judge.case import Case, HealthRule, clip, short_name
from nodegauge_judge.interconnect.nvlink_state import not_pasted
from nodegauge_judge.model import Load, Scalar, Severity
from nodegauge_judge.rule import Effect, Observation
from nodegauge_judge.rules import driver_errors, stated
from nodegauge_judge.rules.reading import problem_check

ALWAYS_OPEN = ("growth of error counters", "Xid errors", "sensors of the machine", "NIC ports", "bandwidth")
"""What no output of nvidia-smi that is read here contains."""


def without_health(case: Case) -> Iterator[Observation]:
    """A whole paste that lacks what a judgement of health needs, for at least one GPU that answered."""
    if case.result.probe != PASTED or case.result.problem is not None or stated.passed(case):
        return
    if not case.result.gpus:
        yield from _only_words(case)
    gpus = [gpu for gpu in case.result.gpus if gpu.error is None]
    lacking = [(short_name(gpu), missing) for gpu in gpus if (missing := _lacking(gpu))]
    if lacking:
        name, missing = lacking[0]
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        message = f"The paste has no {' and no '.join(missing)} of {name}{more}."
        if not any(_has_readings(gpu) for gpu in gpus):
            message = "The health is not known: the paste has no `nvidia-smi -q`."
        evidence: dict[str, Scalar] = {"lacking": ", ".join(missing)}
        yield Observation(severity=Severity.WARN, location="node", message=message, evidence=evidence)


def _only_words(case: Case) -> Iterator[Observation]:
    """A paste of nothing but logs and messages, of which none says that something is wrong."""
    checks = (*(rule.check for rule in stated.RULES), driver_errors.xid, driver_errors.recovery_action)
    if any(each.severity is not Severity.INFO for check in checks for each in check(case)):
        return
    statements, captures = stated.statements(case), stated.paste_of(case).captures
    kinds = ", ".join(dict.fromkeys(clip(capture.kind) for capture in captures))
    if any(statement.kind == StatementKind.DRIVER_LINE for statement in statements):
        message = f"The pasted {kinds} has lines of the driver that are not known here, and no known failure."
    elif {capture.kind for capture in captures} <= {
        each.source for each in statements if each.kind == StatementKind.NOT_JUDGED
    }:
        message = f"The paste is output that is known here and not judged: {kinds}."
    else:
        message = f"Nothing wrong in the pasted text ({kinds}), which does not show the GPUs' health."
    yield Observation(
        severity=Severity.WARN, location="node", message=message, evidence={"lacking": "readings"}
    )


def pasted(case: Case) -> Iterator[Observation]:
    """A paste with readings of health."""
    judged = case.result.probe == PASTED and case.result.problem is None
    if judged and not any(without_health(case)):
        yield Observation(severity=Severity.INFO, location="node", message=_open(case), evidence={})


def _lacking(gpu: Gpu) -> list[str]:
    """What is needed at least: an identity, a temperature, and whether something slows the GPU down."""
    values = {"UUID": gpu.uuid, "temperature": gpu.temperature.gpu, "clocks event reasons": gpu.events.read}
    return [name for name, value in values.items() if not isinstance(value, str | int)]


def _has_readings(gpu: Gpu) -> bool:
    values = (gpu.temperature.gpu, gpu.events.read, gpu.ecc.volatile_uncorrected, gpu.repair.rows_failed)
    return any(isinstance(value, int) for value in values)


def _open(case: Case) -> str:
    gpus = case.result.gpus
    if tests := stated.passed(case):
        names = " and ".join(f"{capture.passed} of {capture.kind}" for capture in tests)
        covered = f"These tests passed: {names}. " if names else ""
        return f"{covered}This does not cover: {', '.join([*ALWAYS_OPEN, 'what came later'])}."
    unknown = list(not_pasted(case.result)) if len(gpus) > 1 else []
    if any(not isinstance(gpu.mig, int) for gpu in gpus):
        unknown.append("MIG mode")
    if any(not isinstance(gpu.ecc.volatile_uncorrected, int) for gpu in gpus):
        unknown.append("memory errors")
    repairs = [(gpu.repair.rows_failed, gpu.repair.pages_pending) for gpu in gpus]
    if any(not any(isinstance(flag, int) for flag in flags) for flags in repairs):
        unknown.append("memory repairs")
    if activity.of_node(case) is not Load.LOADED:
        unknown.append("behaviour under load")
    return f"This is one moment, as it was pasted. It does not cover: {', '.join([*unknown, *ALWAYS_OPEN])}."


RULES = (
    HealthRule(
        code="paste-incomplete",
        title="the pasted text is incomplete",
        meaning=(
            "Lines, columns or GPUs are missing in text that was pasted into `nodegauge judge`, or its parts "
            "contradict each other. What is missing could be the sick part, so the text is not judged "
            "and gives no interconnect class. Only `nodegauge judge` reports this."
        ),
        when={
            Severity.WARN: (
                "a pasted table is cut or contradicts itself, or `nvidia-smi -q` does not show every GPU"
            )
        },
        next_step="paste the whole output again, without `...` and without wrapped lines.",
        way_out=(
            "Let the shell write it: `(nvidia-smi topo -m; nvidia-smi -q) > node.txt`, then "
            "`nodegauge judge node.txt`.",
        ),
        check=problem_check("paste-incomplete", "the pasted text is incomplete", Severity.WARN),
        effect=Effect.UNJUDGED,
    ),
    HealthRule(
        code="paste-without-health",
        title="the pasted text has no readings of health",
        meaning=(
            "The pasted text shows how the GPUs are joined, but too little about their health: only a "
            "table, only a part of `nvidia-smi -q`, or a virtual GPU, which shows no temperature. The "
            "interconnect class is valid; the health is unknown. Only `nodegauge judge` reports this."
        ),
        when={
            Severity.WARN: "for a GPU, the paste lacks its UUID, its temperature or its clocks event reasons"
        },
        next_step="paste `nvidia-smi -q` as well, into the same file.",
        way_out=("`(nvidia-smi topo -m; nvidia-smi -q) > node.txt`, then `nodegauge judge node.txt`.",),
        check=without_health,
        effect=Effect.UNJUDGED,
    ),
    HealthRule(
        code="pasted",
        title="judged from pasted text",
        meaning=(
            "The judgement rests on text that was pasted into `nodegauge judge`. A PASS means "
            "that nothing in that text is wrong. It is less than the PASS of a probe: the message lists what "
            "the text does not cover. Only `nodegauge judge` reports this."
        ),
        when={Severity.INFO: "the judged text is output of `nvidia-smi -q`, with or without tables"},
        next_step="run the probe on the node for a full judgement.",
        way_out=("On the node: `python -m nodegauge_probes health | nodegauge judge -`.",),
        check=pasted,
    ),
)
