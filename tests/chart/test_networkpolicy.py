"""The NetworkPolicies select the pods that they are about, and leave open what these pods need."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from support.chart import ALL, RELEASE, Helm, Object, environment, of_kind, pods
from support.objects import make_context, make_report

ON: Object = {"networkPolicy": {"enabled": True}, "bmc": {"enabled": True}}


def policies(helm: Helm, values: Object) -> dict[str, Object]:
    """The specs by the end of their name, `probes` and `bmc`; that of the operator by `operator`."""
    by_name = {
        o["metadata"]["name"].rpartition("-")[2]: o["spec"]
        for o in of_kind(helm.objects(values), "NetworkPolicy")
    }
    return {name if name in ("probes", "bmc") else "operator": spec for name, spec in by_name.items()}


def selects(selector: Any, labels: dict[str, str]) -> bool:
    """As a network plugin does: all labels, and every expression (only In and Exists are used)."""
    tests = {
        "In": lambda e: labels.get(e["key"]) in e["values"],
        "Exists": lambda e: e["key"] in labels,
    }
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        tests[e["operator"]](e) for e in selector.get("matchExpressions", [])
    )


def test_off_by_default(helm: Helm) -> None:
    """A cluster whose plugin enforces them may have its API server on another port."""
    assert policies(helm, {}) == {}


@pytest.mark.parametrize("values", [ON, ALL | {"bmc": {"enabled": True}}], ids=["defaults", "all"])
def test_each_pod_has_its_policy(helm: Helm, values: Object) -> None:
    """Pods of the operator's image the first, the BMC reader's the last; no other pod of theirs has two."""
    by_name = policies(helm, values)
    assert by_name.keys() == {"operator", "probes", "bmc"}
    for name, pod in pods(helm.objects(values)).items():
        mine = [
            key for key, spec in by_name.items() if selects(spec["podSelector"], pod["metadata"]["labels"])
        ]
        assert mine == (["bmc"] if name.endswith("bmc") else ["operator"]), name


@pytest.mark.parametrize("kind", list(KINDS))
def test_probe_pods_talk_with_nobody(helm: Helm, kind: str) -> None:
    """Both directions are named, and neither has a rule."""
    spec = policies(helm, ON)["probes"]
    labels = probe_pod(make_context(report=make_report()), KINDS[kind], number=1)["metadata"]["labels"]
    assert selects(spec["podSelector"], labels)
    assert names.POD_PROBE in labels
    assert (spec["policyTypes"], spec.keys() & {"ingress", "egress"}) == (["Ingress", "Egress"], set())


@pytest.mark.parametrize(("values", "servers"), [(ON, [443, 6443]), (ALL, [8443])], ids=["defaults", "all"])
def test_the_operator_reaches_the_api_server_and_is_reached_for_metrics(
    helm: Helm, values: Object, servers: list[int]
) -> None:
    """By port: names, the API server, and the operator itself for `helm test`."""
    spec = policies(helm, values)["operator"]
    port = int(environment(helm.objects(values))["NODEGAUGE_HTTP_PORT"])
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": port}]}]
    anywhere = [p["port"] for rule in spec["egress"] if "to" not in rule for p in rule["ports"]]
    assert anywhere == [53, 53, *servers]
    (within,) = [rule for rule in spec["egress"] if "to" in rule]
    assert [p["port"] for p in within["ports"]] == [port]
    (peer,) = within["to"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == RELEASE
