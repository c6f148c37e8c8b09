"""The operator's client on a cluster in memory: every call is a turn that a test can watch, refuse or cut.

What is refused, cut or killed is said by the test; what is answered, by `support.cluster`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nodegauge_operator.kube.client import STRATEGIC
from nodegauge_operator.kube.errors import KubeError, Unavailable, Unreachable, error_of
from support.answering import Call, LocalClient
from support.cluster import COLLECTIONS, NODES, ApiError, Body, Cluster


class Killed(BaseException):
    """SIGKILL: nothing after it runs."""


class FakeClient(LocalClient):
    """`log` holds what was written, as "VERB resource"; `turn` is awaited before each call."""

    def __init__(self, cluster: Cluster, *, turn: Callable[[], Awaitable[None]] | None = None) -> None:
        self.cluster = cluster
        self.log: list[str] = []
        self.calls = 0
        self.reads: list[str] = []
        self.kill_at: tuple[int, str] | None = None
        """Which write to die at, counted from 0, and whether `before` or `after` it took effect."""
        self.refuse: Callable[[str, str], KubeError | None] = lambda _verb, _path: None
        """Asked before each call with the verb and the path; what it returns is raised."""
        self.answered: Callable[[str, str], None] = lambda _verb, _path: None
        """Told after the cluster has answered, before the operator hears of it."""
        self._turn = turn

    async def take(self, call: Call) -> Body:
        """One call, answered by the cluster."""
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
            self.log.append(f"{call.method} {_words(call.path)}")
        return answer

    def _maybe_die(self, when: str) -> None:
        if self.kill_at == (len(self.log), when):
            raise Killed

    def _answer(self, call: Call) -> Body:
        collection, name, sub = _split(call.path)
        query, body, manager = call.query, call.body, call.query.get("fieldManager", "")
        match call.method:
            case "GET" if name:
                return self.cluster.get(collection, name)
            case "GET":
                return self.cluster.list(
                    collection,
                    selector=query.get("labelSelector", ""),
                    only=query.get("fieldSelector", "").removeprefix("metadata.name="),
                    limit=query.get("limit", 0),
                    start=query.get("continue", ""),
                )
            case "POST":
                return self.cluster.create(collection, body)
            case "PATCH" if collection == NODES and sub and call.content_type == STRATEGIC:
                return self.cluster.patch_conditions(name, body)
            case "PATCH":
                return self.cluster.patch(collection, name, body, sub=sub, manager=manager)
            case "DELETE":
                answer = self.cluster.delete(collection, name, body or {})
                return answer if answer.get("kind") == "Status" else answer | {"kind": "Pod"}
        raise AssertionError(f"{call.method} {call.path}")


def unavailable(status: int = 0) -> KubeError:
    """No answer, or an answer that says later."""
    return Unavailable("no answer", status=status)


def unreachable() -> KubeError:
    """The connection was refused or cut."""
    return Unreachable("connection reset")


def _split(path: str) -> tuple[str, str, str]:
    collection = next(c for c in COLLECTIONS if path == c or path.startswith(c + "/"))
    name, _, sub = path[len(collection) + 1 :].partition("/")
    return collection, name, sub


def _words(path: str) -> str:
    collection, _, sub = _split(path)
    return collection.rsplit("/", 1)[1] + (f"/{sub}" if sub else "")
