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

Object = dict[str, Any]

NODES = "/api/v1/nodes"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
FAULTS = ("nodegauge.dev/throttled", "nodegauge.dev/unhealthy")
END_SECONDS = 10.0


class TaintHistory:
    """Every revision of nodes and reports whose names begin with `prefix`, from entering to leaving.

    `kinds`: without reports where their CRD changes meanwhile, which ends their watch."""

    def __init__(self, kubeconfig: Path, *, prefix: str, kinds: tuple[str, ...] = (NODES, REPORTS)) -> None:
        self._kubeconfig = kubeconfig
        self._prefix = prefix
        self._kinds = kinds
        self._seen: list[tuple[int, str, str, bool]] = []
        """Revision, kind, name, whether it has a taint for a fault."""
        self._watching = threading.Event()
        self._leave = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="taint history", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._watching.wait(END_SECONDS), "the watches did not begin"
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join(END_SECONDS)
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
            self._watching.set()
            left = asyncio.create_task(asyncio.to_thread(self._leave.wait))
            await asyncio.wait({left, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.2)  # the last writes may still be on their way
            self._leave.set()
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(outcome, asyncio.CancelledError):
                    raise AssertionError("a watch ended") from outcome

    async def _follow(self, api: Api, kind: str) -> None:
        listed = await api.get(kind)
        for item in listed["items"]:
            self._note(kind, "ADDED", item)
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
            self._seen.append((int(metadata["resourceVersion"]), kind, metadata["name"], tainted))
