"""Watch events of nodes."""

from __future__ import annotations

from typing import Any

import kopf

from nodegauge_operator.core.model import node_view
from nodegauge_operator.reconcile.sweep import Sweep


def register(registry: kopf.OperatorRegistry, sweep: Sweep) -> None:
    """Feed node events into the sweep."""

    @kopf.on.event("", "v1", "nodes", registry=registry, id="node")
    async def node(event: kopf.RawEvent, **_: Any) -> None:
        """A deletion is only a suspicion: behind a server-side selector a lost label looks the same."""
        view = node_view(event["object"])
        if event["type"] is None:
            sweep.shown(view.uid)
        if event["type"] == "DELETED":
            sweep.store.suspects.add(view.name)
            sweep.wake(view.name)
        elif sweep.store.see_node(view):
            sweep.wake(view.name)
