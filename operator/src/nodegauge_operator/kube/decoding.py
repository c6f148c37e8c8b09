"""Decodes only the fields of a node, and of a pod that waits, that the operator reads.

A node is 20 KB of JSON, of which decisions need a tenth: its list of images alone is more than half.
Decoding all of it costs CPU time at each write, and with 500 nodes in a page tens of megabytes that the
process never returns.  The fields must be exactly those that `core.model.node_view` and
`core.waiting.waiting_pod` read; a test compares.
"""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

_OwnedLabels = TypedDict("_OwnedLabels", {"f:labels": dict[str, Any]}, total=False)
_OwnedFields = TypedDict("_OwnedFields", {"f:metadata": _OwnedLabels}, total=False)


class _ManagedFields(TypedDict, total=False):
    manager: str
    fieldsV1: _OwnedFields


_Annotations = TypedDict(
    "_Annotations",
    {
        "nodegauge.dev/override": str,
        "nodegauge.dev/override-until": str,
        "nodegauge.dev/override-by": str,
        "nodegauge.dev/override-reason": str,
    },
    total=False,
)
_Continue = TypedDict("_Continue", {"continue": str}, total=False)


class _Metadata(_Continue, total=False):
    name: str
    uid: str
    resourceVersion: str
    creationTimestamp: str
    deletionTimestamp: str
    labels: dict[str, str]
    annotations: _Annotations
    managedFields: list[_ManagedFields]


class _Taint(TypedDict, total=False):
    key: str
    value: str
    effect: str
    timeAdded: str


class _Spec(TypedDict, total=False):
    taints: list[_Taint]
    unschedulable: bool


class _Condition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str


class _NodeInfo(TypedDict, total=False):
    bootID: str


class _Status(TypedDict, total=False):
    capacity: dict[str, str]
    allocatable: dict[str, str]
    conditions: list[_Condition]
    nodeInfo: _NodeInfo


class _Node(TypedDict, total=False):
    metadata: _Metadata
    spec: _Spec
    status: _Status


class _NodeOrList(_Node, total=False):
    kind: str
    items: list[_Node]


class _Name(TypedDict, total=False):
    name: str
    uid: str
    resourceVersion: str


class _Named(TypedDict, total=False):
    metadata: _Name


class _Names(TypedDict, total=False):
    kind: str
    metadata: _Continue
    items: list[_Named]


_Labels = TypedDict("_Labels", {"nodegauge.dev/probe": str}, total=False)


class _PodMetadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    deletionTimestamp: str
    labels: _Labels


class _Resources(TypedDict, total=False):
    limits: dict[str, str | int | float]


class _Container(TypedDict, total=False):
    resources: _Resources


class _PodClaim(TypedDict, total=False):
    name: str
    resourceClaimName: str
    resourceClaimTemplateName: str


class _PodSpec(TypedDict, total=False):
    containers: list[_Container]
    initContainers: list[_Container]
    nodeSelector: dict[str, str]
    affinity: dict[str, Any]
    tolerations: list[dict[str, Any]]
    resourceClaims: list[_PodClaim]
    priority: int


class _PodStatus(TypedDict, total=False):
    conditions: list[_Condition]
    nominatedNodeName: str
    resourceClaimStatuses: list[_PodClaim]


class _Pod(TypedDict, total=False):
    metadata: _PodMetadata
    spec: _PodSpec
    status: _PodStatus


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(_Continue, total=False):
    resourceVersion: str


class _Pods(TypedDict, total=False):
    metadata: _Version
    items: list[_Pod]


_pods = msgspec.json.Decoder(_Pods)
_pod: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Pod)
_event = msgspec.json.Decoder(_Event)
_whole = msgspec.json.Decoder(dict[str, Any])
_node = msgspec.json.Decoder(_NodeOrList)
_names = msgspec.json.Decoder(_Names)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "nodes": _node,
    "nodes/status": _node,
    "metadata": _names,
    "waiting pods": _pods,
}


def decoded(data: bytes, *, resource: str) -> dict[str, Any]:
    """The object or list in an answer about a resource; only the fields that are read of nodes, and of a list
    of `metadata` alone.

    Raises `msgspec.MsgspecError` if it is no JSON object.  An answer of an unexpected shape is decoded
    in full, for the caller to judge.
    """
    try:
        answer: dict[str, Any] = _DECODERS.get(resource, _whole).decode(data)
    except msgspec.ValidationError:
        answer = _whole.decode(data)
    return answer


def decoded_pod_event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Type and object of an event of a pod watch; of a pod only the fields that are read.  Raises
    `msgspec.MsgspecError`."""
    event = _event.decode(line)
    try:
        pod: dict[str, Any] = _pod.decode(event.object)
    except msgspec.ValidationError:  # a Status, or a bookmark with `containers: null`
        pod = _whole.decode(event.object)
    return event.type, pod
