"""Rules about what pasted text states in words: kernel logs, failure messages, results of other tests.

Probes have no such statements, so none of these has a gate.  Xids and recovery actions belong to
`driver_errors`, which knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodegauge_contract import Gpu
from nodegauge_contract.paste import Capture, Paste, PastedResult, Statement, StatementKind
from nodegauge_judge.case import Case, HealthRule, clip, full_name, identity
from nodegauge_judge.gpu_models import Joins, known_models
from nodegauge_judge.model import GpuIdentity, Scalar, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules import failure_catalogue as catalogue
from nodegauge_judge.rules.failure_catalogue import FAILURES, Failure, failure_of

_WORST = (Severity.FAIL, Severity.WARN, Severity.INFO)
OFF_THE_BUS = 79


def paste_of(case: Case) -> Paste:
    """What the text states; nothing, if the result is no paste."""
    return case.result.paste if isinstance(case.result, PastedResult) else Paste()


def statements(case: Case) -> list[Statement]:
    """What the text states.  An Xid 79 says already that its GPU fell off the bus."""
    every = paste_of(case).statements
    off = [each.subject for each in every if each.kind == StatementKind.XID and each.code == OFF_THE_BUS]
    return [
        each
        for each in every
        if each.kind != StatementKind.FALLEN_OFF
        or not any(not each.subject or not slot or each.subject.startswith(slot) for slot in off)
    ]


def passed(case: Case) -> list[Capture]:
    """Tests of GPUs whose results are in the text, such as gpu-burn."""
    return [capture for capture in paste_of(case).captures if capture.passed]


def severity(statement: Statement) -> Severity:
    """How bad a statement is that is neither an Xid nor a recovery action."""
    count = statement.code or 0
    if statement.kind == StatementKind.SXID and count in catalogue.IGNORED_SXIDS:
        return Severity.INFO
    if statement.kind == StatementKind.LINK_ERRORS and count <= catalogue.LINK_ERRORS:
        return Severity.INFO
    return failure_of(statement.kind).severity


def location_of(case: Case, statement: Statement) -> tuple[str, tuple[GpuIdentity, ...]]:
    """Where it is, and the GPU: by address, UUID or number where the text lists that GPU."""
    subject = statement.subject
    gpu = next((gpu for gpu in case.result.gpus if subject and _is(gpu, subject)), None)
    if gpu is not None:
        return full_name(gpu), (identity(gpu),)
    if subject[:1].isdigit() and ":" in subject:
        pci = subject if "." in subject else f"{subject}.0"
        return f"GPU {clip(pci)}", (GpuIdentity(pci=clip(pci)),)
    if subject.startswith("GPU-"):
        return clip(subject), (GpuIdentity(uuid=clip(subject)),)
    return clip(subject) or "node", ()


def _is(gpu: Gpu, subject: str) -> bool:
    by_address = isinstance(gpu.pci, str) and (gpu.pci in subject or gpu.pci.startswith(f"{subject}."))
    return by_address or subject in (f"GPU {gpu.index}", f"GPU{gpu.index}", gpu.uuid)


def quoted(statement: Statement) -> str:
    """`line 3 of the kernel log: "..."`, and how often."""
    times = f", {statement.count} times" if statement.count > 1 else ""
    return f'line {statement.line} of the pasted {clip(statement.source)}{times}: "{clip(statement.text)}"'


def evidence(statement: Statement) -> dict[str, Scalar]:
    """Where it stands, and how often."""
    return {"line": statement.line, "lines": statement.count, "words": clip(statement.text)}


def _check(code: str) -> Callable[[Case], Iterator[Observation]]:
    """A check for the statements of one rule."""

    def check(case: Case) -> Iterator[Observation]:
        for number, statement in enumerate(statements(case)):
            if statement.kind in (StatementKind.XID, StatementKind.ACTION):
                continue
            failure = failure_of(statement.kind)
            if failure.code == code:
                yield _observation(case, statement, failure, weight=-number)

    return check


def _observation(case: Case, statement: Statement, failure: Failure, *, weight: float) -> Observation:
    location, gpus = location_of(case, statement)
    meaning = f"{failure.meaning[0].upper()}{failure.meaning[1:]}"
    return Observation(
        severity=Severity.FAIL if _lacks_all_links(case, statement) else severity(statement),
        location=location,
        short=f"{location} ({failure.meaning}; {clip(statement.text)[:140]})",
        message=f"{meaning}: {quoted(statement)}.",
        evidence=evidence(statement) | {"advice": failure.advice},
        weight=weight,
        gpus=gpus,
    )


def _lacks_all_links(case: Case, statement: Statement) -> bool:
    """Whether no link is active on a whole board whose NVSwitches join its GPUs."""
    row = known_models().find(case.result.gpus[0].name if case.result.gpus else None)
    switched = row.nvlink is not None and row.nvlink.joins is Joins.SWITCH and row.board is not None
    whole = row.board is not None and len(case.result.gpus) == row.board.modules
    return statement.kind == StatementKind.LINKS_ALL_OFF and switched and whole


def _rule(code: str, title: str, meaning: str) -> HealthRule:
    mine = [failure for failure in FAILURES.values() if failure.code == code]
    when = {
        severity: "; ".join(dict.fromkeys(each.meaning for each in mine if each.severity is severity))
        for severity in reversed(_WORST)
        if any(each.severity is severity for each in mine)
    }
    return HealthRule(
        code=code,
        title=title,
        meaning=f"{meaning} Only `nodegauge judge` reports this, of pasted text.",
        when=when,
        next_step="ADVICE.",
        way_out=(
            "What helps: ADVICE.",
            "Read the lines around the one that the message names: they often name the cause.",
        ),
        check=_check(code),
    )


RULES = (
    _rule(
        catalogue.DRIVER,
        "the driver or nvidia-smi reports a failure",
        "A message of the kernel module, nvidia-smi or the device plugin says that a GPU or the driver "
        "does not work. A failure of the software counts too: no job runs until it is mended.",
    ),
    _rule(
        catalogue.FABRIC,
        "the NVLink fabric reports a failure",
        "NVLinks, NVSwitches or the fabric manager report an error. SXids are errors of an NVSwitch; a fatal "
        "one often follows the Xid of a GPU. The non-fatal SXid 22013 and at most "
        f"{catalogue.LINK_ERRORS} CRC errors of a link are only information.",
    ),
    _rule(
        catalogue.PROGRAM,
        "a program reports a failure of CUDA",
        "CUDA gave a program an error. Some name the hardware (an uncorrectable error of memory or NVLink); "
        "most are bugs of the program.",
    ),
    _rule(
        catalogue.TEST,
        "another test failed",
        "`dcgmi diag`, `dcgmi health` or gpu-burn found a fault. A test of the set-up that fails, such as "
        "persistence mode, only warns.",
    ),
    _rule(
        catalogue.MACHINE,
        "a part beside the GPUs reports a failure",
        "A kernel log names a NIC that lost its link, lspci a GPU with fewer lanes than it could have, or "
        "ipmitool a supply or a fan that is out.",
    ),
)
