"""Ports of pods that share one network: each container's NODEGAUGE_HTTP_PORT becomes a free one.

A real pod has a network of its own, so two operators may both serve on 8080.  Here they share the loopback
interface.  A container that takes its port from NODEGAUGE_HTTP_PORT is given a free port in that variable,
and its probes (and `ports.json` beside its log) use the new number.  Other ports are left as declared.
"""

from __future__ import annotations

import socket
from typing import Any

PORT_VARIABLE = "NODEGAUGE_HTTP_PORT"

Object = dict[str, Any]


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def move_port(env: dict[str, str]) -> dict[int, int]:
    """Replace the port in `env`; returns declared port to the port that is really used."""
    declared = env.get(PORT_VARIABLE, "")
    if not declared.isdigit():
        return {}
    port = free_port()
    env[PORT_VARIABLE] = str(port)
    return {int(declared): port}


def resolve_port(wanted: int | str, container: Object, *, moved: dict[int, int]) -> int:
    """The port that a probe means, by number or by name; KeyError for a name that is not declared."""
    if isinstance(wanted, str) and not wanted.isdigit():
        named = {port.get("name"): port["containerPort"] for port in container.get("ports", [])}
        wanted = named[wanted]
    return moved.get(int(wanted), int(wanted))
