"""Classes of nodes for a decision: which nodes a job can get, and what the class has by its slowest node.

A value is what was read on the nodes.  Only two come from elsewhere, and the class says so: the memory of a
GPU, from its product name or data sheet where GPU feature discovery did not read it, and its peak.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nodegauge_cli.zero import sources
from nodegauge_cli.zero.communication_text import Machine
from nodegauge_judge import Verdict
from nodegauge_judge.gpu_models import Peak, known_models
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.zero.estimators import GIB, Precision
from nodegauge_judge.zero.ways import NodeClass
from nodegauge_operator import names
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.api.report import Report
from nodegauge_operator.core.model import NodeView

MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB, as GPU feature discovery reads it from NVML."""
PRODUCT_LABEL = "nvidia.com/gpu.product"
CLOSING = ("NoSchedule", "NoExecute")
_NAMED_MEMORY = re.compile(r"(\d+) ?GB")


class Class(Struct, frozen=True, kw_only=True):
    """One class, and where its numbers come from."""

    facts: NodeClass
    """What the decision is made of."""
    nodes: tuple[str, ...]
    """Names of those that a job can get."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Name of each other node, and why."""
    product: str = ""
    """Value of the label `nvidia.com/gpu.product`."""
    interconnect: str = ""
    """Value of the label `interconnect`; empty if unknown."""
    remarks: tuple[str, ...] = ()
    """What is not as measured."""


def classes(reports: Iterable[Report], nodes: Mapping[str, NodeView] | None, now: float) -> list[Class]:
    """All nodes with GPUs by class, the most memory first; `nodes` is null if they are unknown."""
    groups = sources.by_class(reports)
    matches = [_class(group, nodes, now) for group in groups.values()]
    return sorted(matches, key=lambda c: (-(c.facts.gpu_bytes or 0.0) * c.facts.gpus, c.facts.name))


def published() -> list[Class]:
    """Machines of which bandwidth was published: nobody measured their hosts."""
    matches = []
    for machine in sources.published(Expectations.default()):
        product = machine.title.partition("x ")[2].partition(",")[0]
        size, origin = _named_memory(product)
        facts = NodeClass(
            name=machine.title,
            gpus=machine.gpus,
            usable=1,
            gpu_bytes=size,
            tflops=_tflops(product),
            bandwidths=machine.bandwidths,
        )
        if size:
            matches.append(Class(facts=facts, nodes=(), remarks=tuple(filter(None, (origin,)))))
    return matches


def _class(group: Sequence[Report], nodes: Mapping[str, NodeView] | None, now: float) -> Class:
    why = {report.name: hindrance(report, nodes, now) for report in group}
    open_to = [report for report in group if not why[report.name]]
    read = open_to or list(group)
    machine, status = sources.class_of(read), read[0].status
    size, origin = _memory(read, nodes or {})
    offload = [report.status.offload for report in read]
    gpus, host = status.gpus.count, _least(offload, "host_memory_gib")
    facts = NodeClass(
        name=machine.title.replace("NVIDIA ", "").replace("Tesla ", ""),
        gpus=gpus,
        usable=len(open_to),
        gpu_bytes=size,
        tflops=_tflops(status.gpus.product),
        bandwidths=machine.bandwidths,
        h2d_gbps=_least(offload, "h2d_gbps"),
        h2d_all_gbps=_least(offload, "h2d_all_gbps"),
        host_bytes=None if host is None else host * GIB * gpus,
        nvme_read_gbps=_least(offload, "nvme_read_gbps"),
        nvme_write_gbps=_least(offload, "nvme_write_gbps"),
    )
    return Class(
        facts=facts,
        nodes=tuple(report.name for report in open_to),
        left_out=tuple((name, reason) for name, reason in why.items() if reason),
        product=_label(read[0], nodes or {}, PRODUCT_LABEL) or status.gpus.product.replace(" ", "-"),
        interconnect=status.interconnect.klass,
        remarks=(*filter(None, (origin,)), *_partial(machine, read), *_left_out_parts(group)),
    )


def hindrance(report: Report, nodes: Mapping[str, NodeView] | None, now: float) -> str:
    """Why no job can or should get the node, or why nobody knows that it is well; empty for nothing.  A taint
    of ours that only asks pods to go elsewhere counts too."""
    node, status = (nodes or {}).get(report.name), report.status
    if nodes is not None and (node is None or not node.ready):
        return "not Ready" if node else "the node is gone"
    if node is not None and node.unschedulable:
        return "cordoned"
    taints = node.taints if node is not None else status.desired.taints
    closing = [t for t in taints if t.own or (t.effect in CLOSING and t.key != names.GPU_RESOURCE)]
    if closing:
        value = f"={closing[0].value}" if closing[0].value else ""
        return f"tainted {closing[0].key.removeprefix(names.PREFIX)}{value}"
    health = status.probe[names.PROBE_HEALTH]
    if not health.read_at:
        return "never read"
    if health.age_limit_seconds and now > health.read_epoch + health.age_limit_seconds:
        return f"stale: last read {health.read_at}"
    if status.verdict not in (Verdict.PASS, Verdict.WARN):
        return f"health {status.verdict}"
    return ""


def _memory(reports: Sequence[Report], nodes: Mapping[str, NodeView]) -> tuple[float | None, str]:
    labels = [_label(report, nodes, MEMORY_LABEL) for report in reports]
    if labels and all(label.isascii() and label.isdigit() for label in labels):
        return min(int(label) for label in labels) * 2.0**20, ""
    return _named_memory(reports[0].status.gpus.product)


def _named_memory(product: str) -> tuple[float | None, str]:
    """GB of 1e9 bytes, so rather too little: a driver reports 0 to 7 % more."""
    if match := _NAMED_MEMORY.search(product):
        return float(match[1]) * 1e9, f"Memory of a GPU from its name, {match[1]} GB."
    sizes = known_models().find(product).memory_gb
    if len(sizes) == 1:
        return sizes[0] * 1e9, f"Memory of a GPU from its data sheet, {sizes[0]} GB."
    return None, ""


def _tflops(product: str) -> dict[Precision, float]:
    peak = known_models().find(product).tflops or Peak(source="none")
    by = {
        Precision.BF16: peak.bf16,
        Precision.FP16: peak.fp16,
        Precision.FP8: peak.fp8,
        Precision.FP32: peak.tf32,
    }
    return {precision: tflops for precision, tflops in by.items() if tflops}


def _label(report: Report, nodes: Mapping[str, NodeView], key: str) -> str:
    node = nodes.get(report.name)
    return node.labels.get(key, "") if node is not None else ""


def _least(offload: Sequence[OffloadStatus], field: str) -> float | None:
    """That of the slowest node; null if any was not measured, for a job may get that one."""
    values = [getattr(status, field) for status in offload]
    return None if None in values else min(values)


def _partial(machine: Machine, reports: Sequence[Report]) -> list[str]:
    problems = sorted({r.status.offload.nvme_problem for r in reports if r.status.offload.nvme_problem})
    lacking = [r.name for r in reports if r.status.offload.h2d_all_gbps is None]
    remarks = [remark for remark in machine.remarks if not remark.startswith("Nodes: ")]
    remarks += [f"NVMe was not read: {problem}" for problem in problems]
    if lacking and len(lacking) < len(reports):
        remarks.append(f"Copies from the host were not measured on {', '.join(lacking[:3])}.")
    return remarks


def _left_out_parts(reports: Sequence[Report]) -> list[str]:
    unread = [r.name for r in reports if r.left_out]
    return [f"Reports of another version, not read in full: {', '.join(unread[:3])}."] if unread else []
