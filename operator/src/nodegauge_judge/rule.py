"""A rule: everything that nodegauge knows about one finding, as one object.

Its code, its sentences, the check that raises it, the taint that a failure may set, and how that taint's gate
reads a run.  The catalogue, the order of findings, the reference page and the bits of a GPU's history all
follow from the rules in `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract.model import PASTED
from nodegauge_judge.model import Answer, Finding, Gate, GpuIdentity, Judged, Scalar, Severity

NAMES_LIMIT = 16
"""Locations after the worst that the evidence lists by name; the rest is a number."""

NEXT = " Next: "
"""Between what a message measured and what to do."""
PLACEHOLDERS = (
    "ADVICE",
    "INDEX",
    "OTHER",
    "ADDRESS",
    "SLOT",
    "DEVICE",
    "PORT",
    "DEFAULT_WATTS",
    "LOWER_WATTS",
    "NODE",
)
"""Words of a command that stand for a value: the GPU's index and that of the second one of a pair, its PCI
address and its slot (the address without the function, as the driver logs it), an RDMA device, its port; a
power limit in W; or for the advice in a finding's evidence."""
_PLAIN = re.compile(r"[\w.:/+-]*", re.ASCII)
"""What may stand in a command: a probe on a node wrote addresses and names, and people paste commands."""
_PLACEHOLDER = re.compile(rf"\b(?:{'|'.join(PLACEHOLDERS)})\b")
_OF_CLUSTER = re.compile(r"\bkubectl\b|\bspec\.|\bprobes\.\w+\.|PROBE-POD|\bpods\b")
"""What only helps on a node that an operator looks after."""
_DRAIN = re.compile(r"\bdrain(?: the node| it)?\b")
_BY_HAND = "take the machine out of service"
"""In place of `_DRAIN` where there is no cluster."""
_OPTIONAL = re.compile(r" (?:-i|-s|-pl) (?:INDEX|OTHER|ADDRESS)|\.\*SLOT")
"""Parts of a command that are left out where their value is unknown: it then shows every GPU."""
_NODE = re.compile(r"\b(the|[Tt]his|[Aa]) node\b")
"""What is a host as long as no cluster has it."""
_NO_WATTS = re.compile(r"\b[A-Z]+_WATTS\b")
"""A power limit that nobody could compute: its command says nothing, so its step is left out."""

_WORST_FIRST = {Severity.FAIL: 0, Severity.WARN: 1, Severity.INFO: 2}

Input = TypeVar("Input")


class Probe(StrEnum):
    """Whose results a rule judges, and whose runs its gate counts."""

    HEALTH = "health"
    NCCL = "nccl"
    BMC = "bmc"
    LOAD = "load"
    FEED = "feed"


class Effect(StrEnum):
    """What a finding does to the verdict: its `severity` counts, or the node stays `unjudged` (the verdict is
    unknown unless another finding fails)."""

    SEVERITY = "severity"
    UNJUDGED = "unjudged"


class Observation(Struct, frozen=True, kw_only=True):
    """One location where a rule applies."""

    severity: Severity
    """How bad it is there."""
    location: str
    """In full."""
    short: str = ""
    """For lists, where that is shorter; else empty."""
    message: str
    """What was measured, and its limit."""
    evidence: dict[str, Scalar]
    """The numbers, units in the names."""
    weight: float = 0.0
    """The largest is the worst of its severity."""
    gpus: tuple[GpuIdentity, ...] = ()
    """The GPUs that it is about."""


