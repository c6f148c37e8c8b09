"""Watch events of NodeReports: somebody asks for a run, or removed one."""

from __future__ import annotations

from typing import Any

import kopf

from nodegauge_operator import names
from nodegauge_operator.api.report import parse_report
from nodegauge_operator.reconcile.sweep import Sweep


def register(registry: kopf.OperatorRegistry, sweep: Sweep) -> None:
    """Feed report events into the sweep."""

    @kopf.on.event(names.GROUP, names.VERSION, names.REPORT_PLURAL, registry=registry, id="report")
    async def report(event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] is None:
            sweep.shown(event["object"]["metadata"]["uid"])
        view = parse_report(event["object"])
        gone = event["type"] == "DELETED"
        changed = sweep.store.drop_report(view.name, view.uid) if gone else sweep.store.put_report(view)
        if changed:
            sweep.wake(view.name)
