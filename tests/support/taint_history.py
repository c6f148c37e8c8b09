"""Watches nodes and reports, and knows afterwards which taints they had after every write.

Both watches get revisions of one store, so sorting by revision gives the order of the writes.  Polling would
miss what happens between two reads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from testbed.kubelet.api import Api
from testbed.wait import DEADLINE_SECONDS, POLL_SECONDS, wait_for

Object = dict[str, Any]

NODES = "/api/v1/nodes"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
FAULTS = ("nodegauge.dev/throttled", "nodegauge.dev/unhealthy")


class TaintHistory:
    """Every revision of nodes and reports whose names begin with `prefix`, from entering to leaving.

    `kinds`: without reports where their CRD changes meanwhile, which ends their watch.  `to_the_end`: whether
    the last writes count, which nobody can ask for where the API server stands still."""

    def __init__(
        self,
        kubeconfig: Path,
        *,
        prefix: str,
        kinds: tuple[str, ...] = (NODES, REPORTS),
        to_the_end: bool = True,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._prefix = prefix
        self._kinds = kinds
        self._to_the_end = to_the_end
        self._seen: list[tuple[int, str, str, bool]] = []
        """Revision, kind, name, whether it has a taint for a fault."""
        self._latest: dict[tuple[str, str], tuple[int, bool]] = {}
        """By kind and name: the last revision that was seen, and whether the object is there."""
        self._listed: set[str] = set()
        """Kinds whose list was read: the watch goes on from there."""
        self._leave = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="taint history", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(
            lambda: self._listed == set(self._kinds) or not self._thread.is_alive(),
            what=f"lists of {', '.join(self._kinds)}, from which the watches go on",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def moments(self) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
        """After each write: the nodes that carried a taint for a fault, and those whose report held one."""
        now: dict[str, set[str]] = {NODES: set(), REPORTS: set()}
        for _, kind, name, tainted in sorted(self._seen):
            if tainted:
                now[kind].add(name)
            else:
                now[kind].discard(name)
            yield frozenset(now[NODES]), frozenset(now[REPORTS])

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # a thread's error must reach the test
            self._failure = error

    async def _watch(self) -> None:
        async with await Api.connect(self._kubeconfig, agent="taint-history") as api:
            tasks = [asyncio.create_task(self._follow(api, kind)) for kind in self._kinds]
            leaving = asyncio.create_task(self._catch_up(api))
            ended, _ = await asyncio.wait({leaving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            self._leave.set()
            if leaving in ended:
                leaving.result()
            for task in (leaving, *tasks):
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(outcome, asyncio.CancelledError):
                    raise AssertionError("a watch ended") from outcome

    async def _catch_up(self, api: Api) -> None:
        """After `leave`: wait until the watches have told of all that a new list shows."""
        await asyncio.to_thread(self._leave.wait)
        loop = asyncio.get_running_loop()
        for kind in self._kinds if self._to_the_end else ():
            listed = await api.get(kind)
            end = loop.time() + DEADLINE_SECONDS
            while unseen := self._unseen(kind, listed):
                assert loop.time() < end, f"no watch event of {kind} told of {unseen}: {self._latest}"
                await asyncio.sleep(POLL_SECONDS)

    def _unseen(self, kind: str, listed: Object) -> list[str]:
        """Names of objects whose last write, or whose end, was not seen."""
        metadata = [item["metadata"] for item in listed["items"]]
        there = {m["name"]: int(m["resourceVersion"]) for m in metadata if m["name"].startswith(self._prefix)}
        as_of = int(listed["metadata"]["resourceVersion"])
        late = [name for name, version in there.items() if self._latest.get((kind, name), (0,))[0] < version]
        return late + [
            name
            for (of, name), (version, alive) in self._latest.items()
            if of == kind and alive and version <= as_of and name not in there
        ]

    async def _follow(self, api: Api, kind: str) -> None:
        listed = await api.get(kind)
        for item in listed["items"]:
            self._note(kind, "ADDED", item)
        self._listed.add(kind)
        async for event, body in api.watch(kind, version=listed["metadata"]["resourceVersion"]):
            if event != "BOOKMARK":
                self._note(kind, event, body)

    def _note(self, kind: str, event: str, body: Object) -> None:
        metadata = body["metadata"]
        if metadata["name"].startswith(self._prefix):
            taints = (body.get("spec") or {}).get("taints") or []
            if kind == REPORTS:
                taints = body.get("status", {}).get("desired", {}).get("taints") or []
            tainted = event != "DELETED" and any(t["key"] in FAULTS for t in taints)
            version = int(metadata["resourceVersion"])
            self._latest[kind, metadata["name"]] = version, event != "DELETED"
            self._seen.append((version, kind, metadata["name"], tainted))
