"""What the watch probe reported last, in a file that outlives its container but not its pod.

A file that is missing, broken, of another version or of another boot is no state: then everything is reported
anew.  The file is replaced in one step.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct, field

from nodegauge_contract import Text
from nodegauge_probes.host.kernel_events import Log
from nodegauge_probes.host.kernel_log import Position

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
    """What was reported, and what is to be.  Times are seconds since boot."""

    version: int = VERSION
    """Version of the file, `VERSION`; another one is no state."""
    boot_id: str
    """The boot that it is of."""
    sequence: int = 0
    """Number of the last reading; 0 before the first."""
    reported: float = -1.0
    """When the last reading was taken; -1 before the first."""
    reports: int = 0
    """Readings of these values so far."""
    confirmed: int = 0
    """Confirmations of these values so far."""
    values: dict[str, Pair] = {}
    """Level and reading by name, as in the last reading."""
    changes: dict[str, list[float]] = {}
    """When each name changed lately."""
    xids: list[SeenXid] = []
    """Xids that are in no reading yet."""
    reported_xids: list[SeenXid] = []
    """Xids to be repeated, oldest first."""
    reported_until: int = -1
    """The second up to which all Xids are in a reading; -1 before the first."""
    written_until: int = -1
    """The second up to which those readings were written; -1 before the first."""
    lost_xids: int = 0
    """Xids that were dropped for lack of room before anybody was told."""
    told_lost: int = 0
    """Of these, those that the last reading names."""
    kernel_log: Log = field(default_factory=lambda: Log(position=Position()))
    """What is known of the kernel's log."""


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
