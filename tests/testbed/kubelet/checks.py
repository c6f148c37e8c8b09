"""Startup, readiness and liveness probes with httpGet, asked on the loopback interface; and their ports.

A check is a loop that reports changes of its answer; what follows from an answer (a condition, a restart) is
the container's business.  While a readiness or startup check has never succeeded it is asked at least every
second, so that `helm install --wait` does not sit through a period of ten.

A real pod has a network of its own, so two operators may both serve on 8080.  Here they share the loopback
interface: a container that takes its port from NODEGAUGE_HTTP_PORT is given a free port in that variable, and
its probes (and `ports.json` beside its log) use the new number.  Other ports are left as declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from testbed.kubelet.errors import NotSimulated
from testbed.loopback import reserve_port

Object = dict[str, Any]

KINDS = ("startupProbe", "readinessProbe", "livenessProbe")
PORT_VARIABLE = "NODEGAUGE_HTTP_PORT"


def refuse_unknown(container: Object) -> None:
    """NotSimulated when a probe uses a handler that is not known here (exec, grpc, tcpSocket)."""
    for kind in KINDS:
        if (check := container.get(kind)) and "httpGet" not in check:
            raise NotSimulated(f"{container['name']}: the simulated kubelet knows only httpGet {kind}s")


def move_port(env: dict[str, str]) -> dict[int, int]:
    """Replace the port in `env`; returns declared port to the port that is really used."""
    declared = env.get(PORT_VARIABLE, "")
    if not declared.isdigit():
        return {}
    port = reserve_port()
    env[PORT_VARIABLE] = str(port)
    return {int(declared): port}


class Check:
    """One probe of one container; `moved` as `move_port` has it."""

    def __init__(
        self, spec: Object, container: Object, *, moved: Mapping[int, int], http: aiohttp.ClientSession
    ) -> None:
        self._spec = spec
        self._http = http
        request = spec["httpGet"]
        named = {port.get("name"): port["containerPort"] for port in container.get("ports", [])}
        port = int(named.get(request["port"], request["port"]))
        self._url = f"http://127.0.0.1:{moved.get(port, port)}/{request.get('path', '/').lstrip('/')}"

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
