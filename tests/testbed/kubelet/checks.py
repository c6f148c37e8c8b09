"""Startup, readiness and liveness probes: httpGet and tcpSocket, asked on the loopback interface.

A check is a loop that reports changes of its answer; what follows from an answer (a condition, a restart) is
the container's business.  While a readiness or startup check has never succeeded it is asked at least every
second, so that `helm install --wait` does not sit through a period of ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import aiohttp

from testbed.kubelet.errors import NotSimulated
from testbed.kubelet.ports import resolve_port

Object = dict[str, Any]

KINDS = ("startupProbe", "readinessProbe", "livenessProbe")
HANDLERS = frozenset({"httpGet", "tcpSocket"})


class Answer(Enum):
    """What a check has found, after its thresholds."""

    GOOD = "good"
    BAD = "bad"


def refuse_unknown(container: Object) -> None:
    """NotSimulated when a probe uses a handler that is not known here (exec, grpc)."""
    for kind in KINDS:
        if (check := container.get(kind)) and not HANDLERS & check.keys():
            raise NotSimulated(
                f"{container['name']}: the simulated kubelet knows only httpGet and tcpSocket {kind}s"
            )


class Check:
    """One probe of one container."""

    def __init__(
        self, spec: Object, container: Object, *, moved: Mapping[int, int], http: aiohttp.ClientSession
    ) -> None:
        self._spec = spec
        self._http = http
        handler = spec.get("httpGet") or spec["tcpSocket"]
        self._port = resolve_port(handler["port"], container, moved=dict(moved))
        self._timeout = float(spec.get("timeoutSeconds") or 1)

    async def run(self, report: Callable[[Answer], None], *, hurry: float | None = None) -> None:
        """Ask for ever and report each change; `hurry` caps the period until the first success."""
        period = float(self._spec.get("periodSeconds") or 10)
        needed = {
            Answer.GOOD: int(self._spec.get("successThreshold") or 1),
            Answer.BAD: int(self._spec.get("failureThreshold") or 3),
        }
        await asyncio.sleep(float(self._spec.get("initialDelaySeconds") or 0))
        reported: Answer | None = None
        last, streak = None, 0
        while True:
            answer = Answer.GOOD if await self._ask() else Answer.BAD
            streak = streak + 1 if answer is last else 1
            last = answer
            if streak >= needed[answer] and answer is not reported:
                reported = answer
                report(answer)
            waiting = hurry is not None and reported is not Answer.GOOD
            await asyncio.sleep(min(period, hurry) if waiting and hurry is not None else period)

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout):
                return await (self._get() if "httpGet" in self._spec else self._connect())
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _get(self) -> bool:
        request = self._spec["httpGet"]
        scheme = request.get("scheme", "HTTP").lower()
        headers = {item["name"]: item["value"] for item in request.get("httpHeaders", [])}
        url = f"{scheme}://127.0.0.1:{self._port}/{request.get('path', '/').lstrip('/')}"
        async with self._http.get(url, headers=headers, ssl=False) as response:
            return 200 <= response.status < 400

    async def _connect(self) -> bool:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.close()
        return True
