"""Which Kubernetes this is, and whether nodegauge can work on it."""

from __future__ import annotations

import re

from nodegauge_operator.kube.client import Client

OLDEST = (1, 32)
"""From 1.32 on every bound token names the node of its pod (feature gate ServiceAccountTokenPodNodeInfo,
stable), by which the API server tells whose reading a probe writes."""


async def too_old(client: Client) -> str:
    """Why this API server is too old; empty if it is not, or does not say."""
    body = await client.call("GET", "/version")
    numbers = [re.match(r"\d+", str(body.get(part, ""))) for part in ("major", "minor")]
    version = tuple(int(number[0]) for number in numbers if number is not None)
    if len(version) != len(OLDEST) or version >= OLDEST:
        return ""
    return (
        f"Kubernetes {version[0]}.{version[1]} is too old: nodegauge needs {OLDEST[0]}.{OLDEST[1]} or newer, "
        "where the token of a probe names its node. Upgrade the cluster."
    )
