"""The collection reads a real API server: NodeReports as an inventory and as facts, and why it cannot."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.cluster_under_test import install_crds
from support.playbook import Ansible
from testbed.controlplane import ControlPlane
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
LABEL = "example.com/inventory-test"
H100 = "NVIDIA H100 80GB HBM3"
FINDING = {"code": "hot", "severity": "fail", "subject": "GPU 3", "message": "91 °C."}
FLEET: dict[str, dict[str, Any]] = {
    # node: rack, taint, and the report's verdict, interconnect, model, findings (None: no report)
    "inv-good": {"rack": "r1", "verdict": "pass", "class": "nvlink", "model": H100},
    "inv-hot": {"rack": "r 2", "verdict": "fail", "class": "nvlink", "model": H100, "taint": "throttled"},
    "inv-kept": {"rack": "", "verdict": "warn", "class": "pcie", "model": "Tesla T4", "taint": "unhealthy"},
    "inv-new": {"rack": "", "verdict": "unknown", "class": "", "model": "", "taint": "unvalidated"},
    "inv-other": {"rack": "r1"},
}


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Iterator[Rest]:
    """Nodes and reports as the operator writes them, and one report whose node is gone."""
    rest = control_plane.rest()
    install_crds(rest)
    for name, wanted in FLEET.items():
        rest.create(NODES, node(name, wanted))
        if "verdict" in wanted:
            report(rest, name, wanted)
    report(rest, "inv-gone", FLEET["inv-good"])
    yield rest
    for name in FLEET:
        rest.delete(f"{NODES}/{name}")
    for name, wanted in {**FLEET, "inv-gone": FLEET["inv-good"]}.items():
        if "verdict" in wanted:
            rest.delete(f"{REPORTS}/{name}")


def node(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    rack = {"topology.kubernetes.io/rack": wanted["rack"].replace(" ", "-")} if wanted["rack"] else {}
    key = wanted.get("taint")
    value = {"throttled": "thermal", "unhealthy": "psu"}.get(key or "", "")
    taint = {"key": f"nodegauge.dev/{key}", "value": value, "effect": "NoSchedule"}
    return {
        "metadata": {"name": name, "labels": {LABEL: "yes", **rack}},
        "spec": {"taints": [taint] if key else []},
    }


def report(rest: Rest, name: str, wanted: dict[str, Any]) -> None:
    kind = {"apiVersion": "nodegauge.dev/v1alpha1", "kind": "NodeReport"}
    rest.create(REPORTS, kind | {"metadata": {"name": name}, "spec": {}})
    probe = {"name": "health", "verdict": wanted["verdict"], "readAt": "2026-01-01T00:00:00Z"}
    failed = wanted["verdict"] == "fail"
    status = {
        "verdict": wanted["verdict"],
        "summary": f"{name} in a sentence",
        "interconnect": {"class": wanted["class"], "evidence": "reported"} if wanted["class"] else {},
        "gpus": {"count": 8, "product": wanted["model"], "driver": "570.86"},
        "probes": [probe | {"findings": [FINDING]} if failed else probe],
    }
    rest.patch(f"{REPORTS}/{name}/status", {"status": status})


def inventory(ansible: Ansible, kubeconfig: object, **options: Any) -> dict[str, Any]:
    file = ansible.folder / "fleet.nodereports.yml"
    plugin = {"plugin": "nodegauge.gpu.nodereports", "kubeconfig": str(kubeconfig)}
    selector = {"label_selector": LABEL}
    file.write_text(yaml.safe_dump(plugin | selector | options), encoding="utf-8")
    done = ansible.run("ansible-inventory", "-i", file.name, "--list")
    assert done.returncode == 0, done.stderr
    # texts of a cluster are marked: Ansible evaluates no template in them
    listed: dict[str, Any] = json.loads(done.stdout, object_hook=lambda one: one.get("__ansible_unsafe", one))
    return listed


def hosts(listed: dict[str, Any], group: str) -> list[str]:
    return sorted(listed.get(group, {}).get("hosts", ()))


def test_what_must_be_repaired_is_a_group(ansible: Ansible, control_plane: ControlPlane, fleet: Rest) -> None:
    """A failed verdict, or a taint for a fault; a node that waits for its first pass is in none.  With a
    cache the API server may be away the second time."""
    cached = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(ansible.folder / "cache")}
    listed = inventory(ansible, control_plane.kubeconfig, **cached)
    assert hosts(listed, "nodegauge_repair") == ["inv-hot", "inv-kept"]
    assert hosts(listed, "nodegauge_cause_thermal") == ["inv-hot"]
    assert hosts(listed, "nodegauge_cause_psu") == ["inv-kept"]
    assert hosts(listed, "nodegauge_verdict_unknown") == ["inv-new"]
    assert hosts(listed, "nodegauge_interconnect_nvlink") == ["inv-good", "inv-hot"]
    assert hosts(listed, "nodegauge_model_nvidia_h100_80gb_hbm3") == ["inv-good", "inv-hot"]
    assert hosts(listed, "nodegauge_rack_r1") == ["inv-good"]
    assert hosts(listed, "nodegauge_rack_r_2") == ["inv-hot"]
    values = listed["_meta"]["hostvars"]["inv-hot"]
    assert values["nodegauge_findings"] == [FINDING | {"probe": "health"}]
    assert values["nodegauge_age_seconds"] > 0
    assert "inv-other" not in listed["_meta"]["hostvars"]
    away = ansible.folder / "away"
    away.write_text(control_plane.kubeconfig.read_text().replace("127.0.0.1:", "127.0.0.2:"))
    assert hosts(inventory(ansible, away, **cached), "nodegauge_repair") == ["inv-hot", "inv-kept"]


def test_users_add_groups_variables_and_nodes_without_a_report(
    ansible: Ansible, control_plane: ControlPlane, fleet: Rest
) -> None:
    """As with every plugin that constructs."""
    listed = inventory(
        ansible,
        control_plane.kubeconfig,
        unreported=True,
        compose={"ansible_user": "'root'"},
        groups={"old": "nodegauge_age_seconds | default(0, true) > 3600"},
        keyed_groups=[{"key": "nodegauge_driver", "prefix": "driver"}],
    )
    assert hosts(listed, "nodegauge_unreported") == ["inv-other"]
    assert hosts(listed, "driver_570_86") == ["inv-good", "inv-hot", "inv-kept", "inv-new"]
    assert hosts(listed, "old") == ["inv-good", "inv-hot", "inv-kept", "inv-new"]
    assert listed["_meta"]["hostvars"]["inv-new"]["ansible_user"] == "root"


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no kubeconfig": ({"kubeconfig": "/nowhere"}, "kubeconfig cannot be used"),
    "nobody listens": ({"host": "https://127.0.0.1:9"}, "https://127.0.0.1:9 does not answer"),
    "wrong token": ({"api_key": "wrong", "validate_certs": False}, "does not accept these credentials"),
}


def test_reports_are_facts_for_a_play(ansible: Ansible, control_plane: ControlPlane, fleet: Rest) -> None:
    """All nodes, or one; a cluster that cannot be read is one sentence that says what to do."""
    reach = {"kubeconfig": str(control_plane.kubeconfig)}
    cluster = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    UNREADABLE["wrong token"][0]["host"] = cluster["server"]
    asked = {"all": reach | {"label_selector": LABEL}, "one": reach | {"name": "inv-hot"}, "every": reach}
    asked |= {name: options for name, (options, _) in UNREADABLE.items()}
    tasks = [
        {"name": name, "nodegauge.gpu.nodereport_info": options, "ignore_errors": name in UNREADABLE}
        for name, options in asked.items()
    ]
    played = ansible.play([{"hosts": "all", "gather_facts": False, "tasks": tasks}], {"here": {}}, "--check")
    assert played.code == 0, played.output
    counts = played.task("all", "here").result["counts"]
    assert counts == {"pass": 1, "fail": 1, "warn": 1, "unknown": 1, "unreported": 1}
    [one] = played.task("one", "here").result["nodes"]
    assert (one["causes"], one["verdict"], one["gpu_count"]) == (["thermal"], "fail", 8)
    assert "inv-gone" in played.task("every", "here").result["without_node"]
    assert played.changed == []
    for name, (_, says) in UNREADABLE.items():
        message = played.task(name, "here").result["msg"]
        assert (says in message, "wrong" in message) == (True, False)
    assert "Traceback" not in played.output
