"""Watches nodes and reports, and knows afterwards which taints they had after every write.

Both watches get revisions of one store, so sorting by revision gives the order of the writes.  Polling would
miss what happens between two reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from testbed.rest import Rest
from testbed.wait import wait_for
from testbed.watching import Event, Events, watch

Object = dict[str, Any]

NODES = "/api/v1/nodes"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
FAULTS = ("nodegauge.dev/throttled", "nodegauge.dev/unhealthy")


class TaintHistory:
    """Every revision of nodes and reports whose names begin with `prefix`, from entering to leaving.

    `kinds`: without reports where their CRD changes meanwhile, which ends their watch."""

    def __init__(self, api: Rest, *, prefix: str, kinds: tuple[str, ...] = (NODES, REPORTS)) -> None:
        self._api, self._prefix, self._kinds = api, prefix, kinds
        self._listed: dict[str, list[Event]] = {}
        self._watched: dict[str, Events] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for kind in self._kinds:
                listed = self._api.get(kind)
                self._listed[kind] = [Event(kind="ADDED", body=item) for item in listed["items"]]
                version = listed["metadata"]["resourceVersion"]
                self._watched[kind] = stack.enter_context(watch(self._api, kind, resourceVersion=version))
            self._watches = stack.pop_all()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        with self._watches:
            for kind in () if failed else self._kinds:
                listed = self._api.get(kind)
                wait_for(
                    lambda kind=kind, listed=listed: not self._unseen(kind, listed),  # type: ignore[misc]
                    what=f"watch events of {kind} that tell of all that a new list shows",
                )
                assert not self._watched[kind].ended, f"the watch of {kind} ended"

    def moments(self) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
        """After each write: the nodes that carried a taint for a fault, and those whose report held one."""
        now: dict[str, set[str]] = {NODES: set(), REPORTS: set()}
        seen = [
            (version, kind, name, body) for kind in self._kinds for name, version, body in self._seen(kind)
        ]
        for _, kind, name, body in sorted(seen, key=lambda one: one[0]):
            (now[kind].add if body and _is_tainted(kind, body) else now[kind].discard)(name)
            yield frozenset(now[NODES]), frozenset(now[REPORTS])

    def _seen(self, kind: str) -> Iterator[tuple[str, int, Object | None]]:
        """Name, revision and body of every write, None for the end."""
        for event in [*self._listed[kind], *self._watched[kind]]:
            metadata = event.body["metadata"]
            if metadata.get("name", "").startswith(self._prefix):
                body = None if event.kind == "DELETED" else event.body
                yield metadata["name"], int(metadata["resourceVersion"]), body

    def _unseen(self, kind: str, listed: Object) -> list[str]:
        """Names of objects whose last write, or whose end, was not seen."""
        latest = {name: (version, body) for name, version, body in self._seen(kind)}
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


def _is_tainted(kind: str, body: Object) -> bool:
    holder = body.get("spec") if kind == NODES else body.get("status", {}).get("desired")
    return any(taint["key"] in FAULTS for taint in (holder or {}).get("taints") or [])
