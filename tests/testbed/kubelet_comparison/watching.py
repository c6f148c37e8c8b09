"""A watch on pods, so that also what the API shows for a moment only is seen.

One connection in a thread, from now on until it is closed; what it saw is a list that only grows.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from testbed.controlplane import ControlPlane

Object = dict[str, Any]
END_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """`kind` is ADDED, MODIFIED or DELETED; `at` is when it came, in seconds of time.monotonic()."""

    kind: str
    pod: Object
    at: float


@contextmanager
def pods(plane: ControlPlane, *, namespace: str, selector: str) -> Iterator[list[Event]]:
    """Every event with its pod, as it comes, in a list that grows."""
    path = f"/api/v1/namespaces/{namespace}/pods?watch=1&labelSelector={quote(selector)}"
    address = urlsplit(plane.server)
    connection = http.client.HTTPSConnection(
        address.hostname or "",
        address.port,
        context=ssl.create_default_context(cafile=str(plane.ca_file)),
    )
    connection.request("GET", path, headers={"Authorization": f"Bearer {plane.admin_token}"})
    response = connection.getresponse()
    seen: list[Event] = []

    def read() -> None:
        with suppress(OSError, ValueError, AttributeError, http.client.HTTPException):  # it was closed
            while line := response.readline():
                event = json.loads(line)
                seen.append(Event(kind=event["type"], pod=event["object"], at=time.monotonic()))

    thread = threading.Thread(target=read, name="watch", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(2)
        thread.join(END_SECONDS)
        connection.close()
