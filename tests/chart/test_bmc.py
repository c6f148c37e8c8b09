"""The BMC reader's Deployment, and the NetworkPolicies."""

from pathlib import Path
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.bmc_reader.settings import Settings, parse
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.core.probes.watch import daemon_set
from support.chart import ALL, NAMESPACE, RELEASE, Helm, Object, component, environment, of_kind, only, pods
from support.objects import DEFAULTS, make_context, make_policy, make_report

KIND = "NetworkPolicy"
ON: Object = {"bmc": {"enabled": True}}
SHUT: Object = ON | {"networkPolicy": {"enabled": True}}


def test_it_is_off_by_default(helm: Helm) -> None:
    """So are network policies (a cluster may have its API server on another port), rules and dashboard."""
    off = (KIND, "PrometheusRule", "ConfigMap")
    assert [o for o in helm.objects() if component(o) == "bmc" or o["kind"] in off] == []


def test_its_rights_are_these(helm: Helm) -> None:
    """No Secret by the API, no node is changed, nothing in a namespace."""
    objects = [o for o in helm.objects(ON) if component(o) == "bmc"]
    assert of_kind(objects, "Role") == []
    rules = only(objects, "ClusterRole", of="bmc")["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["nodes"], ["list"]),
        (["chassisreadings"], ["get", "list", "create", "patch", "delete"]),
    ]


def test_the_secret_is_mounted_where_the_reader_looks(helm: Helm) -> None:
    """Read-only, for its own group; no variable has anything of it."""
    pod = pods(helm.objects(ALL))["Deployment/my-gauge-bmc"]["spec"]
    (volume,), (container,) = pod["volumes"], pod["containers"]
    (mount,) = container["volumeMounts"]
    variables = environment(helm.objects(ALL), of="bmc")
    assert volume["secret"] == {"secretName": "our-bmcs", "defaultMode": 0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert (mount["mountPath"], mount["readOnly"]) == (variables["NODEGAUGE_BMC_INVENTORY"], True)
    assert mount["name"] == volume["name"]
    assert [e for e in container["env"] if "valueFrom" in e] == []


def test_every_value_reaches_the_reader(helm: Helm) -> None:
    settings = parse(environment(helm.objects(ALL), of="bmc"))
    assert (settings.interval, settings.deadline, settings.timeout) == (120.0, 30.0, 5.0)
    assert (settings.concurrency, settings.node_selector) == (32, "gpu=yes")
    assert (settings.http_port, settings.log_level, settings.log_format) == (9090, "debug", "text")
    default = parse(environment(helm.objects(ON), of="bmc"))
    assert default == Settings(
        inventory=Path("/etc/nodegauge/bmc"),
        instance=f"ng.{NAMESPACE}",
        node_selector="nvidia.com/gpu.present=true",
    )


def policies(helm: Helm, values: Object) -> dict[str, Object]:
    """The specs by the end of their name, `probes` and `bmc`; that of the operator by `operator`."""
    ends = {o["metadata"]["name"].rpartition("-")[2]: o["spec"] for o in of_kind(helm.objects(values), KIND)}
    return {name if name in ("probes", "bmc") else "operator": spec for name, spec in ends.items()}


def selects(selector: Any, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(e["operator"] in ("In", "Exists") for e in expressions)
    in_values = [labels.get(e["key"]) in e.get("values", labels.values()) for e in expressions]
    return selector.get("matchLabels", {}).items() <= labels.items() and all(in_values)


@pytest.mark.parametrize("values", [SHUT, ALL | ON], ids=["defaults", "all"])
def test_each_pod_has_its_policy(helm: Helm, values: Object) -> None:
    """Pods of the operator's image the first, the BMC reader's the last; no other pod of theirs has two."""
    by_name = policies(helm, values)
    assert by_name.keys() == {"operator", "probes", "bmc"}
    for name, pod in pods(helm.objects(values)).items():
        labels = pod["metadata"]["labels"]
        mine = [key for key, spec in by_name.items() if selects(spec["podSelector"], labels)]
        assert mine == (["bmc"] if name.endswith("bmc") else ["operator"]), name


@pytest.mark.parametrize("kind", [*KINDS, "watch"])
def test_probe_pods_reach_the_api_server_alone(helm: Helm, kind: str) -> None:
    """Both directions are named; the way in has no rule, the way out one, with the API server's ports.  A
    cloud's metadata server, which has credentials at port 80, is out of reach."""
    spec = policies(helm, SHUT)["probes"]
    if kind == "watch":
        pod = daemon_set(make_policy(), DEFAULTS)["spec"]["template"]
    else:
        context = make_context(report=make_report())
        pod = probe_pod(context, KINDS[kind], context.next_run(kind))
    labels = pod["metadata"]["labels"]
    assert selects(spec["podSelector"], labels)
    assert names.POD_PROBE in labels
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in spec
    assert spec["egress"] == [{"ports": [{"protocol": "TCP", "port": port} for port in (443, 6443)]}]


@pytest.mark.parametrize(("values", "servers"), [(SHUT, [443, 6443]), (ALL, [8443])], ids=["defaults", "all"])
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
