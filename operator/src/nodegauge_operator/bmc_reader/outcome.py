"""What one try to read a BMC came to: the status to write, or a problem with its reason.  Pure."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from nodegauge_contract.chassis import ChassisReading
from nodegauge_operator.api.chassis import MAX_READING, ChassisStatus
from nodegauge_operator.api.times import stamp

MAX_PROBLEM = 1000


class Reason(StrEnum):
    """Why BMCs are not read, for metrics, and to log only what changed."""

    CONNECTION = "connection"
    CERTIFICATE = "certificate"
    CREDENTIALS = "credentials"
    TIMEOUT = "timeout"
    ANSWER = "answer"
    """It answers, and not with a tree that can be read."""
    INVENTORY = "inventory"
    DEFECT = "defect"
    """An error of the reader itself."""


_PHRASES = (
    ("certificate", Reason.CERTIFICATE),
    ("fingerprint", Reason.CERTIFICATE),
    ("CA bundle", Reason.CERTIFICATE),
    ("the user", Reason.CREDENTIALS),
    ("no connection", Reason.CONNECTION),
    ("no answer", Reason.TIMEOUT),
    ("did not give its", Reason.TIMEOUT),
)


_QUOTED = re.compile(r'"[^"]*("|$)')


def reason_of(problem: str) -> Reason:
    """The reason in a `BmcError`'s message, which is for people.  A BMC's own words, in quotes, are none."""
    problem = _QUOTED.sub("", problem)
    return next((reason for phrase, reason in _PHRASES if phrase in problem), Reason.ANSWER)


def status_of(reading: ChassisReading, *, address: str, now: float) -> ChassisStatus:
    """The status after a reading, without its number.  Raises `ValueError` for one that is too large.

    `now`: epoch seconds.
    """
    document = msgspec.to_builtins(reading)
    size = len(msgspec.json.encode(document))
    if size > MAX_READING:
        raise ValueError(f"the reading has {size} bytes and may have {MAX_READING}; report this machine")
    present = [supply for supply in reading.supplies if supply.present is not False]
    return ChassisStatus(
        source=reading.source,
        address=address,
        read_at=stamp(now),
        tried_at=stamp(now),
        supplies_present=len(present) if reading.lists_supplies else None,
        supplies_healthy=sum(supply.health == "OK" for supply in present) if reading.lists_supplies else None,
        watts=round(reading.watts) if isinstance(reading.watts, int | float) and reading.watts >= 0 else None,
        reading=document,
    )


def failure(problem: str, *, address: str, now: float) -> ChassisStatus:
    """The status after a try that failed."""
    return ChassisStatus(address=address, tried_at=stamp(now), problem=problem[:MAX_PROBLEM])
