"""What is not decoded of a node is not read either: both ways of reading it give the same view."""

from __future__ import annotations

from typing import Any

import msgspec

from nodegauge_operator.core.model import node_view
from nodegauge_operator.kube import nodes
from nodegauge_operator.kube.client import MERGE, Client
from nodegauge_operator.kube.decoding import decoded
from support.virtual_time import drive

NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "node-1",
        "uid": "uid-1",
        "resourceVersion": "17",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        "deletionTimestamp": "2026-11-21T10:00:00Z",
        "labels": {"interconnect": "nvlink", "other": "x"},
        "annotations": {
            "other": "y",
            "nodegauge.dev/override": "healthy",
            "nodegauge.dev/override-until": "2026-11-22T10:00:00Z",
            "nodegauge.dev/override-by": "ann",
            "nodegauge.dev/override-reason": "fan replaced",
        },
        "managedFields": [
            {"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {"f:other": {}}}}},
            {
                "manager": "nodegauge",
                "operation": "Update",
                "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:interconnect": {}}, "f:x": {}}},
            },
        ],
    },
    "spec": {
        "providerID": "x",
        "unschedulable": True,
        "taints": [
            {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"},
            {
                "key": "node.kubernetes.io/unreachable",
                "value": "yes",
                "effect": "NoExecute",
                "timeAdded": "2026-11-21T03:00:00Z",
            },
        ],
    },
    "status": {
        "capacity": {"cpu": "8", "nvidia.com/gpu": "8"},
        "allocatable": {"cpu": "7", "nvidia.com/gpu": "7"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "lastTransitionTime": "2026-11-21T03:00:00Z",
            },
            {"type": "GPUValidated", "status": "True", "reason": "Validated", "message": "all well"},
        ],
        "nodeInfo": {"bootID": "boot-1", "kernelVersion": "6.8"},
        "images": [{"names": ["a", "b"], "sizeBytes": 1}],
    },
}


def test_a_node_reads_the_same_from_the_few_fields_that_are_decoded() -> None:
    """Every field of the view differs from its default here, and comes through."""
    view = node_view(decoded(msgspec.json.encode(NODE), resource="nodes"))
    assert view == node_view(NODE)
    defaults = node_view({"metadata": {"name": ""}})
    same = [field for field in view.__struct_fields__ if getattr(view, field) == getattr(defaults, field)]
    assert same == [], "give these fields of the view a value in NODE, so that the comparison sees them"


def test_a_taint_is_written_as_it_was_read() -> None:
    """All that v1.Taint has comes back: the list is replaced whole, and nothing else remembers it."""
    view = node_view(decoded(msgspec.json.encode(NODE), resource="nodes"))
    sent: list[Any] = []

    class Recorder(Client):
        def __init__(self) -> None:
            pass

        async def call(self, method: str, path: str, **how: Any) -> dict[str, Any]:
            sent.append((method, path, how["content_type"], how["body"]))
            return NODE

    drive(nodes.patch(Recorder(), view, labels={}, taints=view.taints))
    drive(nodes.patch(Recorder(), view, labels={"a": None}))
    drive(nodes.patch(Recorder(), view, labels={}, taints=()))
    identity = {"resourceVersion": view.resource_version, "uid": view.uid}
    assert sent == [
        ("PATCH", f"/api/v1/nodes/{view.name}", MERGE, body)
        for body in (
            {"metadata": identity, "spec": {"taints": NODE["spec"]["taints"]}},
            {"metadata": identity | {"labels": {"a": None}}},
            {"metadata": identity, "spec": {"taints": []}},
        )
    ]


def test_the_rest_of_a_node_is_not_decoded() -> None:
    """Images and annotations of others, the bulk of a node, never become objects."""
    answer = decoded(msgspec.json.encode(NODE), resource="nodes/status")
    assert "images" not in answer["status"]
    assert "other" not in answer["metadata"]["annotations"]


def test_a_list_of_nodes_keeps_its_pages() -> None:
    """The mark where the next page begins comes through with the trimmed items."""
    page = {"kind": "NodeList", "metadata": {"continue": "next"}, "items": [NODE, NODE]}
    answer = decoded(msgspec.json.encode(page), resource="nodes")
    assert answer["metadata"]["continue"] == "next"
    assert [node_view(item) for item in answer["items"]] == [node_view(NODE)] * 2


def test_an_unexpected_shape_is_decoded_in_full() -> None:
    """A null where a text is expected loses nothing."""
    odd = NODE | {"metadata": NODE["metadata"] | {"deletionTimestamp": None}}
    assert decoded(msgspec.json.encode(odd), resource="nodes") == odd


def test_other_resources_are_decoded_in_full() -> None:
    """Only what is large is trimmed."""
    pod = {"kind": "Pod", "metadata": {"name": "p", "annotations": {"a": "b"}}}
    assert decoded(msgspec.json.encode(pod), resource="pods") == pod


def test_of_metadata_alone_only_the_identity_is_decoded() -> None:
    """Labels and managedFields, the bulk of it, never become objects; pages follow each other."""
    page = {"metadata": {"continue": "next"}, "items": [{"metadata": NODE["metadata"]}]}
    answer = decoded(msgspec.json.encode(page), resource="metadata")
    assert answer["metadata"]["continue"] == "next"
    (item,) = answer["items"]
    assert item["metadata"].keys() <= {"name", "uid", "resourceVersion"}
    assert item["metadata"]["name"] == NODE["metadata"]["name"]
