"""What pasted text says in words of its own: kernel logs, failure messages, results of other tests.

Tables and `nvidia-smi -q` become readings of GPUs; these statements cannot.  Nothing here judges.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_contract.model import Result
from nodegauge_contract.values import Int64, Short, Str

MAX_STATEMENTS = 256
MAX_CAPTURES = 64


class StatementKind(StrEnum):
    """What a statement is about.  Values are stable; new ones may be added."""

    XID = "xid"
    ACTION = "recovery-action"
    SXID = "sxid"
    SXID_FATAL = "sxid-fatal"
    DRIVER_LINE = "driver-line"
    FALLEN_OFF = "fallen-off"
    RESET_REQUIRED = "reset-required"
    NVLINK_FATAL = "nvlink-fatal"
    INIT_FAILED = "init-failed"
    BAR_INVALID = "bar-invalid"
    GSP_FAILED = "gsp-failed"
    NOT_LOADED = "not-loaded"
    MISMATCH = "mismatch"
    NVML_FAILED = "nvml-failed"
    NO_DEVICES = "no-devices"
    DEVICE_HANDLE = "device-handle"
    ERR_CELL = "err-cell"
    ERR_VALUE = "err-value"
    INFOROM = "inforom"
    UNHEALTHY_DEVICE = "unhealthy-device"
    FM_MISMATCH = "fm-mismatch"
    FM_FAILED = "fm-failed"
    FABRIC_NOT_READY = "fabric-not-ready"
    FABRIC_LOST = "fabric-lost"
    CUDA_ECC = "cuda-ecc"
    CUDA_NVLINK = "cuda-nvlink"
    CUDA_PROGRAM = "cuda-program"
    CUDA_FAILED = "cuda-failed"
    NCCL_FAILED = "nccl-failed"
    NETWORK_FAILED = "network-failed"
    PCIE_NARROW = "pcie-narrow"
    NIC_DOWN = "nic-down"
    SUPPLY = "supply"
    FAN = "fan"
    FEWER_GPUS = "fewer-gpus"
    NOT_FOUND = "not-found"
    NOT_JUDGED = "not-judged"
    LINK_DOWN = "link-down"
    LINK_OFF = "link-off"
    LINKS_ALL_OFF = "links-all-off"
    LINK_ERRORS = "link-errors"
    LINK_FAULTS = "link-faults"
    TEST_FAILED = "test-failed"
    TEST_WARNED = "test-warned"
    WRONG_RESULTS = "wrong-results"


class Statement(Struct, frozen=True, kw_only=True):
    """One thing that the text states, however often it does."""

    kind: Short
    """A `StatementKind`."""
    line: Int64
    """Where it stands first, from 1."""
    text: Str
    """The words, without prefixes."""
    source: Short
    """What printed them, as `Capture.kind`."""
    subject: Short = ""
    """What it is about, as the text names it: a PCI address, `GPU 3`, `rank1`, a switch; empty for none."""
    code: Int64 | None = None
    """Number of an Xid, of an SXid or of a recovery action, or how many errors were counted."""
    count: Int64 = 1
    """How many lines state it."""


class Capture(Struct, frozen=True, kw_only=True):
    """One piece of output that was recognised."""

    kind: Short
    """What printed it: `kernel log`, `dcgmi diag`, `gpu-burn` and so on."""
    line: Int64
    """Where it begins, from 1."""
    passed: Int64 = 0
    """Tests in it that passed, or GPUs that passed its one test; 0 where it tests nothing."""


class Paste(Struct, frozen=True, kw_only=True):
    """What was recognised in a text, beside the readings."""

    captures: Annotated[list[Capture], Meta(max_length=MAX_CAPTURES)] = []
    """In the order of the text, each kind once."""
    statements: Annotated[list[Statement], Meta(max_length=MAX_STATEMENTS)] = []
    """In the order of the text."""
    omitted: Int64 = 0
    """Statements for which there was no room."""


class PastedResult(Result, frozen=True, kw_only=True):
    """The document of pasted text, with what it states.  It is judged where it was read and never stored, so
    the result document lacks these members."""

    paste: Paste = Paste()
    """What was recognised."""
