"""The operator's client on an API server that a test answers for, call by call; every call is kept.

It stands in for `kube.client.Client` below `call`.  Where objects have to live and change, `builders.client`.
"""

from __future__ import annotations

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


class AnsweringClient(Client):
    """`answer` gives the object for a call, or raises a `KubeError`."""

    def __init__(self, answer: Callable[[Call], Object]) -> None:
        self.calls: list[Call] = []
        self._answer = answer

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
        """One call, kept and answered."""
        made = Call(method=method, path=path, query=query or {}, body=body, content_type=content_type)
        self.calls.append(made)
        return self._answer(made)
