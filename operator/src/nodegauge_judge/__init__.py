"""The judge: from a result document to findings, a verdict and an interconnect class.

Pure: the same result, thresholds, history and facts give the same judgement, on any machine and at any time,
so an old result can be judged again, and a file can be judged without a cluster.  It imports only
`nodegauge_contract` and msgspec; no clock, no environment, no logging, no I/O but reading its own data file
(`gpu_models.yaml`).
"""

from nodegauge_judge.catalogue import CATALOGUE
from nodegauge_judge.health import judge_health
from nodegauge_judge.history.model import History
from nodegauge_judge.model import (
    Answer,
    Cause,
    Evidence,
    Finding,
    Gate,
    GateKind,
    GpuBrief,
    GpuIdentity,
    Interconnect,
    InterconnectClass,
    Judged,
    Judgement,
    Load,
    NodeFacts,
    OpenEnum,
    Psu,
    Severity,
    Sharing,
    Verdict,
    XidRule,
)
from nodegauge_judge.rule import Effect, Probe, Rule
from nodegauge_judge.thresholds import Thresholds, ThresholdsInvalid

__all__ = [
    "CATALOGUE",
    "Answer",
    "Cause",
    "Effect",
    "Evidence",
    "Finding",
    "Gate",
    "GateKind",
    "GpuBrief",
    "GpuIdentity",
    "History",
    "Interconnect",
    "InterconnectClass",
    "Judged",
    "Judgement",
    "Load",
    "NodeFacts",
    "OpenEnum",
    "Probe",
    "Psu",
    "Rule",
    "Severity",
    "Sharing",
    "Thresholds",
    "ThresholdsInvalid",
    "Verdict",
    "XidRule",
    "judge_health",
]
