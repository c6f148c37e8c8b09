"""NodeReports: create with an owner, patch the status with resourceVersion, delete by UID.

Status patches are JSON merge patches (RFC 7386): the difference of two documents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from msgspec import to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.report import Report, ReportStatus, parse_report
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import MERGE, Client, manager
from nodegauge_operator.kube.deletion import delete_this
from nodegauge_operator.kube.errors import AlreadyExists, NotFound
from nodegauge_operator.kube.listing import Unknown

PATH = f"/apis/{names.API_VERSION}/{names.REPORT_PLURAL}"


async def each(client: Client, *, unknown: Unknown | None = None) -> AsyncIterator[Report]:
    """Every report, or those that `unknown` asks for (`listing.each`)."""
    async for body in listing.each(client, PATH, unknown=unknown):
        yield parse_report(body)


async def get(client: Client, name: str) -> Report | None:
    """One report, None when there is none."""
    try:
        return parse_report(await client.call("GET", f"{PATH}/{quote(name)}"))
    except NotFound:
        return None


async def create(client: Client, node: NodeView) -> Report | None:
    """An empty report owned by the node: the API server's garbage collector removes it with the node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.REPORT_KIND,
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {},
    }
    try:
        return parse_report(await client.call("POST", PATH, query=manager(), body=body))
    except AlreadyExists:
        return await get(client, node.name)


async def patch_status(client: Client, report: Report, status: ReportStatus) -> Report:
    """Write the difference, with resourceVersion; `Conflict` if the report has changed since."""
    before = _plain(report.status) if report.unreadable is None else report.unreadable
    patch = difference(before, _plain(status))
    body: dict[str, Any] = {
        "metadata": {"resourceVersion": report.resource_version, "uid": report.uid},
        "status": patch,
    }
    answer = await client.call(
        "PATCH", f"{PATH}/{quote(report.name)}/status", query=manager(), body=body, content_type=MERGE
    )
    return parse_report(answer)


async def delete(client: Client, report: Report) -> None:
    """Delete exactly this report; a newer one of the same name is left alone."""
    await delete_this(client, f"{PATH}/{quote(report.name)}", uid=report.uid)


def _plain(status: ReportStatus) -> dict[str, Any]:
    plain: dict[str, Any] = without_nulls(to_builtins(status))
    return plain


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that turns `old` into `new`: removed keys become null, lists are replaced whole.

    `new` must not hold None as a value: a merge patch cannot express it.
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = difference(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def without_nulls(value: Any) -> Any:
    """The same document without keys whose value is None, at any depth."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value
