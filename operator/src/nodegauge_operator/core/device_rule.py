"""A DeviceTaintRule as nodegauge writes it: one device, its taint, and why.

The API is `resource.k8s.io`, in whichever version the API server has it: v1, or v1beta2 where the cluster
enables it; all have the same fields here.  A rule is ours by its label and by our field manager; no other is
ever touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.desired_device import DesiredDevice, DeviceState
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.model import NodeView

KIND, PLURAL, GROUP = "DeviceTaintRule", "devicetaintrules", "resource.k8s.io"
_ANNOTATIONS = (
    names.RULE_NODE,
    names.RULE_NODE_UID,
    names.RULE_FINDING,
    names.RULE_UUID,
    names.RULE_SERIAL,
    names.RULE_SINCE,
)


class DeviceRule(Struct, frozen=True, kw_only=True):
    """A rule, as it stands or as it should."""

    name: str
    """Of the node and the device, the same on every try."""
    node: str
    """The node's name."""
    node_uid: str
    """Tells it from an earlier node of its name."""
    selector: tuple[str, str, str]
    """Driver, pool and name of the device."""
    taint: tuple[str, str, str]
    """Key, value and effect."""
    finding: str = ""
    """Code of the finding, which the NodeReport explains."""
    uuid: str = ""
    """Of the GPU."""
    serial: str = ""
    """Of the GPU; empty if unknown."""
    since: str = ""
    """When the fault was confirmed (RFC 3339)."""
    uid: str = ""
    """UID of the object; empty before it is made."""
    resource_version: str = ""
    """Version of the object that was read; empty before it is made."""

    def says(self, wanted: DeviceRule) -> bool:
        """Whether it is as wanted."""
        return replace(self, uid="", resource_version="") == replace(wanted, uid="", resource_version="")


def wanted(node: NodeView, status: ReportStatus) -> list[DeviceRule]:
    """The rules that this status asks for."""
    devices = status.desired.devices
    return [_rule(node, device) for device in devices if device.state is DeviceState.GATED and device.name]


def rule_name(node: str, device: DesiredDevice) -> str:
    """Each of a GPU's devices has its own; a renamed one gets another before the old one goes."""
    return names.device_rule_name(node=node, device=f"{device.uuid}/{device.pool}/{device.name}")


def body(rule: DeviceRule, *, api_version: str) -> dict[str, Any]:
    """The object; a merge patch too."""
    driver, pool, device = rule.selector
    key, value, effect = rule.taint
    texts = (rule.node, rule.node_uid, rule.finding, rule.uuid, rule.serial, rule.since)
    owner = {"apiVersion": "v1", "kind": "Node", "name": rule.node, "uid": rule.node_uid}
    version = {"resourceVersion": rule.resource_version} if rule.resource_version else {}
    return {
        "apiVersion": api_version,
        "kind": KIND,
        "metadata": version
        | {
            "name": rule.name,
            "labels": {names.DEVICE_RULE: "true"},
            "annotations": dict(zip(_ANNOTATIONS, texts, strict=True)),
            "ownerReferences": [owner],
        },
        "spec": {
            "deviceSelector": {"driver": driver, "pool": pool, "device": device},
            "taint": {"key": key, "value": value, "effect": effect},
        },
    }


def parse(raw: Mapping[str, Any]) -> DeviceRule | None:
    """A rule of ours; None for one of others."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    labelled = names.DEVICE_RULE in (metadata.get("labels") or {})
    managers = {entry.get("manager") for entry in metadata.get("managedFields") or ()}
    node = annotations.get(names.RULE_NODE, "")
    if not (labelled and node and names.FIELD_MANAGER in managers):
        return None
    selector, taint = spec.get("deviceSelector") or {}, spec.get("taint") or {}
    return DeviceRule(
        name=metadata["name"],
        node=node,
        node_uid=annotations.get(names.RULE_NODE_UID, ""),
        selector=(selector.get("driver", ""), selector.get("pool", ""), selector.get("device", "")),
        taint=(taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")),
        finding=annotations.get(names.RULE_FINDING, ""),
        uuid=annotations.get(names.RULE_UUID, ""),
        serial=annotations.get(names.RULE_SERIAL, ""),
        since=annotations.get(names.RULE_SINCE, ""),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
    )


def _rule(node: NodeView, device: DesiredDevice) -> DeviceRule:
    return DeviceRule(
        name=rule_name(node.name, device),
        node=node.name,
        node_uid=node.uid,
        selector=(device.driver, device.pool, device.name),
        taint=(device.key, device.cause, device.effect),
        finding=device.code,
        uuid=device.uuid,
        serial=device.serial,
        since=device.since,
    )
