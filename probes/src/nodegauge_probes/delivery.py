"""From a result to the node's `NodeReading`: what every probe does with what it has read.

Must not read hardware.  Without a token folder (outside of a cluster) there is nowhere to write, and the
result on standard output is all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata

from nodegauge_contract import Problem, ProblemKind, Result, Unavailable, text
from nodegauge_contract.reading import PART_BYTES, Part
from nodegauge_probes.api_client import Refused
from nodegauge_probes.identity import Identity

PAUSE_S = 2.0
"""Between two tries of a pod that runs once."""
DISTRIBUTION = "nodegauge"


def part_of(result: Result, *, identity: Identity, sequence: int, reason: str, at: float) -> Part:
    """One part of the object; `at`: when the reading ended, epoch seconds.

    A document that does not fit is replaced by one that says so: half of it would be judged as if it were
    whole.
    """
    boot_id, limit = result.host.boot_id, PART_BYTES[result.probe]
    document = text(result)
    if len(document) > limit:
        message = f"the document has {len(document)} characters, a NodeReading holds {limit}"
        problem = Problem(kind=ProblemKind.TOO_LARGE, call="delivery", message=message)
        document = text(
            Result(probe=result.probe, run=result.run, node=result.node, host=result.host, problem=problem)
        )
    return Part(
        sequence=sequence,
        at=stamp(at),
        reason=reason[:500],
        pod=identity.pod,
        pod_uid=identity.pod_uid,
        node_uid=identity.node_uid,
        boot_id="" if isinstance(boot_id, Unavailable) else boot_id,
        probe_version=version(),
        reading=document,
    )


def stamp(at: float) -> str:
    """Epoch seconds as RFC 3339, to the millisecond."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def version() -> str:
    """Of the installed distribution; empty if it is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def write_until(
    write: Callable[[], None],
    *,
    seconds: float,
    failed: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Write, and try again for so many seconds; whether it was written.  `failed` hears why not, at once."""
    until = clock() + seconds
    while True:
        try:
            write()
        except Refused as refused:
            failed(str(refused))
            wait = max(PAUSE_S, refused.retry_after)
            if refused.final or clock() + wait >= until:
                return False
            pause(wait)
        else:
            return True
