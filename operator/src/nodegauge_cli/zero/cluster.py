"""What `nodegauge zero` reads of a cluster: NodeReports, and the nodes if the user may list them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nodegauge_operator.api.report import Report

if TYPE_CHECKING:
    from nodegauge_operator.core.model import NodeView
    from nodegauge_operator.kube.client import Client

Answer = TypeVar("Answer")
WAY_OUT = (
    "Set KUBECONFIG to a cluster with nodegauge, pass NodeReports with --report, or use --reference for "
    "published machines."
)


class NoCluster(Exception):
    """No API server answers, or it refuses; the message says why."""


class Snapshot(NamedTuple):
    """The cluster as it was read."""

    reports: list[Report]
    nodes: dict[str, NodeView] | None
    """By name; null if they could not be listed."""
    remark: str = ""
    """Why the nodes could not be listed."""


def reports(node: str | None) -> list[Report]:
    """All NodeReports, or that of one node (none: an empty list).  Raises `NoCluster`."""
    from nodegauge_operator.kube import reports as api

    async def read(client: Client) -> list[Report]:
        if node:
            report = await api.get(client, node)
            return [report] if report is not None else []
        return [report async for report in api.each(client)]

    return _with_client(read)


def snapshot(node: str | None) -> Snapshot:
    """The same, with the nodes.  Raises `NoCluster`."""
    from nodegauge_operator.kube import nodes as api
    from nodegauge_operator.kube.errors import Forbidden

    listed = reports(node)

    async def read(client: Client) -> Snapshot:
        try:
            return Snapshot(listed, {view.name: view async for view in api.each(client)})
        except Forbidden as error:
            return Snapshot(listed, None, f"Nodes cannot be listed, so cordons are unknown: {error}")

    return _with_client(read)


def _with_client(read: Callable[[Client], Awaitable[Answer]]) -> Answer:
    from nodegauge_operator.kube.client import connect
    from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound

    async def run() -> Answer:
        client = await connect(environ=os.environ)
        try:
            return await read(client)
        finally:
            await client.close()

    try:
        return asyncio.run(run())
    except Forbidden as error:
        raise NoCluster(f"no right to list nodereports.nodegauge.dev: {error}") from None
    except NotFound as error:
        raise NoCluster(f"the cluster has no NodeReports, so nodegauge is not installed: {error}") from None
    except KubeError as error:
        raise NoCluster(str(error)) from None
