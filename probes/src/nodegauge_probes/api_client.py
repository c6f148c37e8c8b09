"""Writes this node's `NodeReading`: the one thing that a probe may do at the API server.

One connection, kept for a minute: a fault that comes and goes pays for one TLS handshake, and 5,000 calm
nodes hold no connection.  The object is patched, and created where there is none: a probe may neither get
nor list it. The response is asked for as metadata alone, or the API server would send back all that it was
sent.

`Refused` says whether a later try may help and when; whoever calls decides when to try.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

import msgspec
from msgspec import Struct, to_builtins

from nodegauge_contract.reading import API_VERSION, KIND, PLURAL, Part
from nodegauge_probes.identity import BadToken, Identity, Server, identity_of, read_token

TIMEOUT_S = 10.0
KEPT_S = 60.0
"""How long an idle connection is kept.  Chosen by this project: confirmations of a change come within it."""
MERGE, JSON = "application/merge-patch+json", "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MANAGER = "nodegauge-probe"
MOST_ANSWER = 64 * 1024
PATH = f"/apis/{API_VERSION}/{PLURAL}"
NO_ACCESS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
HINTS = {
    HTTPStatus.UNAUTHORIZED: "the token is of a pod that is gone, or expired",
    HTTPStatus.FORBIDDEN: "the probes' account may not write NodeReadings: upgrade the chart for RBAC",
    HTTPStatus.NOT_FOUND: "there is no CRD NodeReading: kubectl apply -f crds/nodereadings.yaml",
}
CLOSED = (ConnectionError, http.client.RemoteDisconnected, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What a connection raises that the server has closed, at the next request or its answer."""


class Refused(Exception):
    """The reading could not be written.  `retry_after`: seconds that the API server asks to wait, 0.0 if it
    does not; `final`: the same reading would be refused again."""

    def __init__(self, message: str, *, retry_after: float = 0.0, final: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.final = final


class _Status(Struct):
    message: str = ""


class ReadingClient:
    """Writes parts of this node's object.  Not for several threads at once."""

    def __init__(self, server: Server, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.server = server
        self._clock = clock
        self._connection: http.client.HTTPSConnection | None = None
        self._used_at = 0.0

    def identity(self) -> Identity:
        """Who writes.  Raises `BadToken`."""
        return identity_of(read_token(self.server.folder / "token"))

    def write(self, name: str, part: Part, *, timeout: float = TIMEOUT_S, dry_run: bool = False) -> None:
        """Replace one part of the node's object; `dry_run`: only try whether that would be taken, by the
        whole way that a write goes.  Raises `Refused`."""
        try:
            node = self.identity().node
        except BadToken as error:
            raise Refused(str(error)) from None
        query = f"?fieldManager={MANAGER}" + ("&dryRun=All" if dry_run else "")
        path, made_at, body = f"{PATH}/{quote(node)}{query}", f"{PATH}{query}", {name: to_builtins(part)}
        status, message, wait = self._call("PATCH", path, body, MERGE, timeout)
        if status == HTTPStatus.NOT_FOUND:
            made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": node}} | body
            status, message, wait = self._call("POST", made_at, made, JSON, timeout)
            if status == HTTPStatus.CONFLICT:  # made by another probe in between
                status, message, wait = self._call("PATCH", path, body, MERGE, timeout)
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            hint = HINTS.get(HTTPStatus(status)) if status in HINTS else None
            text = f"the API server answered {status}: {message}" + (f" ({hint})" if hint else "")
            final = status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, 422)
            raise Refused(text[:500], retry_after=wait, final=final)

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def close_idle(self) -> None:
        """Close a connection that has not been used for a minute."""
        if self._connection is not None and self._clock() - self._used_at >= KEPT_S:
            self.close()

    def _call(
        self, method: str, path: str, body: object, content: str, timeout: float
    ) -> tuple[int, str, float]:
        """Status, message and Retry-After of one answer.  Raises `Refused` without one."""
        data = msgspec.json.encode(body)
        self.close_idle()
        for fresh in (self._connection is None, True):
            try:
                return self._ask(method, path, data, content, timeout)
            except BadToken as error:
                raise Refused(str(error)) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A server may close a connection that was kept; it has not read this request then.
                if fresh or not isinstance(error, CLOSED):
                    where = f"{self.server.host}:{self.server.port}"
                    raise Refused(
                        f"no answer from the API server at {where}: {error or type(error).__name__}"
                    ) from None
        raise AssertionError("the second try ends")

    def _ask(
        self, method: str, path: str, data: bytes, content: str, timeout: float
    ) -> tuple[int, str, float]:
        token = read_token(self.server.folder / "token")
        connection = self._connected(timeout)
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": content,
            "Accept": f"{METADATA},{JSON}",
            "User-Agent": MANAGER,
        }
        connection.request(method, path, body=data, headers=headers)
        response = connection.getresponse()
        answer = response.read(MOST_ANSWER)
        self._used_at = self._clock()
        if response.will_close or response.read(1):
            self.close()
        wait = response.headers.get("Retry-After", "")
        return response.status, _message(answer), float(wait) if wait.isdecimal() else 0.0

    def _connected(self, timeout: float) -> http.client.HTTPSConnection:
        if self._connection is None:
            context = ssl.create_default_context(cafile=str(self.server.folder / "ca.crt"))
            self._connection = http.client.HTTPSConnection(
                self.server.host, self.server.port, timeout=timeout, context=context
            )
        self._connection.timeout = timeout
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        return self._connection


def _message(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Status).message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return answer[:200].decode("utf-8", "replace")
