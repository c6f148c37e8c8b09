"""Who is who: the identity of the GPUs that findings name, as far as this result or an earlier one knows it.

A finding about a lost GPU knows the start of its UUID only, and one about a pair that NCCL measured an index
and a PCI address.  A replacement needs the board's serial number, so both are looked up here, for all rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from nodegauge_judge.model import Finding, GpuIdentity
from nodegauge_judge.rule import Observation, Rule, worst_first

Observed = Sequence[tuple[Rule[Any], Sequence[Observation]]]
"""Each rule with what its check saw."""


def listed(observed: Observed, known: Sequence[GpuIdentity]) -> tuple[list[Finding], list[Finding]]:
    """The findings, one per code and severity, and one per location: the worst first, with all that `known`
    says of their GPUs."""
    summed_up = (finding for rule, seen in observed for finding in rule.summed_up(seen))
    located = (rule.located(observation) for rule, seen in observed for observation in seen)
    return worst_first(identified(summed_up, known)), worst_first(identified(located, known))


def identified(findings: Iterable[Finding], known: Sequence[GpuIdentity]) -> list[Finding]:
    """The findings with all that `known` says of their GPUs."""
    return [
        replace(finding, gpus=[complete(gpu, known) for gpu in finding.gpus]) if finding.gpus else finding
        for finding in findings
    ]


def subject(finding: Finding) -> str:
    """Where the finding is, for one sentence: with what its subject does not say of its one GPU."""
    if len(finding.gpus) != 1:
        return finding.subject
    (gpu,) = finding.gpus
    location = with_address(finding.subject, gpu)
    return f"{location}, serial {gpu.serial}" if gpu.serial else location


def with_address(location: str, gpu: GpuIdentity) -> str:
    """A finding's location with what it does not say of its one GPU: index and PCI address, which are
    written as `GPU 3 (0000:3b:00.0)` wherever both are known."""
    index = f"GPU {gpu.index}" if gpu.index is not None else ""
    if index and gpu.pci and (not location or location == index):
        return f"{index} ({gpu.pci})"
    new = [part for part in (index, gpu.pci) if part and part not in location]
    joined = f"{index} ({gpu.pci})" if len(new) == 2 else "".join(new)
    return ", ".join(part for part in (location, joined) if part)


def in_summary(first: Finding, *, title: str, others: int) -> str:
    """The worst finding, and how many `others` there are: `TITLE: GPU 3 [CODE]; 2 more findings`."""
    location = "" if first.subject in ("node", "all GPUs") else f": {subject(first)}"
    more = f"; {others} more finding{'s' if others > 1 else ''}" if others else ""
    return f"{title}{location} [{first.code}]{more}"


def lines(finding: Finding) -> list[str]:
    """Every GPU of the worst location in a line of its own: index, PCI address, serial number, UUID."""
    return [in_words(gpu) for gpu in finding.gpus]


def in_words(gpu: GpuIdentity) -> str:
    """`GPU 3, 0000:3b:00.0, serial 1654922001234, GPU-6f1c0de2-...`: what is known of it."""
    index = f"GPU {gpu.index}" if gpu.index is not None else ""
    serial = f"serial {gpu.serial}" if gpu.serial else ""
    return ", ".join(part for part in (index, gpu.pci, serial, gpu.uuid) if part)


def complete(gpu: GpuIdentity, known: Sequence[GpuIdentity]) -> GpuIdentity:
    """The GPU with all that `known` says of it: of the one with this UUID, or start of one, or with this
    index at this address.  A lost GPU tells its index alone: it is the one that had this index, unless that
    one has another index now."""
    if gpu.uuid:
        same = [other for other in known if other.uuid.startswith(gpu.uuid)]
    else:
        same = [
            other
            for other in known
            if gpu.index == other.index and (not gpu.pci or gpu.pci == other.pci) and not _moved(other, known)
        ]
    other = max(same, key=lambda each: bool(each.uuid), default=gpu)
    return GpuIdentity(
        index=other.index if gpu.index is None else gpu.index,
        uuid=other.uuid or gpu.uuid,
        serial=gpu.serial or other.serial,
        pci=gpu.pci or other.pci,
    )


def _moved(gpu: GpuIdentity, known: Sequence[GpuIdentity]) -> bool:
    return bool(gpu.uuid) and any(other.uuid == gpu.uuid and other.index != gpu.index for other in known)
