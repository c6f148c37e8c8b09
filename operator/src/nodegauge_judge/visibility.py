"""Did the probe see the whole node?

A container runtime that shows a probe four of eight GPUs gives no error anywhere, and every number that
follows would be true of those four only.  `nvidia.com/gpu` is compared only where it counts whole GPUs.
"""

from __future__ import annotations

from nodegauge_contract import ProblemKind
from nodegauge_contract.nvlink import Doubt
from nodegauge_judge.case import Case, clip
from nodegauge_judge.model import Sharing


def missing(case: Case) -> list[str]:
    """Why GPUs must be missing from the document, one reason in words each; empty when nothing says so.

    A document that was cut off by a problem of its own gives no reason: that problem is the finding.
    """
    if case.result.problem is not None:
        return []
    reasons = (_none_at_all(case), _capacity(case), _seen_before(case), _no_permission(case), _hidden(case))
    return [reason for reason in reasons if reason]


def is_complete(case: Case) -> bool:
    """Whether every GPU of the node is in the document and was read."""
    unread = any(gpu.error is not None for gpu in case.result.gpus)
    return not (unread or case.result.problem is not None or missing(case))


def gone_uuids(case: Case) -> list[str]:
    """UUIDs that the node is known to have and that nothing in the document answers to, sorted."""
    here = {gpu.uuid for gpu in case.result.gpus if isinstance(gpu.uuid, str)}
    return sorted(uuid for uuid in case.history.links if uuid not in here)


def _none_at_all(case: Case) -> str:
    return "" if case.result.gpus else "NVML works and reports no GPU"


def _capacity(case: Case) -> str:
    told, seen = case.node.gpu_capacity or 0, len(case.result.gpus)
    if case.node.sharing is Sharing.SHARED or case.lanes.mig or seen >= told:
        return ""
    return f"the node's capacity says nvidia.com/gpu={told}, the probe was shown {seen}"


def _seen_before(case: Case) -> str:
    seen, known = len(case.result.gpus), len(case.history.links)
    if seen >= known:
        return ""
    gone = ", ".join(gone_uuids(case)[:4])
    since = "in this boot" if case.result.host.boot_id == case.history.boot else "before the last reboot"
    return f"{known} GPUs were seen {since}, {seen} now; missing: {clip(gone)}"


def _no_permission(case: Case) -> str:
    denied = [
        str(gpu.index)
        for gpu in case.result.gpus
        if gpu.error is not None and gpu.error.kind == ProblemKind.NO_PERMISSION
    ]
    return f"no permission to read GPU {', '.join(denied)}" if denied else ""


def _hidden(case: Case) -> str:
    hidden = [doubt for doubt in case.lanes.unresolved if doubt.doubt is Doubt.HIDDEN]
    if not hidden:
        return ""
    gpu = case.result.gpus[hidden[0].gpu]
    return f"an NVLink of GPU {gpu.index} {clip(hidden[0].reason)}"
