"""The BMC reader's Deployment: off by default, few rights, its Secret as files, every value passed on."""

from __future__ import annotations

from pathlib import Path

from nodegauge_operator.reader.settings import Settings, parse
from support.chart import ALL, NAMESPACE, Helm, component, environment, of_kind, only, pods

ON = {"bmc": {"enabled": True}}


def test_it_is_off_by_default(helm: Helm) -> None:
    """Nothing of it is rendered."""
    assert [o for o in helm.objects() if component(o) == "bmc"] == []


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
    """And with default values the chart sets the reader's own defaults."""
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


def test_its_metrics_are_its_own(helm: Helm) -> None:
    """Its Service selects its pod alone, and its monitor that Service alone."""
    objects = helm.objects(ALL)
    service, monitor = only(objects, "Service", of="bmc"), only(objects, "ServiceMonitor", of="bmc")
    wanted = service["spec"]["selector"].items()
    selected = [name for name, pod in pods(objects).items() if wanted <= pod["metadata"]["labels"].items()]
    assert selected == ["Deployment/my-gauge-bmc"]
    other = only(objects, "Service")
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    assert chosen <= service["metadata"]["labels"].items()
    assert not chosen <= other["metadata"]["labels"].items()


def test_it_runs_the_reader_once(helm: Helm) -> None:
    """Two readers would take each BMC's few sessions twice."""
    spec = only(helm.objects(ON), "Deployment", of="bmc")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert container["command"] == ["python", "-m", "nodegauge_operator.reader"]
