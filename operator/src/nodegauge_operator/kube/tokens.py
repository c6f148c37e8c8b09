"""Whether the tokens of this API server name a pod's node, by which it is told whose reading a probe writes.
They do from Kubernetes 1.32 on (feature gate ServiceAccountTokenPodNodeInfo, stable)."""

from __future__ import annotations

from nodegauge_operator.core.reading_admission import EXTRA
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, NotFound, Refused

WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def nodeless(client: Client) -> str:
    """Why no reading can be proved here.  Empty if the operator's own token names its node, if it belongs to
    no pod (the operator runs outside), or if the API server does not say."""
    try:
        answer = await client.call("POST", WHO_AM_I, body={})
    except (Forbidden, NotFound, Refused):
        return ""
    extra = answer.get("status", {}).get("userInfo", {}).get("extra") or {}
    if f"{EXTRA}/pod-name" not in extra or f"{EXTRA}/node-name" in extra:
        return ""
    return (
        "This Kubernetes is too old: the token of a pod does not name its node, so no reading can be proved. "
        "Upgrade the cluster to 1.32 or newer."
    )
