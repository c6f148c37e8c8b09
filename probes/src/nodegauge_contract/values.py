"""The value types of the result document: a number, a text or a flag, or the reason why there is none.

Every leaf that hardware may refuse is `value | Unavailable`; the default is "not read".  Strings are bounded,
so that a hostile document costs little.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

Str = Annotated[str, Meta(max_length=512)]
Short = Annotated[str, Meta(max_length=128)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Unavailable(Struct, frozen=True):
    """A value that could not be read, and why (an NVML error's name, a missing file, "not read")."""

    unavailable: Str


NOT_READ = Unavailable("not read")

Int = Int64 | Unavailable
Num = Int64 | float | Unavailable
Text = Short | Unavailable
Flag = bool | Unavailable


class ProblemKind(StrEnum):
    """What prevented the reading of a node or of one GPU.  Values are stable; new ones may be added."""

    LIBRARY_NOT_FOUND = "library-not-found"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    DRIVER_MISMATCH = "driver-mismatch"
    CALL_HUNG = "call-hung"
    DEADLINE = "deadline"
    TERMINATED = "terminated"
    CRASHED = "crashed"
    TOO_LARGE = "result-too-large"
    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    INSUFFICIENT_POWER = "insufficient-power"
    IRQ_ISSUE = "irq-issue"
    CORRUPTED_INFOROM = "corrupted-inforom"
    NO_PERMISSION = "no-permission"
    NVML_ERROR = "nvml-error"
    NO_ENGINE = "no-engine"
    PASTE_INCOMPLETE = "paste-incomplete"


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that went wrong while measuring."""

    kind: Short
    """A `ProblemKind`; a plain string, so that an older reader survives a newer probe."""
    call: Short = ""
    """The NVML function or the step."""
    code: Int64 | None = None
    """The NVML return value; None if there was none."""
    message: Str = ""
    """Text for a person."""
