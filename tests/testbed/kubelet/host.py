"""Many kubelets in one process, following the file of nodes that should be.

`python -m testbed.kubelet.host KUBECONFIG DIRECTORY` runs until SIGTERM.  It starts and stops nodes;
it decides nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

from testbed.errors import TestbedError
from testbed.kubelet.agent import Kubelet
from testbed.kubelet.desired import Desired, DesiredFile, NodeSpec, Observed
from testbed.kubelet.node import delete_node

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""How often the file is looked at: one stat(2)."""
RETRY_SECONDS = 1.0
"""Pause before a node that could not be started is tried again."""


class Host:
    """Keeps the running kubelets equal to the file."""

    def __init__(self, *, kubeconfig: Path, directory: Path) -> None:
        self._kubeconfig = kubeconfig
        self._directory = directory
        self._file = DesiredFile(directory)
        self._running: dict[str, tuple[NodeSpec, Kubelet]] = {}
        self._known: set[str] = set()
        self._problems: dict[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the file until `stop`; then every container is killed."""
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
        states = {name: self._state(name) for name in desired.nodes}
        self._file.report(Observed(revision=desired.revision, nodes=states))

    def _state(self, name: str) -> str:
        if name in self._problems:
            return self._problems[name]
        return "running" if self._running[name][1].healthy else "broken: see the log"

    async def _bring(self, name: str, wanted: NodeSpec | None) -> None:
        """Make one node what it should be; a failure is noted and tried again."""
        try:
            if name in self._running and self._running[name][0] != wanted:
                _, kubelet = self._running.pop(name)
                await kubelet.stop()
            if wanted is None:
                await delete_node(self._kubeconfig, name)
                self._known.discard(name)
                return
            self._known.add(name)
            if name not in self._running:
                await self._start(name, wanted)
        except (TestbedError, OSError) as error:
            log.warning("node %s: %s", name, error)
            self._problems[name] = str(error)

    async def _start(self, name: str, wanted: NodeSpec) -> None:
        folder, hardware = self._directory / "nodes" / name, wanted.hardware
        kubelet = Kubelet(name=name, server=self._kubeconfig, directory=folder, hardware=hardware)
        await kubelet.start()
        self._running[name] = (wanted, kubelet)
        log.info("node %s is up", name)


async def serve(*, kubeconfig: Path, directory: Path) -> None:
    """Run a host until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Host(kubeconfig=kubeconfig, directory=directory).run(stop)


def main() -> None:
    """The host as a program."""
    form = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level="INFO", stream=sys.stderr, format=form)
    kubeconfig, directory = map(Path, sys.argv[1:])
    asyncio.run(serve(kubeconfig=kubeconfig, directory=directory))


if __name__ == "__main__":
    main()
