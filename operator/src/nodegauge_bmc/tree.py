"""A BMC's resources: fetched once each, with a note of those that it names and does not give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from nodegauge_bmc.connection import Connection, Unreadable
from nodegauge_bmc.values import Resource, items, link, links, member
from nodegauge_contract.chassis import Unread

MAX_PAGES = 20
"""Pages of one collection."""
MAX_UNREAD = 64
"""Unread resources that a reading names; the rest is a number."""


class Tree:
    """The resources of one BMC during one reading."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: dict[str, asyncio.Future[Resource | None]] = {}
        self._unread: dict[str, str] = {}
        self._expands = False

    def expands(self, root: Resource) -> None:
        """Take from the service root whether collections can be fetched with their members in one request."""
        self._expands = member(root, "ProtocolFeaturesSupported", "ExpandQuery", "NoLinks") is True

    async def get(self, path: str) -> Resource | None:
        """The resource at `path`; None for an empty path, or where the BMC does not give it."""
        if not path:
            return None
        path = path.partition("#")[0]
        key = path.rstrip("/")
        if key not in self._asked:
            future = self._asked[key] = asyncio.get_running_loop().create_future()
            try:
                future.set_result(await self._connection.get(path))
            except Unreadable as error:
                self._unread[path] = str(error)
                future.set_result(None)
            except BaseException as error:
                future.cancel()
                raise error
        return await self._asked[key]

    async def all(self, paths: Iterable[str]) -> list[Resource]:
        """The resources at `paths` that the BMC gives, in their order."""
        got = await asyncio.gather(*(self.get(path) for path in paths))
        return [resource for resource in got if resource is not None]

    async def collection(self, path: str) -> list[Resource] | None:
        """The members of a collection that the BMC gives; None if its list cannot be read."""
        listed = await self.members(path)
        return None if listed is None else [resource for _, resource in listed if resource is not None]

    async def members(self, path: str) -> list[tuple[str, Resource | None]] | None:
        """Address and resource of every member of a collection; the resource is None where the BMC lists it
        and does not give it.  None if the list cannot be read."""
        expanded = await self._expanded(path) if path and self._expands else None
        if expanded is not None:
            return expanded
        first = await self.get(path)
        if first is None:
            return None
        pages = [first, *[page async for page in self._following(path, first)]]
        addresses = links(
            {"Members": [entry for page in pages for entry in items(page, "Members")]}, "Members"
        )
        got = await asyncio.gather(*(self.get(address) for address in addresses))
        return list(zip(addresses, got, strict=True))

    async def _following(self, path: str, first: Resource) -> AsyncIterator[Resource]:
        """The pages after the first one, each once; what ends them too early stands in `unread`."""
        page, asked = first, {path.rstrip("/")}
        while after := page.get("Members@odata.nextLink"):
            if not isinstance(after, str):
                self._unread[path] = "its next page has no address on this BMC: its list is cut off there"
            elif after.rstrip("/") in asked:
                self._unread[path] = "its pages lead in a circle: its list may be cut off there"
            elif len(asked) >= MAX_PAGES:
                self._unread[path] = f"more than {MAX_PAGES} pages: its list is cut off there"
            elif (following := await self.get(after)) is not None:
                asked.add(after.rstrip("/"))
                page = following
                yield page
                continue
            return

    async def _expanded(self, path: str) -> list[tuple[str, Resource | None]] | None:
        """The members in one request; None where the BMC does not keep what it announced."""
        try:
            answer = await self._connection.get(path + "?$expand=.($levels=1)")
        except Unreadable:
            return None
        members = items(answer, "Members")
        whole = all(len(resource) > 1 for resource in members) and not answer.get("Members@odata.nextLink")
        if not whole or not isinstance(answer.get("Members"), list):
            return None
        once: dict[str, tuple[str, Resource | None]] = {}
        for at, resource in enumerate(members):
            address = link({"self": resource}, "self")
            once.setdefault(address.rstrip("/") or str(at), (address, resource))
        return list(once.values())

    @property
    def unread(self) -> list[Unread]:
        """What the BMC named and did not give, by path."""
        listed = [
            Unread(path=path[:512], reason=reason[:512]) for path, reason in sorted(self._unread.items())
        ]
        rest = len(listed) - MAX_UNREAD
        more = [Unread(path=f"{rest} more resources", reason="")] if rest > 0 else []
        return listed[:MAX_UNREAD] + more
