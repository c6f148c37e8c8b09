"""The simulated kubelet of one node, and `python -m testbed.kubelet.agent KUBECONFIG DIRECTORY`, that of
many.  What it does differently from a real one is listed in tests/testbed/README.md."""

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from pathlib import Path

import aiohttp

from testbed.errors import ApiError, TestbedError
from testbed.kubelet.api import Api, retry
from testbed.kubelet.context import Hardware, NodeContext
from testbed.kubelet.desired import Desired, DesiredFile, NodeSpec, Observed
from testbed.kubelet.devices import Devices
from testbed.kubelet.errors import ApiUnreachable
from testbed.kubelet.images import default_images
from testbed.kubelet.node import NodeAgent, delete_node, fall_silent
from testbed.kubelet.pod import PodWorker, cancel, directory_name, is_terminal, remove
from testbed.rest import Object

log = logging.getLogger(__name__)

PODS = "/api/v1/pods"
RECONNECT_SECONDS = 0.2
LOOK_SECONDS = 0.05
"""How often the file of nodes is looked at: one stat(2)."""
RETRY_SECONDS = 1.0
"""Pause before a node that could not be started is tried again."""
KEPT_PODS = 200
"""Ended pods whose logs stay, for whoever wants to know why."""


class Kubelet:
    """`directory`: `pods/NAMESPACE_NAME_UID/CONTAINER/{0.log,pid}`."""

    def __init__(self, *, name: str, server: Path, directory: Path, hardware: Hardware | None = None) -> None:
        self.name = name
        self._server = server
        self._directory = directory
        self._hardware = hardware
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self._done: set[str] = set()
        """Pods whose status is final: an event that is older than that status must not start them again."""
        self._removals: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._node: NodeContext

    @property
    def healthy(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._node = NodeContext(
            name=self.name,
            api=await Api.connect(self._server, agent=f"kubelet-testbed/{self.name}"),
            http=aiohttp.ClientSession(),
            images=default_images(),
            directory=self._directory.resolve(),
            hardware=self._hardware,
            devices=Devices(self._hardware),
        )
        agent = NodeAgent(self._node)
        try:
            await agent.register()
        except BaseException:
            await self._disconnect()
            raise
        self._tasks = [
            asyncio.create_task(agent.keep_ready(), name=f"heartbeat {self.name}"),
            asyncio.create_task(agent.follow_devices(), name=f"devices {self.name}"),
            asyncio.create_task(self._watch_pods(), name=f"pods {self.name}"),
        ]
        for task in self._tasks:
            task.add_done_callback(_tell)

    async def stop(self) -> None:
        workers = [task for _, task in self._workers.values()]
        await cancel([*self._tasks, *workers, *self._removals])
        self._tasks = []
        self._workers.clear()
        await self._disconnect()

    async def _disconnect(self) -> None:
        await self._node.http.close()
        await self._node.api.close()

    async def _watch_pods(self) -> None:
        api, selector = self._node.api, f"spec.nodeName={self.name}"
        while True:
            listed = await retry(lambda: api.get(PODS, fieldSelector=selector))
            version = listed["metadata"]["resourceVersion"]
            self._replace(listed.get("items") or [])
            try:
                while True:
                    async for kind, item in api.watch(PODS, version=version, fieldSelector=selector):
                        version = item["metadata"]["resourceVersion"]
                        self._observe(kind, item)
            except ApiUnreachable as error:
                log.info("%s", error)
            except ApiError as error:
                if error.status != 410:
                    log.warning("watch of pods: %s", error)
            await asyncio.sleep(RECONNECT_SECONDS)

    def _replace(self, items: list[Object]) -> None:
        present = {item["metadata"]["uid"] for item in items}
        self._done &= present
        for uid, (worker, _) in list(self._workers.items()):
            if uid not in present:
                worker.vanish()
        for item in items:
            self._observe("MODIFIED", item)

    def _observe(self, kind: str, pod: Object) -> None:
        if kind == "BOOKMARK":
            return
        uid = pod["metadata"]["uid"]
        known = self._workers.get(uid)
        if kind == "DELETED":
            self._done.discard(uid)
            if known:
                known[0].vanish()
        elif known:
            known[0].observe(pod)
        elif uid not in self._done and not is_terminal(pod):
            worker = PodWorker(pod, self._node)
            task = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['name']}")
            self._workers[uid] = (worker, task)
            task.add_done_callback(lambda done: self._ended(uid, worker, done))
        elif pod["metadata"].get("deletionTimestamp"):
            self._remove(pod)

    def _ended(self, uid: str, worker: PodWorker, task: asyncio.Task[None]) -> None:
        self._workers.pop(uid, None)
        self._node.devices.release(uid)
        _tell(task)
        if task.cancelled():
            return
        if not worker.vanished:
            self._done.add(uid)
            if worker.pod["metadata"].get("deletionTimestamp"):
                self._remove(worker.pod)
        # A kubelet removes a pod's logs with the pod; here those of the oldest go.
        running = {directory_name(worker.pod) for worker, _ in self._workers.values()}
        folders = [entry for entry in (self._node.directory / "pods").iterdir() if entry.name not in running]
        for folder in sorted(folders, key=lambda entry: entry.stat().st_mtime)[:-KEPT_PODS]:
            shutil.rmtree(folder, ignore_errors=True)

    def _remove(self, pod: Object) -> None:
        task = asyncio.create_task(remove(pod, self._node))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s broke", task.get_name(), exc_info=error)


