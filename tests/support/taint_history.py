"""Watches nodes and knows their taints after every write: polling would miss some."""

from collections.abc import Iterator
from typing import Self

from testbed.rest import Object, Rest
from testbed.wait import wait_for
from testbed.watching import Event, Events, watch

NODES = "/api/v1/nodes"
FAULTS = ("nodegauge.dev/throttled", "nodegauge.dev/unhealthy")


class TaintHistory:
    def __init__(self, api: Rest, *, prefix: str) -> None:
        self._api, self._prefix = api, prefix
        self._listed: list[Event] = []

    def __enter__(self) -> Self:
        listed = self._api.get(NODES)
        self._listed = [Event(kind="ADDED", body=item) for item in listed["items"]]
        self._watch = watch(self._api, NODES, resourceVersion=listed["metadata"]["resourceVersion"])
        self._watched: Events = self._watch.__enter__()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if not failed:
                listed = self._api.get(NODES)
                what = "watch events of nodes that tell of all that a new list shows"
                wait_for(lambda: not self._unseen(listed), what=what)
                assert not self._watched.ended, "the watch of nodes ended"
        finally:
            self._watch.__exit__(None, None, None)

    def moments(self) -> Iterator[frozenset[str]]:
        now: set[str] = set()
        for name, _, body in sorted(self._seen(), key=lambda one: one[1]):
            taints = (body or {}).get("spec", {}).get("taints") or []
            (now.add if any(taint["key"] in FAULTS for taint in taints) else now.discard)(name)
            yield frozenset(now)

    def _seen(self) -> Iterator[tuple[str, int, Object | None]]:
        for event in [*self._listed, *self._watched]:
            metadata = event.body["metadata"]
            if metadata.get("name", "").startswith(self._prefix):
                body = None if event.kind == "DELETED" else event.body
                yield metadata["name"], int(metadata["resourceVersion"]), body

    def _unseen(self, listed: Object) -> list[str]:
        latest = {name: (version, body) for name, version, body in self._seen()}
        metadata = [item["metadata"] for item in listed["items"]]
        there = {m["name"]: int(m["resourceVersion"]) for m in metadata if m["name"].startswith(self._prefix)}
        as_of = int(listed["metadata"]["resourceVersion"])
        late = [name for name, version in there.items() if name not in latest or latest[name][0] < version]
        gone = [
            name
            for name, (version, body) in latest.items()
            if body and version <= as_of and name not in there
        ]
        return late + gone