class Rule(Struct, Generic[Input], frozen=True, kw_only=True):
    """One finding.  `Input` is what its check looks at: a `Case` (health) or a `Grading` (NCCL).  A code that
    no rule has cannot be reported.

    A rule with a gate that judges results has one of three ways to say what a run without a failure means for
    it: `readable`, `answer_per_gpu` or `answer`.
    """

    code: str
    """Stable: reports, metrics and alerts contain it."""
    title: str
    """What is wrong, in a few words."""
    meaning: str
    """What it means for the node, for the reference page."""
    when: dict[Severity, str]
    """What raises each severity."""
    next_step: str
    """The first thing to do."""
    alone: str = ""
    """The first thing to do where only one place has it; empty where that is the same."""
    way_out: tuple[str, ...]
    """Every step in order, commands in backquotes, with `PLACEHOLDERS` that a finding fills in."""
    by_access: Mapping[str, tuple[str, ...]] = {}
    """The same where the evidence `access` names another way to the driver (`Access`) than its container
    runtime; the first is also the next step."""
    check: Callable[[Input], Iterable[Observation]]
    """The locations where it applies."""
    probe: str = Probe.HEALTH
    """Whose results it judges (`Probe`)."""
    effect: Effect = Effect.SEVERITY
    """What a finding does to the verdict."""
    gate: Gate | None = None
    """The taint that a failure may set; None for none."""
    readable: Callable[[Input], bool] | None = None
    """Whether enough was read to call the node good."""
    answer_per_gpu: Callable[[Input, int], Answer] | None = None
    """For a rule that needs load: the answer of one GPU, no-load while it was idle."""
    history_bit: int | None = None
    """Number of a rule with `answer_per_gpu` in a stored history; never reuse or renumber one."""
    answer: Callable[[Input], Answer] | None = None
    """The whole answer."""

    def __post_init__(self) -> None:
        ways = [way for way in (self.readable, self.answer_per_gpu, self.answer) if way is not None]
        judges = self.gate is not None and self.gate.judged.of_results
        if len(ways) != judges:
            raise ValueError(f"{self.code}: a gate needs exactly one of readable, answer_per_gpu and answer")
        under_load = self.gate is not None and self.gate.judged is Judged.UNDER_LOAD
        if under_load != (self.answer_per_gpu is not None) or under_load != (self.history_bit is not None):
            raise ValueError(f"{self.code}: a gate under load needs answer_per_gpu and history_bit")
        if self.effect is Effect.UNJUDGED and self.gate is not None:
            raise ValueError(f"{self.code}: missing data never changes a verdict, so it has no gate")

    def findings(self, judged: Input) -> list[Finding]:
        """One finding per severity that occurs, worst first."""
        return list(self.summed_up(list(self.check(judged))))

    def summed_up(self, observations: Sequence[Observation]) -> Iterator[Finding]:
        """One finding per severity that occurs, worst first: it describes the worst location and names the
        others, so that a node with sixteen hot GPUs still fits into a report."""
        alone = len(observations) == 1
        for severity in _WORST_FIRST:
            alike = [observation for observation in observations if observation.severity is severity]
            if not alike:
                continue
            worst = max(alike, key=lambda observation: observation.weight)
            others = [
                observation.short or observation.location for observation in alike if observation is not worst
            ]
            finding = self.located(worst, next_step=self.alone if alone else "")
            yield replace(
                finding,
                subject=worst.location + (f" and {len(others)} more" if others else ""),
                evidence=worst.evidence | ({"also": _names(others)} if others else {}),
            )

    def located(self, observation: Observation, *, next_step: str = "") -> Finding:
        """The finding about one location, with this step in place of the rule's."""
        first = self._by_access(observation.evidence)[:1]
        step = next((f"{text[0].lower()}{text[1:]}" for text in first), next_step or self.next_step)
        next_step = filled(step, gpus=observation.gpus, evidence=observation.evidence)
        return Finding(
            code=self.code,
            severity=observation.severity,
            subject=observation.location,
            message=f"{observation.message}{NEXT}{next_step}",
            evidence=observation.evidence,
            gpus=list(observation.gpus),
        )

    def steps(self, finding: Finding, *, node: str = "", cluster: bool = True) -> list[str]:
        """Every step, with the values of this finding; without those of a cluster for what was pasted, names
        no node, or comes from a host that no cluster has (`cluster` false)."""
        outside = not (cluster and node) or PASTED in str(finding.evidence.get("source", ""))
        way_out = self._by_access(finding.evidence) or self.way_out
        here = self._without_cluster if outside else way_out
        steps = [filled(step, gpus=finding.gpus, evidence=finding.evidence, node=node) for step in here]
        known = [step for step in steps if not _NO_WATTS.search(step)]
        return known if cluster else [_NODE.sub(r"\1 host", step) for step in known]

    def outside_cluster(self, finding: Finding) -> Finding:
        """The same finding with a next step that needs no cluster."""
        own = finding.message.rpartition(NEXT)[2] if NEXT in finding.message else self.next_step
        step = self._without_cluster[0] if _OF_CLUSTER.search(self.next_step) else _by_hand(own)
        step = filled(step, gpus=finding.gpus, evidence=finding.evidence)
        return replace(finding, message=f"{measured(finding)}{NEXT}{step}")

    def _by_access(self, evidence: Mapping[str, Scalar]) -> tuple[str, ...]:
        """The steps for the way to the driver that this evidence names; empty for those of the runtime."""
        return self.by_access.get(str(evidence.get("access", "")), ())

    @property
    def _without_cluster(self) -> tuple[str, ...]:
        """The steps that help on a machine without a cluster."""
        steps = (OUT_OF_SERVICE if step == DRAIN else _by_hand(step) for step in self.way_out)
        return tuple(step for step in steps if not _OF_CLUSTER.search(step)) or (_by_hand(self.next_step),)


