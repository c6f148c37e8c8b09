"""`nodegauge why POD`: what of nodegauge's keeps a pod from which nodes, and what is not nodegauge's."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli.__main__ import main
from nodegauge_cli.cluster import NODES, POLICIES, REPORTS
from nodegauge_cli.output import WIDTH
from nodegauge_cli.pod_fit import Candidate, barriers, wish_of
from support import explained
from support.kubectl import FakeKubectl, body_of, policy_body
from support.objects import taint

PODS = "/api/v1/namespaces/ml/pods"
LINKS = {"key": "nodegauge.dev/interconnect", "operator": "In", "values": ["nvlink"]}
FAST = {"key": "nodegauge.dev/nvlink-gbps", "operator": "Gt", "values": ["400"]}
ANYWHERE = {"tolerations": [{"operator": "Exists"}]}
XID = "nodegauge.dev/unhealthy=xid:NoSchedule"
TRAIN = {"key": "pool", "operator": "Exists"}


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def asking(gpus: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}


def pod(*, phase: str = "Pending", **spec: Any) -> dict[str, Any]:
    waits = {"type": "PodScheduled", "reason": "Unschedulable", "message": "no"}
    return {
        "metadata": {"name": "train-0", "namespace": "ml"},
        "spec": {"containers": [asking(8)]} | spec,
        "status": {"phase": phase, "conditions": [waits]},
    }


@pytest.mark.parametrize(
    ("spec", "kept_by"),
    [
        ({}, [XID, "team=a:NoExecute", "cordoned"]),
        (ANYWHERE, []),
        ({"tolerations": [{"key": "team", "value": "a"}]}, [XID, "cordoned"]),
        ({"tolerations": [{"key": "team", "value": "b"}]}, [XID, "team=a:NoExecute", "cordoned"]),
        ({"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}, [XID, "cordoned"]),
        (ANYWHERE | {"nodeSelector": {"pool": "x"}}, ["pool=x"]),
        (ANYWHERE | affinity([TRAIN, LINKS], [FAST]), []),
        (ANYWHERE | affinity([FAST | {"values": ["450"]}]), ["nodegauge.dev/nvlink-gbps>450"]),
        (ANYWHERE | {"initContainers": [asking(9)]}, ["fewer than 9 allocatable GPUs"]),
    ],
)
def test_a_pod_is_kept_away_as_the_scheduler_would(spec: dict[str, Any], kept_by: list[str]) -> None:
    taints = [taint("nodegauge.dev/unhealthy=xid"), taint("team=a:NoExecute"), taint("soft:PreferNoSchedule")]
    node = Candidate(
        name="gpu-1",
        labels={"nodegauge.dev/nvlink-gbps": "450", "pool": "train"},
        taints=taints,
        whole=True,
        unschedulable=True,
        gpus=8,
    )
    kept = barriers(wish_of(pod(**spec)), node, short_keys=("interconnect",))
    assert [barrier.text for barrier in kept] == kept_by
    assert [barrier.ours for barrier in kept] == [text.startswith("nodegauge.dev/") for text in kept_by]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """Nodes that a pod for NVLink could want: one that does, and one for each reason why not."""
    fake = FakeKubectl(tmp_path, monkeypatch)
    reports = {"calm": explained.healthy, "broken": explained.corrupting, "unread": explained.never_read}
    bodies = {name: body_of(make()) for name, make in reports.items()}
    for name, body in bodies.items():
        body["metadata"] |= {"name": name, "ownerReferences": [{"kind": "Node", "uid": name}]}
    fake.serve(REPORTS, bodies.values())
    fake.serve(POLICIES, [policy_body(nodeSelector={"matchLabels": {"pool": "train"}})])
    stands = {name: body["status"]["desired"] for name, body in bodies.items()}
    stands["others"] = {"taints": [{"key": "x", "effect": "NoSchedule"}], "labels": {}}
    gpus = {kind: {"nvidia.com/gpu": "8"} for kind in ("allocatable", "capacity")}
    nodes = [
        {
            "metadata": {"name": name, "uid": name, "labels": desired["labels"]},
            "spec": {"taints": desired["taints"]},
            "status": gpus,
        }
        for name, desired in stands.items()
    ]
    fake.serve(NODES, nodes)
    fake.serve(PODS, [pod(**affinity([LINKS]))])
    return fake


def test_it_tells_what_nodegauge_does_from_what_others_do(kubectl: FakeKubectl) -> None:
    text = CliRunner().invoke(main, ["why", "train-0", "-n", "ml"]).output
    for line in (
        "pod       ml/train-0 is Pending and asks for 8 GPUs (nvidia.com/gpu)",
        "scheduler Unschedulable: no",
        "would do  1 node: calm, if their resources are free",
        "nodegauge alone keeps it from 2 nodes: broken, unread",
        "broken: a GPU computes wrong results, GPU 3 (0000:12:00.0)",
        "unhealthy=corruption:NoSchedule  1      broken",
        "interconnect=nvlink  1      not read lately       unread",
        "unread: Never read (OOMKilled: no result).",
        "interconnect=nvlink  1      no policy selects it",
        "taint x:NoSchedule  1      others",
    ):
        assert line in text, text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_without_the_right_to_read_nodes_reports_stand_for_them(kubectl: FakeKubectl) -> None:
    kubectl.refuse(NODES, "Error from server (Forbidden): nodes is forbidden")
    answer = json.loads(CliRunner().invoke(main, ["why", "train-0", "-n", "ml", "-o", "json"]).output)
    assert (answer["wouldDo"], answer["oursAlone"]) == (["calm"], ["broken", "unread"])
    assert "could not be read" in answer["notSeen"]


def test_what_a_claim_asks_for_is_said_not_to_be_judged(kubectl: FakeKubectl) -> None:
    by_claim = {"nodegauge.dev/driver-access": "dra"}
    without = {"name": "cpu", "uid": "cpu", "labels": {"nodegauge.dev/interconnect": "nvlink"}}
    offers_dra = {"name": "broken", "uid": "broken", "labels": by_claim | without["labels"]}
    kubectl.serve(NODES, [{"metadata": metadata} for metadata in (without, offers_dra)])
    kubectl.serve(PODS, [pod(**affinity([LINKS]), resourceClaims=[{"name": "gpus"}])])
    text = CliRunner().invoke(main, ["why", "train-0", "-n", "ml"]).output
    assert "claims    asks for devices by claim (gpus): not judged" in text
    assert "would do  1 node: broken, if" in text


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (pod(nodeName="calm", phase="Running"), 0, "is on node calm (Running): it has a node"),
        (pod(phase="Succeeded"), 0, "is Succeeded: it waits for no node"),
        (None, 1, "there is no pod train-0 in namespace ml"),
    ],
)
def test_a_pod_that_waits_for_no_node_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any] | None, code: int, says: str
) -> None:
    FakeKubectl(tmp_path, monkeypatch).serve(PODS, [body] if body else [])
    result = CliRunner().invoke(main, ["why", "train-0", "-n", "ml"])
    assert (result.exit_code, says in result.output) == (code, True), result.output
