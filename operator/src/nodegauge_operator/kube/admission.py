"""The admission policy of NodeReadings and its binding: read, never written."""

from __future__ import annotations

from typing import Any

from nodegauge_operator.core.reading_admission import NAME
from nodegauge_operator.kube.client import Client

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICY = f"{GROUP}/validatingadmissionpolicies/{NAME}"
BINDING = f"{GROUP}/validatingadmissionpolicybindings/{NAME}"


async def get(client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy and its binding.  `NotFound` if one is missing, `Forbidden` without the right."""
    return await client.call("GET", POLICY), await client.call("GET", BINDING)