def _by_hand(step: str) -> str:
    return _DRAIN.sub(_BY_HAND, step)


def filled(text: str, *, gpus: Sequence[GpuIdentity], evidence: Mapping[str, Scalar], node: str = "") -> str:
    """The text with the values of its placeholders."""
    if not _PLACEHOLDER.search(text):
        return text
    first, second = (*gpus, GpuIdentity(), GpuIdentity())[:2]
    values = {name: evidence.get(name.lower()) for name in PLACEHOLDERS} | {
        "INDEX": first.index,
        "OTHER": second.index,
        "ADDRESS": first.pci,
        "SLOT": first.pci.rpartition(".")[0],
        "NODE": node,
    }
    shown = {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None and value != "" and (name == "ADVICE" or _PLAIN.fullmatch(str(value)))
    }
    text = _PLACEHOLDER.sub(lambda match: shown.get(match[0], match[0]), text)
    return _OPTIONAL.sub("", text)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """In order of severity; findings of one severity stay in the order of their rules."""
    return sorted(findings, key=lambda finding: _WORST_FIRST[finding.severity])


def measured(finding: Finding) -> str:
    """A finding's message without its next step."""
    return finding.message.rpartition(NEXT)[0] or finding.message


def _names(names: Sequence[str]) -> str:
    rest = len(names) - NAMES_LIMIT
    return ", ".join(names[:NAMES_LIMIT]) + (f" and {rest} more" if rest > 0 else "")


REPORT = "`kubectl get nodereading NODE -o yaml` shows what was read."
DRIVER_LOG = "On the node: `dmesg | grep -iE 'NVRM|Xid'` shows what the driver logged."
SAVE_FIRST = "save `nvidia-bug-report.sh` and `dmesg` output before a reset or a reboot clears it"
"""How a next step begins that ends with either."""
SAVE = (
    "Before a reset or a reboot clears them, save the logs as root on the node: `nvidia-bug-report.sh` (if "
    "it hangs, with --safe-mode), and `journalctl -k -b | tee kernel.log` (without systemd: `dmesg -T`)."
)
"""The first of the steps that end with a reset or a reboot.  NVIDIA wants the report of the moment in which
the fault is seen: <https://docs.nvidia.com/deploy/rma-process/index.html>."""
DRAIN = "`kubectl cordon NODE`, then `kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`."
DRAIN_LATER = f"before the repair, at a time that you choose, {DRAIN}"
"""In place of `DRAIN` where new pods get the node's other GPUs, and not the bad one."""
OUT_OF_SERVICE = (
    "Take the machine out of service: end or move what runs on its GPUs, and let nothing new start."
)
"""In place of `DRAIN` where there is no cluster."""
RESET = "With no process on the GPU: `nvidia-smi --gpu-reset -i INDEX` (all GPUs of an NVSwitch machine)."
REBOOT = "If that does not help, reboot. If the fault returns, replace the board through your vendor."
VENDOR = "If the fault returns, send `nvidia-bug-report.sh` output to your vendor and replace the board."
POD_LOG = (
    "`kubectl logs -n NAMESPACE PROBE-POD` while the pod exists; `kubectl describe node NODE` for its events."
)
OWN_RUN = "On the node, its GPUs idle: `NCCL_DEBUG=INFO all_reduce_perf -b 64M -e 1G -f 4 -g COUNT`."
ONE_HOT = "one GPU alone: look at its heat sink and fan, and at what blocks the air to it."
"""The first step for heat where the other GPUs of the node are not hot."""
AIR_FLOW = (
    "`nvidia-smi -q -d TEMPERATURE` on the node. One hot GPU: its heat sink, fan or slot. All of them: air "
    "flow, inlet temperature or a failed fan tray (`ipmitool sdr type fan`)."
)