class Host:
    def __init__(self, *, kubeconfig: Path, directory: Path) -> None:
        self._kubeconfig = kubeconfig
        self._directory = directory
        self._file = DesiredFile(directory)
        self._running: dict[str, tuple[NodeSpec, Kubelet]] = {}
        self._known: set[str] = set()
        self._problems: dict[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        seen: object = None
        try:
            while not stop.is_set():
                stamp = self._stamp()
                if stamp != seen or self._problems:
                    seen = stamp
                    await self._reconcile(self._file.read())
                pause = RETRY_SECONDS if self._problems else LOOK_SECONDS
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await stop.wait()
        finally:
            await asyncio.gather(*(kubelet.stop() for _, kubelet in self._running.values()))

    def _stamp(self) -> object:
        try:
            stat = self._file.path.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    async def _reconcile(self, desired: Desired) -> None:
        self._problems.clear()
        names = sorted(self._known | desired.nodes.keys())
        await asyncio.gather(*(self._bring(name, desired.nodes.get(name)) for name in names))
        up = {name: kubelet.healthy for name, (_, kubelet) in self._running.items()}
        states = {
            name: "stopped" if spec.stopped else "running" if up.get(name) else "broken: see the log"
            for name, spec in desired.nodes.items()
        }
        self._file.report(Observed(revision=desired.revision, nodes=states | self._problems))

    async def _bring(self, name: str, wanted: NodeSpec | None) -> None:
        try:
            if name in self._running and self._running[name][0] != wanted:
                _, kubelet = self._running.pop(name)
                await kubelet.stop()
            if wanted is None:
                await delete_node(self._kubeconfig, name)
                self._known.discard(name)
                return
            self._known.add(name)
            if wanted.stopped:
                await fall_silent(self._kubeconfig, name)
            elif name not in self._running:
                folder, hardware = self._directory / "nodes" / name, wanted.hardware
                kubelet = Kubelet(name=name, server=self._kubeconfig, directory=folder, hardware=hardware)
                await kubelet.start()
                self._running[name] = (wanted, kubelet)
                log.info("node %s is up", name)
        except (TestbedError, OSError) as error:
            log.warning("node %s: %s", name, error)
            self._problems[name] = str(error)


async def main(kubeconfig: Path, directory: Path) -> None:
    form = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level="INFO", stream=sys.stderr, format=form)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Host(kubeconfig=kubeconfig, directory=directory).run(stop)


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
