"""Writes one pod's status to the API: the newest state, one patch at a time, over every interruption.

States that follow each other faster than the API answers are merged into one patch, as with a real kubelet;
the order is kept and the last one always arrives, unless the pod is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from testbed.errors import ApiError
from testbed.kubelet.api import Api, retry

Object = dict[str, Any]

log = logging.getLogger(__name__)


class StatusPublisher:
    """Publishes what `render()` returns whenever `touch()` was called."""

    def __init__(self, api: Api, *, path: str, uid: str, render: Callable[[], Object]) -> None:
        self._api = api
        self._path = path
        self._uid = uid
        self._render = render
        self._wanted = 0
        self._written = 0
        self._progress = asyncio.Event()
        self._last: Object | None = None
        self._touched = asyncio.Event()
        self.gone = False
        """The pod is not there any more (or another one has its name)."""

    def touch(self) -> None:
        """The state has changed."""
        self._wanted += 1
        self._touched.set()

    def abandon(self) -> None:
        """The pod is gone: write no more."""
        self.gone = True
        self._progress.set()
        self.touch()

    async def flush(self) -> None:
        """Wait until the present state is written, or the pod is gone."""
        target = self._wanted
        while not self.gone and self._written < target:
            self._progress.clear()
            await self._progress.wait()

    async def run(self) -> None:
        """Write until the pod is gone or the task is cancelled."""
        while not self.gone:
            await self._touched.wait()
            self._touched.clear()
            target = self._wanted
            rendered = self._render()
            if rendered != self._last and not self.gone:
                await self._write(rendered)
                self._last = rendered
            self._written = target
            self._progress.set()

    async def _write(self, rendered: Object) -> None:
        body = {"metadata": {"uid": self._uid}, "status": rendered}
        while True:
            try:
                await retry(lambda: self._api.patch(f"{self._path}/status", body))
                return
            except ApiError as error:
                if error.status == 409 and await self._same_pod():
                    continue  # somebody else wrote at the same time
                self.gone = error.status in (404, 409)
                if not self.gone:
                    log.error("status of %s refused: %s", self._path, error)
                return

    async def _same_pod(self) -> bool:
        try:
            result = await retry(lambda: self._api.get(self._path))
        except ApiError:
            return False
        return bool(result["metadata"]["uid"] == self._uid)
