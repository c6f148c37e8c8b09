"""Startup, readiness and liveness probes with httpGet, asked on the loopback interface; and their ports.

A check is a loop that reports changes of its answer; what follows from an answer (a condition, a restart) is
the container's business.  While a readiness or startup check has never succeeded it is asked at least every
second, so that `helm install --wait` does not sit through a period of ten.

A real pod has a network of its own, so two operators may both serve on 8080.  Here each has a loopback
address of its own, which a container that has NODEGAUGE_HTTP_PORT is told in NODEGAUGE_HTTP_HOST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from testbed.kubelet.errors import NotSimulated

Object = dict[str, Any]

KINDS = ("startupProbe", "readinessProbe", "livenessProbe")
PORT_VARIABLE, HOST_VARIABLE = "NODEGAUGE_HTTP_PORT", "NODEGAUGE_HTTP_HOST"


def refuse_unknown(container: Object) -> None:
    """NotSimulated when a probe uses a handler that is not known here (exec, grpc, tcpSocket)."""
    for kind in KINDS:
        if (check := container.get(kind)) and "httpGet" not in check:
            raise NotSimulated(f"{container['name']}: the simulated kubelet knows only httpGet {kind}s")


class Check:
    """One probe of one container, asked at the pod's address."""

    def __init__(self, spec: Object, container: Object, *, address: str, http: aiohttp.ClientSession) -> None:
        self._spec = spec
        self._http = http
        request = spec["httpGet"]
        named = {port.get("name"): port["containerPort"] for port in container.get("ports", [])}
        port = int(named.get(request["port"], request["port"]))
        self._url = f"http://{address}:{port}/{request.get('path', '/').lstrip('/')}"

    async def run(self, report: Callable[[bool], None], *, hurry: float | None = None) -> None:
        """Ask for ever and report each change, after its threshold; `hurry` caps the period until the first
        success."""
        period = float(self._spec.get("periodSeconds") or 10)
        needed = {
            True: int(self._spec.get("successThreshold") or 1),
            False: int(self._spec.get("failureThreshold") or 3),
        }
        await asyncio.sleep(float(self._spec.get("initialDelaySeconds") or 0))
        reported: bool | None = None
        last, streak = None, 0
        while True:
            good = await self._ask()
            streak = streak + 1 if good is last else 1
            last = good
            if streak >= needed[good] and good is not reported:
                reported = good
                report(good)
            await asyncio.sleep(period if reported or hurry is None else min(period, hurry))

    async def _ask(self) -> bool:
        try:
            async with (
                asyncio.timeout(float(self._spec.get("timeoutSeconds") or 1)),
                self._http.get(self._url) as response,
            ):
                return 200 <= response.status < 400
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
