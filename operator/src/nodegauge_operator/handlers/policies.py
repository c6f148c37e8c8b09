"""Watch events of GPUValidationPolicies."""

from __future__ import annotations

from typing import Any

import kopf

from nodegauge_operator import names
from nodegauge_operator.reconcile.resync import drop_policy, take_policy
from nodegauge_operator.reconcile.sweep import Sweep


def register(registry: kopf.OperatorRegistry, sweep: Sweep) -> None:
    """Feed policy events into the sweep."""

    @kopf.on.event(names.GROUP, names.VERSION, names.POLICY_PLURAL, registry=registry, id="policy")
    async def policy(event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] is None:
            sweep.shown(event["object"]["metadata"]["uid"])
        body: dict[str, Any] = dict(event["object"])
        if event["type"] == "DELETED":
            metadata = body["metadata"]
            changed = drop_policy(sweep.store, metadata["name"], version=metadata.get("resourceVersion", ""))
        else:
            changed = take_policy(sweep.store, body)
        sweep.policies_seen(changed=changed)
