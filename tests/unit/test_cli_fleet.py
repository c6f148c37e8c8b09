"""`nodegauge status` and `nodegauge nodes`: the fleet by class and cause, and what nobody sees."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from nodegauge_cli.__main__ import main
from nodegauge_cli.cluster import NODES, POLICIES, REPORTS
from nodegauge_cli.output import WIDTH
from support import explained
from support.kubectl import FakeKubectl, body_of, policy_body
from support.objects import NOW

INCIDENT = {
    "id": "thermal-1",
    "cause": "thermal",
    "group": "zone=b",
    "since": "2027-01-15T08:00:00Z",
    "nodes": 4,
}
NOT_READY = {"type": "Ready", "status": "False", "reason": "LabelRefused", "message": "say so"}
FORBIDDEN = 'Error from server (Forbidden): nodes is forbidden: User "jo" cannot list resource "nodes"'


def node(name: str, **spec: Any) -> dict[str, Any]:
    status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"pool": "train" if name != "calm" else "test"}
    return {
        "metadata": {"name": name, "uid": f"{name}-uid", "labels": labels},
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """One node of each sort, one cordoned, and one with the report of an earlier node of its name."""
    monkeypatch.setattr(time, "time", lambda: NOW + 119)
    fake = FakeKubectl(tmp_path, monkeypatch)
    kinds = {"calm": explained.healthy, "cordoned": explained.healthy, "overruled": explained.overruled}
    kinds |= {"broken": explained.corrupting, "unread": explained.never_read, "unknown": explained.healthy}
    bodies = {name: body_of(make()) for name, make in kinds.items()}
    for name, body in bodies.items():
        uid = f"{name}-uid" if name != "unknown" else "of-an-earlier-node"
        body["metadata"] |= {"name": name, "ownerReferences": [{"kind": "Node", "uid": uid}]}
    fake.serve(REPORTS, bodies.values())
    fake.serve(NODES, [node(name, unschedulable=name == "cordoned") for name in bodies])
    status = {"conditions": [NOT_READY], "incidents": [INCIDENT, INCIDENT | {"id": "old", "closedAt": "x"}]}
    fake.serve(POLICIES, [policy_body(status=status), policy_body("late", mode="Paused", priority=-1)])
    return fake


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_the_fleet_stands_on_one_screen(kubectl: FakeKubectl) -> None:
    text = run("status").output
    for line in (
        "usable    8 of 48 GPUs (16.7 %), 6 nodes",
        "nodes     2 pass, 1 warn, 1 fail, 2 unread",
        "8 x NVIDIA-H100-80GB-HBM3  4      32    8",
        "corruption  2      16",
        "unread      2      16",
        "cordoned    1      8",
        "unread    2 nodes: unknown, unread",
        "overrides 1 healthy",
        "policy    default: Enforce, 6 nodes, NOT Ready",
        "Ready is False: LabelRefused: say so",
        "policy    late: Paused (nothing is read), 0 nodes, without status",
        "incident  thermal on 4 nodes of zone=b",
    ):
        assert line in text, text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "id=old" not in text


def test_without_the_right_to_read_nodes_it_says_what_it_did_not_see(kubectl: FakeKubectl) -> None:
    kubectl.refuse(NODES, FORBIDDEN)
    status = json.loads(run("status", "-o", "json").output)
    assert (status["nodes"], status["usable"], status["health"]["unread"]) == (6, 24, 1)
    assert "which nodes are cordoned or not Ready, could not be read: Error" in status["notSeen"]
    assert "could not be read" in run("nodes").stderr


def test_what_an_operator_wrote_that_is_gone_is_no_health(
    kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW + 5 * 3600)
    status = json.loads(run("status", "-o", "json", "--exit-code", code=3).output)
    assert (status["usable"], status["health"]) == (0, {"unread": 5, "fail": 1})


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ([], ["broken", "calm", "cordoned", "overruled", "unknown", "unread"]),
        (["--unhealthy", "--sort", "health"], ["broken", "unknown", "unread", "overruled"]),
        (["--cause", "corruption"], ["broken", "overruled"]),
        (["--cause", "cordoned"], ["cordoned"]),
        (["--class", "h100", "--sort", "busbw"], ["broken", "calm", "cordoned", "overruled"]),
        (["-l", "nodegauge.dev/nvlink-gbps>400,nodegauge.dev/health=fail"], ["broken"]),
        (["-l", "nodegauge.dev/health notin (pass,fail)"], ["overruled", "unknown", "unread"]),
    ],
)
def test_nodes_are_chosen_and_sorted(kubectl: FakeKubectl, arguments: list[str], chosen: list[str]) -> None:
    assert [
        known["node"] for known in yaml.safe_load(run("nodes", *arguments, "-o", "yaml").output)
    ] == chosen


def test_labels_of_others_are_left_to_the_api_server(kubectl: FakeKubectl) -> None:
    run("nodes", "-l", "pool=test")
    assert f"get --raw {NODES}?limit=500&labelSelector=pool%3Dtest" in kubectl.calls


def test_a_line_per_node_fits_a_screen_and_wide_says_why(kubectl: FakeKubectl) -> None:
    assert "broken     fail    corruption  8     nvlink 450  462    119s" in run("nodes").output
    assert "Never read (OOMKilled: no result)." in run("nodes", "-o", "wide").output
    assert "not a label selector" in run("nodes", "-l", "a==b==c", code=2).output
