"""The operator's client without a connection: a test or a cluster in memory answers its calls."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nodegauge_operator.core import device_rule
from nodegauge_operator.kube.client import APPLY, CALL_TIMEOUT, JSON_PATCH, METADATA_ONLY, STRATEGIC, Client
from nodegauge_operator.kube.errors import KubeError, NotFound, Unavailable, Unreachable, error_of
from support.api_server import COLLECTIONS, NODES, ApiError, Body, FakeApiServer

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    method: str
    path: str
    query: Mapping[str, Any]
    body: Any
    content_type: str
    accept: str = "application/json"


class LocalClient(Client, ABC):
    @abstractmethod
    async def take(self, call: Call) -> Object:
        """The object for a call; or raises a `KubeError`."""

    def now(self) -> float:
        return time.time()

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
        accept: str = "application/json",
        within: float = CALL_TIMEOUT,
        whole: bool = False,
        shape: str = "",
    ) -> Object:
        how = {"content_type": content_type, "accept": accept}
        return await self.take(Call(method=method, path=path, query=query or {}, body=body, **how))


class AnsweringClient(LocalClient):
    """`answer` returns the object for a call or raises a `KubeError`; every call is kept."""

    def __init__(self, answer: Callable[[Call], Object]) -> None:
        self.calls: list[Call] = []
        self._answer = answer

    async def take(self, call: Call) -> Object:
        self.calls.append(call)
        return self._answer(call)


class Killed(BaseException):
    """SIGKILL: no code runs after it."""


class FakeClient(LocalClient):
    """`log` holds what was written, as "VERB resource"; `turn` is awaited before each call."""

    def __init__(self, cluster: FakeApiServer, *, turn: Callable[[], Awaitable[None]] | None = None) -> None:
        self.cluster = cluster
        self.log: list[str] = []
        self.calls = 0
        self.reads: list[str] = []
        self.kill_at: tuple[int, str] | None = None
        """Which write to die at, counted from 0, and whether `before` or `after` it took effect."""
        self.refuse: Callable[[str, str], KubeError | None] = lambda _verb, _path: None
        """Asked before each call with the verb and the path; what it returns is raised."""
        self.answered: Callable[[str, str], None] = lambda _verb, _path: None
        """Called after the cluster has answered, before the operator gets the answer."""
        self._turn = turn

    def now(self) -> float:
        return self.cluster.clock()

    async def take(self, call: Call) -> Body:
        if self._turn is not None:
            await self._turn()
        self.calls += 1
        refusal = self.refuse(call.method, call.path)
        if refusal is not None:
            raise refusal
        if call.method == "GET":
            self.reads.append(call.path)
        else:
            self._maybe_die("before")
        try:
            answer = self._answer(call)
        except ApiError as error:
            raise error_of(error.status, error.reason, error.message) from None
        self.answered(call.method, call.path)
        if call.method != "GET":
            self._maybe_die("after")
            self.log.append(f"{call.method} {_resource(call.path)}")
        return answer

    def _maybe_die(self, when: str) -> None:
        if self.kill_at == (len(self.log), when):
            raise Killed

    def _answer(self, call: Call) -> Body:
        if call.path == f"/apis/{device_rule.GROUP}":
            raise NotFound("this API server has no DRA", status=404)
        collection, name, sub = _split(call.path)
        query, body, manager = call.query, call.body, call.query.get("fieldManager", "")
        match call.method:
            case "GET" if name:
                return self.cluster.get(collection, name)
            case "GET":
                page = self.cluster.list(collection, query)
                if call.accept == METADATA_ONLY:
                    page["items"] = [{"metadata": item["metadata"]} for item in page["items"]]
                return page
            case "POST":
                return self.cluster.create(collection, body)
            case "PATCH" if collection == NODES and sub and call.content_type == STRATEGIC:
                return self.cluster.patch_conditions(name, body)
            case "PATCH" if call.content_type == APPLY and name not in self.cluster.objects[collection]:
                return self.cluster.create(collection, body)
            case "PATCH" if call.content_type == JSON_PATCH:
                return self.cluster.json_patch(collection, name, body)
            case "PATCH":
                return self.cluster.patch(collection, name, body, sub=sub, manager=manager)
            case "DELETE":
                answer = self.cluster.delete(collection, name, body or {})
                return answer if answer.get("kind") == "Status" else answer | {"kind": "Pod"}
        raise AssertionError(f"{call.method} {call.path}")


def unavailable(status: int = 0) -> KubeError:
    return Unavailable("no answer", status=status)


def unreachable() -> KubeError:
    return Unreachable("connection reset")


def _split(path: str) -> tuple[str, str, str]:
    collection = next(c for c in COLLECTIONS if path == c or path.startswith(c + "/"))
    name, _, sub = path[len(collection) + 1 :].partition("/")
    return collection, name, sub


def _resource(path: str) -> str:
    collection, _, sub = _split(path)
    return collection.rsplit("/", 1)[1] + (f"/{sub}" if sub else "")
