"""What the watch probe reported last, in a file that outlives its container but not its pod.

A file that is missing, broken, of another version or of another boot is no state: then everything is reported
anew.  The file is replaced in one step.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from nodegauge_contract import Text

VERSION = 2
MAX_BYTES = 1 << 20
Pair = tuple[int | str | None, str]


class SeenXid(Struct, kw_only=True):
    """One Xid of one GPU (NVML index, and UUID if it was read): how often it came, first and last (seconds
    since boot)."""

    gpu: int
    code: int
    count: int
    first: float
    last: float
    uuid: str = ""


class State(Struct, kw_only=True):
    """Times are seconds since boot.  `values`: level and reading by name, as in the last reading.

    `sequence`: of the last reading; `reported`: when it was taken; `reports`: how often these values were
    read; `confirmed`: confirmations so far.  `changes`: when each name changed lately.  `xids`: in no reading
    yet; `reported_xids`: to be repeated, oldest first; `reported_until`: the second up to which all are in a
    reading; `written_until`: up to which those readings were written.  `lost_xids`: how many were dropped for
    lack of room before anybody was told; `told_lost`: of these, those that the last reading names.
    """

    version: int = VERSION
    boot_id: str
    sequence: int = 0
    reported: float = -1.0
    reports: int = 0
    confirmed: int = 0
    values: dict[str, Pair] = {}
    changes: dict[str, list[float]] = {}
    xids: list[SeenXid] = []
    reported_xids: list[SeenXid] = []
    reported_until: int = -1
    written_until: int = -1
    lost_xids: int = 0
    told_lost: int = 0


def load(path: Path, *, boot_id: Text) -> State | None:
    """The state of this boot, or None."""
    try:
        with path.open("rb") as file:
            state = msgspec.json.decode(file.read(MAX_BYTES), type=State)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return state if state.version == VERSION and state.boot_id == boot_id else None


def save(path: Path, state: State) -> str:
    """Replace the file; returns why that failed, or nothing."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_bytes(msgspec.json.encode(state))
        fresh.replace(path)
    except OSError as error:
        return f"state {path}: {error.strerror}"
    return ""
