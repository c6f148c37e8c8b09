"""Watch events of probe pods."""

from __future__ import annotations

from typing import Any

import kopf

from nodegauge_operator import names
from nodegauge_operator.core.model import pod_view
from nodegauge_operator.reconcile.sweep import Sweep


def register(registry: kopf.OperatorRegistry, sweep: Sweep) -> None:
    """Feed pod events into the sweep."""

    @kopf.on.event("", "v1", "pods", labels={names.POD_PROBE: kopf.PRESENT}, registry=registry, id="pod")
    async def pod(event: kopf.RawEvent, **_: Any) -> None:
        """A deleted pod is kept with its last words until judged: a preempted one is soon gone."""
        if event["type"] is None:
            sweep.shown(event["object"]["metadata"]["uid"])
        gone = event["type"] == "DELETED"
        view = pod_view(event["object"], gone=gone)
        if view is None or (gone and not sweep.store.knows_pod(view)):
            return
        if sweep.store.put_pod(view):
            sweep.pod_seen(view)
