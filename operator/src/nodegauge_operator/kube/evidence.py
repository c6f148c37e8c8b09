"""NodeEvidence: written and deleted, never read.

Each write replaces one probe's part by a JSON merge patch (RFC 7386), so that no part has to be known to
write another.  The garbage collector removes the object with its report.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from msgspec import to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.evidence import UNREADABLE, ProbeEvidence
from nodegauge_operator.api.report import Report
from nodegauge_operator.kube.client import MERGE, Client, manager
from nodegauge_operator.kube.errors import AlreadyExists, Conflict, NotFound, Refused
from nodegauge_operator.kube.reports import without_nulls

PATH = f"/apis/{names.API_VERSION}/{names.EVIDENCE_PLURAL}"


async def write(client: Client, report: Report, key: str, evidence: ProbeEvidence) -> None:
    """Write one part.  `NotFound`: the CRD is missing."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.REPORT_KIND,
        "name": report.name,
        "uid": report.uid,
    }
    part: dict[str, Any] = {key: without_nulls(to_builtins(evidence))}
    body: dict[str, Any] = {"metadata": {"ownerReferences": [owner]}, "probes": part}
    try:
        if not report.status.evidence:
            await _create(client, report, body)
        else:
            await _patch(client, report.name, body | {"probes": _replacing(part)})
    except NotFound:
        if not report.status.evidence:
            raise
        await _create(client, report, body)  # somebody deleted it
    except AlreadyExists:  # made by a process that was killed, or left by an earlier report of this name
        await _patch(client, report.name, body | {"probes": _alone(part)})
    except Conflict as error:
        raise Refused(str(error), status=error.status) from None


async def delete(client: Client, name: str) -> None:
    """Delete the evidence of a node, if there is any."""
    try:
        await client.call("DELETE", f"{PATH}/{quote(name)}")
    except NotFound:
        return


def _replacing(part: dict[str, Any]) -> dict[str, Any]:
    """With what the part replaces: a readable run ends what an unreadable one said."""
    (key,) = part
    return part if key.endswith(UNREADABLE) else part | {key + UNREADABLE: None}


def _alone(part: dict[str, Any]) -> dict[str, Any]:
    """With nothing beside it."""
    every = [name + end for name in names.PROBES for end in ("", UNREADABLE)]
    return dict.fromkeys(every) | part


async def _create(client: Client, report: Report, body: dict[str, Any]) -> None:
    known = {"apiVersion": names.API_VERSION, "kind": names.EVIDENCE_KIND}
    metadata = {"name": report.name} | body["metadata"]
    await client.call("POST", PATH, query=manager(), body=known | body | {"metadata": metadata})


async def _patch(client: Client, name: str, body: dict[str, Any]) -> None:
    path = f"{PATH}/{quote(name)}"
    await client.call("PATCH", path, query=manager(), body=body, content_type=MERGE)
