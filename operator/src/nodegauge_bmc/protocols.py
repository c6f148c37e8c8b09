"""One way to read a BMC, whatever it speaks: the scheme of its address says which.

`https://` is Redfish, `ipmi://` is IPMI over LAN.  `auto://` is Redfish, and IPMI only where somebody answers
that there is no Redfish: never after a certificate that is not trusted, a refused password or silence, since
an attacker could bring those about to be asked by the weaker protocol.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from msgspec.structs import replace

from nodegauge_bmc import ipmi, redfish
from nodegauge_bmc.connection import Access, BmcError, NoRedfish
from nodegauge_bmc.redfish import DEADLINE
from nodegauge_contract.chassis import ChassisReading


async def read(access: Access, *, deadline: float = DEADLINE) -> ChassisReading:
    """Everything that the BMC gives within `deadline` seconds.  Raises `BmcError` if that is nothing."""
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
    address = f"[{host}]" if ":" in host else host
    return replace(access, url=f"ipmi://{address}", ca="", fingerprint="", insecure=False)
