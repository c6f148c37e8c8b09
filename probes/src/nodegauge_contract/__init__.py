"""The result document: what a probe brings home and everybody else may read.

This is the only package that all sides import: the probe writes it, the operator decodes it, the judge
reads it, people pipe it through `jq`.  It holds raw numbers with their units and never an opinion.  A value
that could not be read is `{"unavailable": "<reason>"}`, never a zero and never left out.

It must stay pure: no clock, no environment, no I/O, no knowledge of NVML or Kubernetes.
"""

from nodegauge_contract.codec import (
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
from nodegauge_contract.matrix import render as render_matrix
from nodegauge_contract.model import (
    Clocks,
    ClocksEvents,
    Counters,
    Fabric,
    Flag,
    Gpu,
    Host,
    Int,
    LinkGroup,
    Nics,
    Num,
    Pairs,
    Pcie,
    Power,
    Problem,
    ProblemKind,
    ReasonSeen,
    Result,
    Span,
    System,
    Temperature,
    Text,
    Unavailable,
    Window,
)

__all__ = [
    "MAX_DECODED_BYTES",
    "MESSAGE_LIMIT",
    "Clocks",
    "ClocksEvents",
    "ContractError",
    "Counters",
    "Fabric",
    "Flag",
    "Gpu",
    "Host",
    "Int",
    "LinkGroup",
    "Malformed",
    "Nics",
    "NotAResult",
    "Num",
    "Pairs",
    "Pcie",
    "Power",
    "Problem",
    "ProblemKind",
    "ReasonSeen",
    "Result",
    "Span",
    "System",
    "Temperature",
    "Text",
    "TooLarge",
    "Unavailable",
    "UnknownVersion",
    "Window",
    "decode",
    "encode",
    "encode_message",
    "render_matrix",
]
