"""One way to read a BMC, whatever it speaks: the scheme of its address says which.

`https://` is Redfish, `ipmi://` is IPMI over LAN.  `auto://` is Redfish, and IPMI only where somebody answers
that there is no Redfish: never after a certificate that is not trusted, a refused password or silence, since
an attacker could bring those about to be asked by the weaker protocol.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from msgspec.structs import replace

from nodegauge_bmc import connection, ipmi, lan, redfish
from nodegauge_bmc.connection import Access, BmcError, NoRedfish
from nodegauge_bmc.redfish import DEADLINE
from nodegauge_contract.chassis import ChassisReading


def checked(access: Access) -> Access:
    """The access with a bare origin as its URL.  Raises `BmcError` for one that cannot be used."""
    scheme, separator, rest = access.url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("ipmi", "auto"):
        return connection.checked(access)
    if scheme == "ipmi":
        host, port = lan.address(replace(access, url=f"ipmi://{rest}"))
        return replace(access, url=_origin(host, None if port == lan.PORT else port))
    https = connection.checked(replace(access, url=f"https://{rest}"))
    lan.address(_by_ipmi(https))
    return replace(https, url=https.url.replace("https", "auto", 1))


async def read(access: Access, *, deadline: float = DEADLINE) -> ChassisReading:
    """Everything that the BMC gives within `deadline` seconds.  Raises `BmcError` if that is nothing."""
    access = checked(access)
    scheme, _, rest = access.url.partition("://")
    if scheme == "ipmi":
        return await ipmi.read(access, deadline=deadline)
    if scheme != "auto":
        return await redfish.read(access, deadline=deadline)
    start = time.monotonic()
    try:
        return await redfish.read(replace(access, url=f"https://{rest}"), deadline=deadline)
    except NoRedfish as error:
        left = deadline - (time.monotonic() - start)
        try:
            return await ipmi.read(_by_ipmi(access), deadline=left)
        except BmcError as second:
            raise BmcError(f"Redfish: {error}; IPMI: {second}") from None


def _by_ipmi(access: Access) -> Access:
    """The same BMC at IPMI's own port; TLS has no part in it."""
    host = urlsplit(access.url).hostname or ""
    return replace(access, url=_origin(host, None), ca="", fingerprint="", insecure=False)


def _origin(host: str, port: int | None) -> str:
    address = f"[{host}]" if ":" in host else host
    return f"ipmi://{address}" + (f":{port}" if port else "")
