"""Decodes only the fields of a node that the operator reads.

A node is 20 KB of JSON, of which decisions need a tenth: its list of images alone is more than half.
Decoding all of it costs CPU time at each write, and with 500 nodes in a page tens of megabytes that the
process never returns.  The fields must be exactly those that `core.model.node_view` reads; a test compares.
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


_whole = msgspec.json.Decoder(dict[str, Any])
_node = msgspec.json.Decoder(_NodeOrList)
_names = msgspec.json.Decoder(_Names)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {"nodes": _node, "nodes/status": _node, "metadata": _names}


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
