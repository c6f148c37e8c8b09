"""A watch, so that also what the API shows for a moment only is seen."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlencode

import urllib3

from testbed.controlplane import ControlPlane
from testbed.rest import Object, Rest


@dataclass(frozen=True, kw_only=True)
class Event:
    """`kind` is ADDED, MODIFIED or DELETED; `at` is when it came, in seconds of time.monotonic()."""

    kind: str
    body: Object
    at: float = 0.0


class Events(list[Event]):
    ended = False


@contextmanager
def watch(api: Rest, path: str, **query: str) -> Iterator[Events]:
    response = api.stream(f"{path}?{urlencode({'watch': '1', **query})}")
    seen = Events()

    def read() -> None:
        try:
            for line in response:
                event = json.loads(line)
                seen.append(Event(kind=event["type"], body=event["object"], at=time.monotonic()))
        except (OSError, ValueError, urllib3.exceptions.HTTPError):  # it was closed, here or there
            pass
        finally:
            seen.ended = True

    thread = threading.Thread(target=read, name="watch", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        # A TLS socket lets go of its TLS before its end: a quick reader sees nonsense and closes first.
        with suppress(OSError, RuntimeError, ValueError):  # it was closed there or given back
            response.shutdown()
        thread.join()
        response.close()


def pods(plane: ControlPlane, *, namespace: str, selector: str) -> AbstractContextManager[Events]:
    return watch(plane.rest(), f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
