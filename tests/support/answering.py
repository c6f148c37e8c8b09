"""The operator's client on an API server that a test answers for, call by call.

It stands in for `kube.client.Client` below `call`, so that everything above it is the operator's own.  Where
objects have to live and change, `support.client`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nodegauge_operator.kube.client import CALL_TIMEOUT, Client

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request."""

    method: str
    path: str
    query: Mapping[str, Any]
    body: Any
    content_type: str


class LocalClient(Client, ABC):
    """A client without a connection."""

    @abstractmethod
    async def take(self, call: Call) -> Object:
        """The object for a call; or raises a `KubeError`."""

    async def close(self) -> None:
        """Nothing to close."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        within: float = CALL_TIMEOUT,
    ) -> Object:
        """One call, answered here."""
        return await self.take(
            Call(method=method, path=path, query=query or {}, body=body, content_type=content_type)
        )


class AnsweringClient(LocalClient):
    """`answer` gives the object for a call, or raises a `KubeError`; every call is kept."""

    def __init__(self, answer: Callable[[Call], Object]) -> None:
        self.calls: list[Call] = []
        self._answer = answer

    async def take(self, call: Call) -> Object:
        """Kept and answered."""
        self.calls.append(call)
        return self._answer(call)
