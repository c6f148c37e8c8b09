"""One HTTPS connection to one BMC: TLS, login, bounded GETs, logout.

A BMC is slow, has few sessions, and is trusted with nothing: every answer is bounded, nothing is asked of
another host, whatever a redirect or an address in an answer says, and the user's password and token are in no
message, log or `repr`.  TLS is verified unless the caller says `insecure`; `http://` needs that too.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import ipaddress
import json
import ssl
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_bmc.refusals import Kind, Refusal, of_the_role, refusal

ROOT = "/redfish/v1/"
MAX_BODY = 4 * 1024 * 1024
"""Bytes of one answer.  A collection of 500 expanded sensors has about 1 MB."""
MAX_REQUESTS = 1500
"""GETs of one reading: four times what the largest recorded tree needs."""
AT_ONCE = 4
"""Requests in flight to one BMC.  Chosen by this project: BMCs answer from one slow core."""
RETRY_AFTER = 1.0
"""Seconds before the one retry of an answer 429, 502, 503 or 504, if the BMC names none."""
LONGEST_WAIT = 10.0
"""Seconds.  A BMC that asks for more is not tried again.  Chosen by this project: a sixth of the deadline."""
SESSIONS = ROOT + "SessionService/Sessions"
NO_ANSWER = "no answer within"
_BUSY = (429, 502, 503, 504)
_ADDRESSES = ("@odata.id", "Members@odata.nextLink", "DataSourceUri")
"""Members that hold addresses of resources."""


class BmcError(Exception):
    """A BMC that cannot be read at all; the message names the way out, and never a secret."""


class NoRedfish(BmcError):
    """Somebody answers at the address, and has no Redfish service."""


class Unreadable(Exception):
    """One resource that the BMC did not give; the text says why, in words for the command and the BMC reader.

    `way_out`: what helps if nothing else is read either.
    """

    def __init__(self, text: str, *, way_out: str = "") -> None:
        super().__init__(text)
        self.way_out = way_out


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
        self._secrets: tuple[str, ...] = (access.password,)
        self._session_path = ""
        self._login: Refusal | None = None
        """What the BMC answered at the login, if that was not all good."""
        self._worked = ""
        """A resource that only a logged-in user gets, and that was given."""
        self.requests = 0
        self.slowest = (0.0, "")
        """Seconds of the longest request, also one that was cut off, and its path."""

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
            way_out = f": {error.way_out}" if error.way_out else ""
            raise BmcError(f"no login to the BMC: {SESSIONS}: {error}{way_out}") from None
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
        path = own_path(path, origin=self._access.url)
        if self.requests >= MAX_REQUESTS:
            raise Unreadable(f"not asked: this reading already took {MAX_REQUESTS} requests")
        async with self._limit:
            status, headers, body = await self._again("GET", path)
            refused = None if status == 200 else self._refusal(status, headers, body)
            if refused and refused.kind is Kind.LOGIN and self._worked and await self._is_given(self._worked):
                refused = of_the_role(refused)  # the login is good, so that it is about this resource
        if refused is None:
            self._worked = self._worked or (path if path.rstrip("/") != ROOT.rstrip("/") else "")
            return _object(body, origin=self._access.url)
        if self._login is not None and self._login.kind is Kind.PASSWORD and status in (401, 403):
            refused = self._login
        if refused.kind is Kind.LOGIN:
            raise BmcError(self._logged_out(refused))
        if refused.kind is Kind.PASSWORD or (
            refused.kind in (Kind.SESSIONS, Kind.LOCKED) and not self._worked
        ):
            raise BmcError(f"the BMC gives nothing: {refused}")
        raise Unreadable(str(refused))

    async def _is_given(self, path: str) -> bool:
        return (await self._request("GET", path))[0] == 200

    async def _log_in(self) -> None:
        """A session where the BMC has sessions, else Basic authentication with every request."""
        if not self._access.user:
            return
        credentials = {"UserName": self._access.user, "Password": self._access.password}
        status, headers, body = await self._again("POST", SESSIONS, json=credentials)
        refused = self._refusal(status, headers, body)
        if status in (200, 201) and headers.get("X-Auth-Token"):
            self._headers = {"X-Auth-Token": headers["X-Auth-Token"]}
            self._secrets += (headers["X-Auth-Token"],)
            # The path alone counts, on the host that we ask: many BMCs name themselves otherwise than we do.
            self._session_path = urlsplit(urljoin(self._access.url, headers.get("Location", ""))).path
            self._login = refused if refused.by_message else None
            return
        if (
            refused.by_message
            and refused.kind is not Kind.LOGIN
            and not (refused.kind is Kind.ROLE and status == 401)
        ):
            raise BmcError(f"no login to the BMC: {refused}")
        if status in (400, 401, 403):
            raise BmcError(f"the BMC refuses {_credentials(refused)}")
        if refused.wait is not None or status == 429:
            raise BmcError(f"no login to the BMC: {refused}")
        login = base64.b64encode(f"{self._access.user}:{self._access.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"}
        self._secrets += (login,)
        self._login = refused

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> Refusal:
        return refusal(status, headers, body, secrets=self._secrets)

    def _logged_out(self, refused: Refusal) -> str:
        """What it means that the BMC wants a login."""
        if not self._access.user:
            way_out = f"give --user and --password-file{refused.quoted}"
            return f"the BMC wants the user to log in ({refused.named}): {way_out}"
        if "X-Auth-Token" in self._headers:
            return (
                "the BMC does not take its own session any more, or the user may not read "
                f"({refused.named}): try again, and check the user's role{refused.quoted}"
            )
        login = self._login
        before = (
            "" if login is None or login.status in (404, 405, 501) else f"; before, the login got: {login}"
        )
        return f"the BMC refuses {_credentials(refused)}{before}"

    async def _again(
        self, method: str, path: str, *, json: dict[str, str] | None = None
    ) -> tuple[int, Any, bytes]:
        """As `_request`, once more if the BMC is busy and does not ask to wait long."""
        status, headers, body = await self._request(method, path, json=json)
        if status in _BUSY:
            pause = max(RETRY_AFTER, self._refusal(status, headers, b"").wait or 0.0)
            if pause <= LONGEST_WAIT:
                await asyncio.sleep(pause)
                return await self._request(method, path, json=json)
        return status, headers, body

    async def _request(
        self, method: str, path: str, *, json: dict[str, str] | None = None
    ) -> tuple[int, Any, bytes]:
        """Status, headers and the bounded body; one redirect on the same host is followed."""
        assert self._client is not None
        url, clock = self._access.url + path, asyncio.get_running_loop().time
        for _ in range(2):
            self.requests += 1
            started = clock()
            try:
                async with self._client.request(
                    method, url, json=json, headers=self._headers, allow_redirects=False
                ) as response:
                    target = response.headers.get("Location", "")
                    if response.status in (301, 302, 307, 308) and target:
                        url = self._access.url + own_path(target, origin=self._access.url)
                        continue
                    return response.status, response.headers, await _bounded(response)
            except TimeoutError:
                text = f"{NO_ANSWER} {self._access.timeout:g} s"
                raise Unreadable(text, way_out="raise --deadline, or try again later") from None
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
                text = f"the answer broke off ({type(error).__name__})"
                raise Unreadable(text, way_out="try again; if it stays, restart the BMC") from None
            finally:
                self.slowest = max(self.slowest, (clock() - started, path))
        raise Unreadable("redirected twice")


def own_path(address: str, *, origin: str) -> str:
    """The path of an address on the BMC's own origin, also of an absolute one.  Raises `Unreadable` for one
    with another scheme, host or port: the session's token would go there."""
    if address.startswith("/") and not address.startswith("//"):
        return address
    try:
        target = urlsplit(urljoin(f"{origin}/", address))
        own = _origin(target) == _origin(urlsplit(origin)) and target.username is None
    except ValueError:
        raise Unreadable("its address is none") from None
    if not own:
        host = (target.hostname or "?")[:128]
        elsewhere = f"{target.scheme}://{host}" + (f":{target.port}" if target.port else "")
        raise Unreadable(
            f"it lies at {elsewhere}, and only the address that was given is asked: "
            "if that is this BMC too, give that one"
        )
    query = f"?{target.query}" if target.query else ""
    return (target.path or "/") + query + (f"#{target.fragment}" if target.fragment else "")


