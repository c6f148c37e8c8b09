"""The result document: what a probe measured.

This is the only package that all sides import: the probe writes the document, the operator decodes it, the
judge reads it, people pipe it through `jq`.  It holds raw numbers with units and no verdicts.  A value that
could not be read is `{"unavailable": "<reason>"}`; it is never a zero and never omitted.

The names below are the public entry: the document's types, `encode`, `decode` and their errors.  Limits,
NVLink counting (`nvlink`) and the parsers of nccl-tests (`nccl_tests`) and nvidia-smi (`pasted`) are
imported from their own modules.

Pure: no clock, no environment, no I/O, no knowledge of NVML or Kubernetes.
"""

from nodegauge_contract.document import (
    MAX_BYTES,
    ContractError,
    Malformed,
    NotAResult,
    TooLarge,
    UnknownVersion,
    decode,
    encode,
    text,
)
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
    XidCount,
    Xids,
)
from nodegauge_contract.load import LoadEnd, LoadGpu, LoadReason, LoadResult, LoadSensor, LoadSkip
from nodegauge_contract.matrix import render as render_matrix
from nodegauge_contract.model import (
    Bus,
    Host,
    Nics,
    Pairs,
    Port,
    RepeatedXid,
    Result,
    Sensor,
    System,
    WatchReport,
)
from nodegauge_contract.nccl import Arm, ArmName, ArmOutcome, Cell, Collective, NcclResult, Phase, Skip
from nodegauge_contract.values import NOT_READ, Flag, Int, Num, Problem, ProblemKind, Text, Unavailable

__all__ = [
    "MAX_BYTES",
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
    "LoadEnd",
    "LoadGpu",
    "LoadReason",
    "LoadResult",
    "LoadSensor",
    "LoadSkip",
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
    "RepeatedXid",
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
    "WatchReport",
    "Window",
    "XidCount",
    "Xids",
    "decode",
    "encode",
    "render_matrix",
    "text",
]
