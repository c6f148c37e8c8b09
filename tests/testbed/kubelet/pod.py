"""One pod from binding to its end; quick states are merged into one patch, as with a real kubelet."""

import asyncio
import logging
import signal
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any

from testbed.errors import ApiError
from testbed.kubelet.api import retry
from testbed.kubelet.container import Runner
from testbed.kubelet.context import ADDRESS, NodeContext, pod_address
from testbed.kubelet.status import Record, lost, pod_status
from testbed.kubelet.volumes import Credentials, token_mounts
from testbed.rest import Object
from testbed.scripted import stamp

log = logging.getLogger(__name__)

DEFAULT_GRACE = 30
"""Seconds (DefaultTerminationGracePeriodSeconds)."""
KILL_SECONDS = 5.0
"""Wait for processes to be gone after SIGKILL; a start that hangs in the API is given up after it."""


class Ending(Enum):
    DELETED = "deleted"
    DEADLINE = "deadline"
    GONE = "gone"


def path_of(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def is_terminal(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def directory_name(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"


async def cancel(tasks: Iterable[asyncio.Future[None]]) -> None:
    left = [*tasks]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def remove(pod: Object, node: NodeContext) -> None:
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
    try:
        await retry(lambda: node.api.delete(path_of(pod), options))
    except ApiError as error:
        if error.status not in (404, 409):  # 409: another pod has this name now
            log.error("%s not removed: %s", path_of(pod), error)


class PodWorker:
    def __init__(self, pod: Object, node: NodeContext) -> None:
        self.pod = pod
        self._node = node
        self._directory = node.directory / "pods" / directory_name(pod)
        self._ending: Ending | None = None
        self._news = asyncio.Event()
        self._over = False
        status = pod.get("status", {})
        self._started = status.get("startTime") or stamp()
        self._conditions: list[Object] = status.get("conditions", [])
        self._credentials: Credentials | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._publishing = asyncio.Lock()
        self._published: Object | None = None
        self._runners = [self._runner(spec) for spec in pod["spec"]["containers"]]
        self.observe(pod)

    def observe(self, pod: Object) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._ending = self._ending or Ending.DELETED
            self._news.set()

    @property
    def vanished(self) -> bool:
        return self._ending is Ending.GONE

    def vanish(self) -> None:
        self._ending = Ending.GONE
        self._news.set()

    async def run(self) -> None:
        try:
            self._touch()
            await self._live()
            if self._ending is None:
                await self._publish()  # its containers' ends are shown before the pod's
            self._finish()
            await self._publish()
        finally:
            await cancel(self._tasks)

    def _touch(self) -> None:
        task = asyncio.ensure_future(self._publish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self) -> None:
        async with self._publishing:
            status = pod_status(
                self.pod,
                self._records,
                over=self._over,
                late=self._ending is Ending.DEADLINE and self._over,
                before=self._conditions,
                started=self._started,
                host=ADDRESS,
                address=pod_address(self.pod["metadata"]["uid"]),
                now=stamp(),
            )
            self._conditions = status["conditions"]
            while not self.vanished and status != self._published:
                body = {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": status}
                try:
                    await retry(partial(self._node.api.patch, f"{path_of(self.pod)}/status", body))
                except ApiError as error:
                    if error.status == 409 and await self._is_there():
                        continue  # somebody else wrote at the same time
                    if error.status in (404, 409):
                        self.vanish()
                    else:
                        log.error("status of %s refused: %s", path_of(self.pod), error)
                self._published = status

    async def _is_there(self) -> bool:
        try:
            result = await retry(lambda: self._node.api.get(path_of(self.pod)))
        except ApiError:
            return False
        return bool(result["metadata"]["uid"] == self.pod["metadata"]["uid"])

    def _runner(self, spec: Object) -> Runner:
        record = Record(spec["name"], spec["image"])
        sources = [*token_mounts(self.pod, spec).values()]
        if sources and self._credentials is None:
            self._credentials = Credentials(
                self.pod, sources[0], self._node, directory=self._directory / "serviceaccount"
            )
        return Runner(
            spec,
            record,
            pod=self.pod,
            node=self._node,
            directory=self._directory / spec["name"],
            credentials=self._credentials if sources else None,
            changed=self._changed,
        )

    def _changed(self) -> None:
        """A container's news; once a pod is being ended, its containers' ends are shown with its own."""
        if self._ending is None:
            self._touch()

    async def _live(self) -> None:
        if self._credentials:
            self._tasks.add(asyncio.ensure_future(self._credentials.keep_fresh()))
        containers = asyncio.ensure_future(self._run_containers())
        try:
            limit = self.pod["spec"].get("activeDeadlineSeconds")  # counted from the pod's start
            age = (datetime.now(UTC) - datetime.fromisoformat(self._started)).total_seconds()
            await self._wait(containers, None if limit is None else max(0.0, float(limit) - age))
            if not containers.done():
                self._ending = self._ending or Ending.DEADLINE
                await self._end(containers)
        finally:
            containers.cancel()
            [result] = await asyncio.gather(containers, return_exceptions=True)
            if isinstance(result, Exception):
                log.error("%s broke", path_of(self.pod), exc_info=result)

    async def _wait(self, containers: asyncio.Future[None], seconds: float | None) -> None:
        news = asyncio.ensure_future(self._news.wait())
        waiting: set[asyncio.Future[Any]] = {containers, news}
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    async def _run_containers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for runner in self._runners:
                group.create_task(runner.run())

    async def _end(self, containers: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._signal(signal.SIGTERM)
        while not containers.done():
            default = self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE)
            grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds", default))
            left = began + (0.0 if self.vanished else grace) - loop.time()
            if left <= 0:
                self._signal(signal.SIGKILL)
                await asyncio.wait({containers}, timeout=KILL_SECONDS)
                return
            self._news.clear()
            await self._wait(containers, left)

    def _signal(self, number: signal.Signals) -> None:
        for runner in self._runners:
            runner.end(number)

    @property
    def _records(self) -> list[Record]:
        return [runner.record for runner in self._runners]

    def _finish(self) -> None:
        self._over = True
        for record in self._records:
            if not record.ended:
                record.state = lost()
            record.ready = record.started = False