def _origin(parts: SplitResult) -> tuple[str, str, int | None]:
    """Scheme, host and port, in one spelling of each."""
    host = (parts.hostname or "").rstrip(".")
    with contextlib.suppress(ValueError):  # a name
        host = str(ipaddress.ip_address(host))
    return parts.scheme, host, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _credentials(refused: Refusal) -> str:
    """What is refused at a login, after the verb."""
    return f"the user or the password ({refused.named}): check --user and --password-file{refused.quoted}"


async def certificate(access: Access) -> str:
    """SHA-256 of the certificate that the BMC shows, in hex.  Nothing is sent to it.  Raises `BmcError`."""
    access = checked(access)
    address = urlsplit(access.url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(access.timeout):
            _, writer = await asyncio.open_connection(address.hostname, address.port or 443, ssl=context)
    except TimeoutError:
        raise BmcError(f"{NO_ANSWER} {access.timeout:g} s") from None
    except OSError as error:
        raise BmcError(f"no connection to {access.url}: {error}") from None
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    await asyncio.sleep(0)  # until the socket is closed
    return hashlib.sha256(shown).hexdigest()


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_BODY:
            raise Unreadable(f"more than {MAX_BODY // 1_048_576} MiB")
    return bytes(body)


def _object(body: bytes, *, origin: str) -> dict[str, Any]:
    """The resource, with absolute addresses on its own host as paths."""
    absolute = b"://" in body or b":\\/\\/" in body
    try:
        value = json.loads(body, object_hook=partial(_local, origin=origin) if absolute else None)
    except (ValueError, RecursionError):
        raise Unreadable("not JSON") from None
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    return value


def _local(resource: dict[str, Any], *, origin: str) -> dict[str, Any]:
    for name in _ADDRESSES:
        if isinstance(address := resource.get(name), str) and "://" in address:
            try:
                resource[name] = own_path(address, origin=origin)
            except Unreadable:
                continue  # it stays as it is, and is named when somebody asks for it
    return resource


def _untrusted(error: aiohttp.ClientConnectorCertificateError) -> str:
    reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
    return (
        f"the BMC's certificate is not trusted ({reason}): give its CA by --ca, pin it by --fingerprint "
        "SHA256, or switch verification off by --insecure"
    )
