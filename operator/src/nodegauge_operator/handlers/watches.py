"""Watch events of nodes, probe pods and their DaemonSets, policies and reports: each goes into the cache and
wakes the sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from nodegauge_operator import names
from nodegauge_operator.api.report import parse_report
from nodegauge_operator.core import device_rule
from nodegauge_operator.core.devices import slice_view
from nodegauge_operator.core.model import chassis_view, node_view, pod_view
from nodegauge_operator.core.reading_view import reading_view
from nodegauge_operator.core.watch_pod import watch_view
from nodegauge_operator.reconcile.cache import version_of
from nodegauge_operator.reconcile.sweep import Sweep


def register(
    registry: kopf.OperatorRegistry,
    sweep: Sweep,
    *,
    bmc: bool = False,
    slices: bool = False,
    rules: str = "",
) -> None:
    """Bind every watch to one sweep; `bmc`: also that of what the BMC reader writes; `slices`: also that of
    ResourceSlices, and `rules`: that of DeviceTaintRules in this API version; not every API server serves
    them."""

    def is_deletion(event: kopf.RawEvent) -> bool:
        """Whether the object was deleted; an object of kopf's own list is reported to the sweep first."""
        if event["type"] is None:
            sweep.listed_by_watch(event["object"]["metadata"]["uid"])
        return event["type"] == "DELETED"

    @kopf.on.event("", "v1", "nodes", registry=registry, id="node")
    async def node(event: kopf.RawEvent, **_: Any) -> None:
        """A deletion is only a suspicion: behind a server-side selector a lost label looks the same."""
        deleted = is_deletion(event)
        view = node_view(event["object"])
        if deleted:
            sweep.cache.suspects.add(view.name)
        if deleted or sweep.cache.put_selected_node(view):
            sweep.wake(view.name)

    @kopf.on.event("", "v1", "pods", labels={names.POD_PROBE: kopf.PRESENT}, registry=registry, id="pod")
    async def pod(event: kopf.RawEvent, **_: Any) -> None:
        """A deleted pod is kept until its run has been judged: a preempted pod is soon gone."""
        deleted = is_deletion(event)
        if (resident := watch_view(event["object"], gone=deleted)) is not None:
            sweep.watch_pod_seen(resident)
            return
        view = pod_view(event["object"], gone=deleted)
        if view is None or (deleted and not sweep.cache.knows_pod(view)):
            return
        if sweep.cache.put_pod(view):
            sweep.pod_seen(view)

    @kopf.on.event(
        "apps", "v1", "daemonsets", labels={names.WATCH_SET: kopf.PRESENT}, registry=registry, id="watch-set"
    )
    async def watch_set(event: kopf.RawEvent, **_: Any) -> None:
        deleted = is_deletion(event)
        sweep.watch_set_seen(dict(event["object"]["metadata"]), deleted=deleted)

    @kopf.on.event(names.GROUP, names.VERSION, names.POLICY_PLURAL, registry=registry, id="policy")
    async def policy(event: kopf.RawEvent, **_: Any) -> None:
        deleted = is_deletion(event)
        body: dict[str, Any] = dict(event["object"])
        metadata = body["metadata"]
        if deleted:
            version = metadata.get("resourceVersion", "")
            changed = sweep.cache.drop_policy(metadata["name"], version=version)
        else:
            changed = sweep.cache.put_policy(body)
        sweep.policies_seen(changed=changed)

    @kopf.on.event(names.GROUP, names.VERSION, names.REPORT_PLURAL, registry=registry, id="report")
    async def report(event: kopf.RawEvent, **_: Any) -> None:
        """Somebody asked for a run, or removed a report; most often it is the echo of our own write."""
        deleted = is_deletion(event)
        metadata = event["object"]["metadata"]
        known, version = sweep.cache.reports.get(metadata["name"]), metadata.get("resourceVersion", "")
        if not deleted and known is not None and version_of(version) <= version_of(known.resource_version):
            return
        view = parse_report(event["object"])
        changed = sweep.cache.drop_report(view.name, view.uid) if deleted else sweep.cache.put_report(view)
        if changed:
            sweep.wake(view.name)

    @kopf.on.event(names.GROUP, names.VERSION, names.READING_PLURAL, registry=registry, id="reading")
    async def reading(event: kopf.RawEvent, **_: Any) -> None:
        """A list tells nothing of when its objects were written."""
        deleted = is_deletion(event)
        arrived = 0.0 if event["type"] is None else sweep.now()
        view = reading_view(event["object"], arrived=arrived)
        if deleted:
            sweep.cache.drop_reading(view.name, version=version_of(view.resource_version))
        elif sweep.cache.put_reading(view):
            if view.name in sweep.cache.nodes:
                sweep.reading_seen(view.name)
            else:  # of another installation, or of a node that is still to be seen
                sweep.cache.forget_documents(view.name, view.parts)

    if slices:
        _register_slices(registry, sweep, is_deletion)
    if rules:
        _register_rules(registry, sweep, is_deletion, api=rules)
    if not bmc:
        return

    @kopf.on.event(names.GROUP, names.VERSION, names.CHASSIS_PLURAL, registry=registry, id="chassis")
    async def chassis(event: kopf.RawEvent, **_: Any) -> None:
        """A reading whose object was deleted stays until it is stale."""
        deleted = is_deletion(event)
        view = chassis_view(event["object"])
        if deleted:
            sweep.cache.drop_chassis(view.name, version=version_of(view.resource_version))
        elif sweep.cache.put_chassis(view):
            sweep.wake(view.name)


def _register_slices(
    registry: kopf.OperatorRegistry, sweep: Sweep, is_deletion: Callable[[kopf.RawEvent], bool]
) -> None:
    group, _, version = names.DRA_API.partition("/")

    @kopf.on.event(group, version, names.SLICE_PLURAL, registry=registry, id="slice")
    async def device_slice(event: kopf.RawEvent, **_: Any) -> None:
        """The GPUs of a node that DRA hands out."""
        deleted = is_deletion(event)
        view = slice_view(event["object"])
        if view is None:
            return
        cache, at = sweep.cache, version_of(view.resource_version)
        changed = cache.drop_slice(view, version=at) if deleted else cache.put_slice(view)
        if changed:
            sweep.wake(view.node)


def _register_rules(
    registry: kopf.OperatorRegistry,
    sweep: Sweep,
    is_deletion: Callable[[kopf.RawEvent], bool],
    *,
    api: str,
) -> None:
    group, _, version = api.partition("/")
    labels = {names.DEVICE_RULE: kopf.PRESENT}

    @kopf.on.event(group, version, device_rule.PLURAL, labels=labels, registry=registry, id="device-rule")
    async def rule(event: kopf.RawEvent, **_: Any) -> None:
        """Somebody deleted or changed a rule of ours; most often it is the echo of our own write."""
        deleted = is_deletion(event)
        view = device_rule.parse(event["object"])
        if view is None:
            return
        if sweep.cache.drop_rule(view) if deleted else sweep.cache.put_rule(view):
            sweep.wake(view.node)
