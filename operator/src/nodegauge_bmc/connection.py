"""One HTTPS connection to one BMC: TLS, login, bounded GETs, logout.

A BMC is slow, has few sessions, and is trusted with nothing: every answer is bounded, a redirect stays on
the same host, and the user's password and token are in no message, log or `repr`.  TLS is verified unless
the caller says `insecure`; `http://` needs that too.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import ssl
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

ROOT = "/redfish/v1/"
MAX_BODY = 4 * 1024 * 1024
"""Bytes of one answer.  A collection of 500 expanded sensors has about 1 MB."""
MAX_REQUESTS = 1500
"""GETs of one reading: four times what the largest recorded tree needs."""
AT_ONCE = 4
"""Requests in flight to one BMC.  Chosen by this project: BMCs answer from one slow core."""
RETRY_AFTER = 1.0
"""Seconds before the one retry of an answer 429, 502, 503 or 504."""
_BUSY = (429, 502, 503, 504)


class BmcError(Exception):
    """A BMC that cannot be read at all; the message names the way out, and never a secret."""


class NoRedfish(BmcError):
    """Somebody answers at the address, and has no Redfish service."""


class Unreadable(Exception):
    """One resource that the BMC did not give; the text says why."""


class Access(Struct, frozen=True, kw_only=True):
    """How to reach a BMC.

    `ca`: path of a CA bundle; `fingerprint`: the certificate's SHA-256 in hex, for one that signed itself;
    `insecure`: no verification.  At most one of the three.  `timeout`: seconds for one request.
    """

    url: str
    user: str = ""
    password: str = ""
    ca: str = ""
    fingerprint: str = ""
    insecure: bool = False
    timeout: float = 10.0

    def __repr__(self) -> str:
        return f"Access(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """What rich prints of it."""
        return [("url", self.url)]


def checked(access: Access) -> Access:
    """The access with a bare origin as its URL.  Raises `BmcError` for one that cannot be used."""
    text = access.url if "://" in access.url else f"https://{access.url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BmcError(
            f"the address of the BMC is no URL ({error}): write https://HOST or https://HOST:PORT"
        ) from None
    if parts.username or parts.password:
        raise BmcError("the address contains a user or a password: give them by --user and --password-file")
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise BmcError("the address of the BMC is no URL of https: write https://HOST or https://HOST:PORT")
    if parts.scheme == "http" and not access.insecure:
        raise BmcError("http:// would send the password in the clear: use https://, or say --insecure")
    if sum((bool(access.ca), bool(access.fingerprint), access.insecure)) > 1:
        raise BmcError("--ca, --fingerprint and --insecure exclude each other: choose one")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return replace(access, url=f"{parts.scheme}://{host}" + (f":{port}" if port else ""))


def _trust(access: Access) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
    """What aiohttp verifies the certificate by."""
    if access.insecure:
        return False
    if access.fingerprint:
        try:
            return aiohttp.Fingerprint(binascii.unhexlify(access.fingerprint.replace(":", "").strip()))
        except ValueError:
            raise BmcError(
                "--fingerprint must be the SHA-256 of the certificate, 64 hex digits: "
                "`openssl x509 -in cert.pem -noout -fingerprint -sha256`"
            ) from None
    try:
        stat = Path(access.ca).stat() if access.ca else None
        return _context(access.ca, (stat.st_mtime_ns, stat.st_ino) if stat else ())
    except (OSError, ssl.SSLError) as error:
        raise BmcError(f"--ca {access.ca}: not a readable CA bundle ({error})") from None


@lru_cache(maxsize=64)
def _context(ca: str, version: tuple[int, ...]) -> ssl.SSLContext:
    """What a CA bundle, or the system's, verifies; loading it costs 20 ms, as much as a whole handshake.
    `version` changes with the file."""
    return ssl.create_default_context(cafile=ca or None)


class Connection:
    """An open session with a BMC; use it as an async context manager."""

    def __init__(self, access: Access) -> None:
        self._access = checked(access)
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._client: aiohttp.ClientSession | None = None
        self._headers: dict[str, str] = {}
        self._session_path = ""
        self.requests = 0

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=_trust(self._access), limit=AT_ONCE)
        self._client = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._access.timeout),
            headers={"Accept": "application/json", "OData-Version": "4.0"},
        )
        try:
            await self._log_in()
        except Unreadable as error:
            await self._client.close()
            raise BmcError(f"no login to the BMC ({error}): restart the BMC, or try again later") from None
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        try:
            if self._session_path:
                await self._request("DELETE", self._session_path)
        except (BmcError, Unreadable):
            pass  # the BMC ends idle sessions itself
        finally:
            await self._client.close()

    async def get(self, path: str) -> dict[str, Any]:
        """The resource at `path`.  Raises `Unreadable` if the BMC does not give it, `BmcError` if nothing
        more can be read."""
        if self.requests >= MAX_REQUESTS:
            raise Unreadable(f"not asked: this reading already took {MAX_REQUESTS} requests")
        async with self._limit:
            status, _, body = await self._request("GET", path)
            if status in _BUSY:
                await asyncio.sleep(RETRY_AFTER)
                status, _, body = await self._request("GET", path)
        if status == 401:
            raise BmcError("the BMC refuses the user or the password (401): check --user and --password-file")
        if status != 200:
            raise Unreadable(f"HTTP status {status}")
        return _object(body)

    async def _log_in(self) -> None:
        """A session where the BMC has sessions, else Basic authentication with every request."""
        if not self._access.user:
            return
        credentials = {"UserName": self._access.user, "Password": self._access.password}
        path = ROOT + "SessionService/Sessions"
        status, headers, _ = await self._request("POST", path, json=credentials)
        if status in (200, 201) and headers.get("X-Auth-Token"):
            self._headers = {"X-Auth-Token": headers["X-Auth-Token"]}
            self._session_path = self._local(headers.get("Location", ""))
        elif status in (400, 401, 403):
            raise BmcError(
                f"the BMC refuses the user or the password ({status}): check --user and --password-file"
            )
        else:
            login = f"{self._access.user}:{self._access.password}".encode()
            self._headers = {"Authorization": f"Basic {base64.b64encode(login).decode()}"}

    async def _request(
        self, method: str, path: str, *, json: dict[str, str] | None = None
    ) -> tuple[int, Any, bytes]:
        """Status, headers and the bounded body; one redirect on the same host is followed."""
        assert self._client is not None
        url = self._access.url + path
        for _ in range(2):
            self.requests += 1
            try:
                async with self._client.request(
                    method, url, json=json, headers=self._headers, allow_redirects=False
                ) as response:
                    target = self._local(response.headers.get("Location", ""))
                    if response.status in (301, 302, 307, 308) and target:
                        url = self._access.url + target
                        continue
                    return response.status, response.headers, await _bounded(response)
            except TimeoutError:
                raise Unreadable(f"no answer within {self._access.timeout:g} s") from None
            except aiohttp.ServerFingerprintMismatch as error:
                raise BmcError(
                    f"the certificate's fingerprint is {error.got.hex()}, and --fingerprint pins another: "
                    "a renewed certificate, or somebody in between"
                ) from None
            except aiohttp.ClientConnectorCertificateError as error:
                raise BmcError(_untrusted(error)) from None
            except aiohttp.ClientConnectorError as error:
                closed = isinstance(error.os_error, ConnectionRefusedError)
                raise (NoRedfish if closed else BmcError)(
                    f"no connection to {self._access.url}: {error.os_error}"
                ) from None
            except aiohttp.ClientError as error:
                raise Unreadable(f"the answer broke off ({type(error).__name__})") from None
        raise Unreadable("redirected twice")

    def _local(self, location: str) -> str:
        """The path of a location on this host; empty for any other."""
        absolute = urlsplit(urljoin(self._access.url, location)) if location else None
        if absolute is None or f"{absolute.scheme}://{absolute.netloc}" != self._access.url:
            return ""
        return absolute.path + (f"?{absolute.query}" if absolute.query else "")


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_BODY:
            raise Unreadable(f"more than {MAX_BODY // 1_048_576} MiB")
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Unreadable("not JSON") from None
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    return value


def _untrusted(error: aiohttp.ClientConnectorCertificateError) -> str:
    reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
    return (
        f"the BMC's certificate is not trusted ({reason}): give its CA by --ca, pin it by --fingerprint "
        "SHA256, or switch verification off by --insecure"
    )
