"""The result document: what a probe brings home and everybody else may read.

This is the only package that all sides import: the probe writes it, the operator decodes it, the judge
reads it, people pipe it through `jq`.  It holds raw numbers with their units and never an opinion.  A value
that could not be read is `{"unavailable": "<reason>"}`, never a zero and never left out.

It must stay pure: no clock, no environment, no I/O, no knowledge of NVML or Kubernetes.
"""

from nodegauge_contract.gpu import (
    Clocks,
    ClocksEvents,
    Counters,
    Ecc,
    Fabric,
    Fan,
    Gpu,
    Growth,
    LinkErrors,
    LinkGroup,
    Pcie,
    Power,
    ReasonSeen,
    Repair,
    Span,
    Temperature,
    Window,
    Xids,
)
from nodegauge_contract.matrix import render as render_matrix
from nodegauge_contract.model import Bus, Host, Nics, Pairs, Port, Result, Sensor, System
from nodegauge_contract.nccl import Arm, ArmName, ArmOutcome, Cell, Collective, NcclResult, Phase, Skip
from nodegauge_contract.values import NOT_READ, Flag, Int, Num, Problem, ProblemKind, Text, Unavailable
from nodegauge_contract.wire.codec import (
    MAX_DECODED_BYTES,
    MESSAGE_LIMIT,
    ContractError,
    Malformed,
    NotAResult,
    TooLarge,
    UnknownVersion,
    decode,
    encode,
    encode_message,
)

__all__ = [
    "MAX_DECODED_BYTES",
    "MESSAGE_LIMIT",
    "NOT_READ",
    "Arm",
    "ArmName",
    "ArmOutcome",
    "Bus",
    "Cell",
    "Clocks",
    "ClocksEvents",
    "Collective",
    "ContractError",
    "Counters",
    "Ecc",
    "Fabric",
    "Fan",
    "Flag",
    "Gpu",
    "Growth",
    "Host",
    "Int",
    "LinkErrors",
    "LinkGroup",
    "Malformed",
    "NcclResult",
    "Nics",
    "NotAResult",
    "Num",
    "Pairs",
    "Pcie",
    "Phase",
    "Port",
    "Power",
    "Problem",
    "ProblemKind",
    "ReasonSeen",
    "Repair",
    "Result",
    "Sensor",
    "Skip",
    "Span",
    "System",
    "Temperature",
    "Text",
    "TooLarge",
    "Unavailable",
    "UnknownVersion",
    "Window",
    "Xids",
    "decode",
    "encode",
    "encode_message",
    "render_matrix",
]
