"""A few plain calls to an API server, for the testbed itself and for tests that must not depend on ours.

JSON in and out, standard library only, no watches.  Reads of one thread share a connection, because tests
poll and a TLS handshake costs more than the read; a write has its own connection and is never sent twice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from testbed.errors import ApiError

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"
_Address = tuple[str, int, Path]


class Rest:
    """Calls to `server` (an https URL) with a bearer token; the certificate is always verified."""

    def __init__(self, server: str, *, ca_file: Path, token: str | None, timeout: float = 15.0) -> None:
        address = urlsplit(server)
        self._host = address.hostname or ""
        self._port = address.port or 443
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._address = self._host, self._port, ca_file
        self._token = token
        self._timeout = timeout

    def get(self, path: str) -> Object:
        """GET an object or a list."""
        return self.call("GET", path)

    def create(self, path: str, body: Object) -> Object:
        """POST to a collection or a subresource."""
        return self.call("POST", path, body=body)

    def patch(self, path: str, body: Object | list[Object], *, content_type: str = MERGE) -> Object:
        """PATCH; a merge patch unless `content_type` says otherwise."""
        return self.call("PATCH", path, body=body, content_type=content_type)

    def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE; `body` is a DeleteOptions."""
        return self.call("DELETE", path, body=body)

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Object | list[Object] | None = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """One request. ApiError for a status of 400 and above, OSError when there is no answer."""
        sent = {"Content-Type": content_type, **(headers or {})}
        status, data = self._exchange(method, path, body=body, headers=sent)
        try:
            answer: Object = json.loads(data)
        except ValueError:
            answer = {"message": data.decode("utf-8", errors="replace").strip()}
        if status >= 400:
            raise ApiError(status, reason=answer.get("reason", ""), message=answer.get("message", ""))
        return answer

    def _exchange(
        self, method: str, path: str, *, body: Object | list[Object] | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        sent = {"Accept": JSON, "User-Agent": "nodegauge-testbed", **headers}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        payload = None if body is None else json.dumps(body).encode()
        kept = _KEPT.connections().pop(self._address, None) if method == "GET" else None
        if kept is not None:
            with contextlib.suppress(
                OSError, http.client.HTTPException
            ):  # the server has closed it meanwhile
                return self._send(kept, method, path, body=payload, headers=sent)
        fresh = _Connection(self._host, self._port, context=self._context, timeout=self._timeout)
        try:
            return self._send(fresh, method, path, body=payload, headers=sent)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: no valid answer ({error!r})") from error

    def _send(
        self, connection: _Connection, method: str, path: str, *, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """One exchange; a connection that read something is kept for the thread's next read."""
        reusable = False
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            answer = response.status, response.read()
            reusable = method == "GET" and not response.will_close
        finally:
            if reusable:
                _KEPT.connections()[self._address] = connection
            else:
                connection.close()
        return answer


class _Connection(http.client.HTTPSConnection):
    """Closes its socket when the thread that kept it ends."""

    def __del__(self) -> None:
        self.close()


class _Kept(threading.local):
    """The open connections of one thread, by host, port and certificate file."""

    def connections(self) -> dict[_Address, _Connection]:
        result: dict[_Address, _Connection] = self.__dict__.setdefault("found", {})
        return result


_KEPT = _Kept()
