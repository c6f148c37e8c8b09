"""Wrong values are refused by name before anything is installed; the schema knows every value."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import ALL, CHART, ROOT, Helm, HelmFailed, Object

WRONG: dict[str, tuple[Object, str]] = {
    "unknown": ({"bogus": 1}, "bogus"),
    "unknown below": ({"operator": {"replicas": 2}}, "replicas"),
    "log level": ({"operator": {"logLevel": "loud"}}, "/operator/logLevel"),
    "log format": ({"operator": {"logFormat": "xml"}}, "/operator/logFormat"),
    "port": ({"operator": {"httpPort": 0}}, "/operator/httpPort"),
    "port as text": ({"operator": {"httpPort": "8080"}}, "/operator/httpPort"),
    "rate": ({"operator": {"api": {"rate": 0}}}, "/operator/api/rate"),
    "workers": ({"operator": {"workers": 65}}, "/operator/workers"),
    "duration": ({"operator": {"sweepInterval": "5 seconds"}}, "/operator/sweepInterval"),
    "duration as number": ({"operator": {"relistInterval": 600}}, "/operator/relistInterval"),
    "digest": ({"probe": {"image": {"digest": "abc"}}}, "/probe/image/digest"),
    "pull policy": ({"probe": {"image": {"pullPolicy": "Sometimes"}}}, "/probe/image/pullPolicy"),
    "runtime class": ({"probe": {"runtimeClassName": "NVIDIA"}}, "/probe/runtimeClassName"),
    "priority": ({"probe": {"priorityClass": {"value": "low"}}}, "/probe/priorityClass/value"),
    "keep": ({"crds": {"keep": "maybe"}}, "/crds/keep"),
    "pull secrets": ({"imagePullSecrets": [{"name": "a"}]}, "/imagePullSecrets/0"),
    "our label": ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "/commonLabels/app.kubernetes.io~1name"),
    "policy name": ({"policy": {"name": "My Policy"}}, "/policy/name"),
    "policy field": ({"policy": {"spec": {"probs": {}}}}, "probs"),
    "policy mode": ({"policy": {"spec": {"mode": "observe"}}}, "/policy/spec/mode"),
    "policy interval": (
        {"policy": {"spec": {"probes": {"health": {"interval": "soon"}}}}},
        "/policy/spec/probes/health/interval",
    ),
    "policy ratio": (
        {"policy": {"spec": {"thresholds": {"powerCapRatio": 0}}}},
        "/policy/spec/thresholds/powerCapRatio",
    ),
    "policy percent": (
        {"policy": {"spec": {"budget": {"concurrentProbes": "101%"}}}},
        "/policy/spec/budget/concurrentProbes",
    ),
    "policy gated nodes": (
        {"policy": {"spec": {"budget": {"gatedNodes": "a fifth"}}}},
        "/policy/spec/budget/gatedNodes",
    ),
    "policy effect": (
        {"policy": {"spec": {"taints": {"effect": "Evict"}}}},
        "/policy/spec/taints/effect",
    ),
    "policy cause's effect": (
        {"policy": {"spec": {"taints": {"causes": {"thermal": "Evict"}}}}},
        "/policy/spec/taints/causes/thermal",
    ),
    "policy cause": (
        {"policy": {"spec": {"taints": {"causes": {"hot": "None"}}}}},
        "/policy/spec/taints/causes",
    ),
    "policy dwell": (
        {"policy": {"spec": {"hysteresis": {"dwell": "ten minutes"}}}},
        "/policy/spec/hysteresis/dwell",
    ),
    "policy leave runs": (
        {"policy": {"spec": {"hysteresis": {"leaveRuns": 0}}}},
        "/policy/spec/hysteresis/leaveRuns",
    ),
    "timeout": ({"cleanup": {"timeout": "long"}}, "/cleanup/timeout"),
    "test timeout": ({"test": {"timeout": 60}}, "/test/timeout"),
    "namespace": ({"namespaceOverride": "GPU_Tools"}, "/namespaceOverride"),
    "selector's value": ({"operator": {"nodeSelector": {"gpu": True}}}, "/operator/nodeSelector/gpu"),
    "selector's key": ({"operator": {"nodeSelector": {"a b": "c"}}}, "/operator/nodeSelector"),
    "toleration's field": ({"operator": {"tolerations": [{"keys": "a"}]}}, "/operator/tolerations/0"),
    "toleration's operator": (
        {"operator": {"tolerations": [{"key": "a"}, {"key": "a", "operator": "In"}]}},
        "/operator/tolerations/1/operator",
    ),
    "toleration's effect": (
        {"probe": {"tolerations": [{"key": "a", "effect": "noschedule"}]}},
        "/probe/tolerations/0/effect",
    ),
    "toleration without a key": ({"probe": {"tolerations": [{"value": "a"}]}}, "/probe/tolerations/0"),
    "toleration of any value": (
        {"probe": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "/probe/tolerations/0/value",
    ),
    "affinity": ({"operator": {"affinity": {"nodeaffinity": {}}}}, "/operator/affinity"),
    "priority class": ({"operator": {"priorityClassName": "High!"}}, "/operator/priorityClassName"),
    "memory": (
        {"operator": {"resources": {"limits": {"memory": "1 GB"}}}},
        "/operator/resources/limits/memory",
    ),
    "probe's cpu": ({"probe": {"resources": {"limits": {"cpu": 1}}}}, "/probe/resources/limits/cpu"),
    "probe's resources": ({"probe": {"resources": {"limit": {}}}}, "/probe/resources"),
    "pod label": ({"operator": {"podLabels": {"team": "a b"}}}, "/operator/podLabels/team"),
    "long label": ({"operator": {"podLabels": {"team": "a" * 64}}}, "/operator/podLabels/team"),
    "probe's label": (
        {"probe": {"podLabels": {"nodegauge.dev/probe": "x"}}},
        "/probe/podLabels/nodegauge.dev~1probe",
    ),
    "probe's annotation": ({"probe": {"podAnnotations": {"a": 1}}}, "/probe/podAnnotations/a"),
    "annotation's key": ({"operator": {"podAnnotations": {"a b": "c"}}}, "/operator/podAnnotations"),
    "repository with a tag": (
        {"operator": {"image": {"repository": "a/op:1.0"}}},
        "/operator/image/repository",
    ),
    "repository's case": ({"probe": {"image": {"repository": "Nodegauge/probe"}}}, "/probe/image/repository"),
    "registry's scheme": (
        {"operator": {"image": {"registry": "https://registry.example.com"}}},
        "/operator/image/registry",
    ),
    "label selector": ({"operator": {"nodeLabelSelector": "gpu in (a"}}, "/operator/nodeLabelSelector"),
    "label selector's operator": (
        {"operator": {"nodeLabelSelector": "nvidia.com/gpu.present===true"}},
        "/operator/nodeLabelSelector",
    ),
    "no time": ({"metrics": {"serviceMonitor": {"interval": "0s"}}}, "/metrics/serviceMonitor/interval"),
    "long sweep": (
        {"operator": {"sweepInterval": "5m1s"}},
        "operator.sweepInterval is 5m1s: set it to 0.1s to 300s",
    ),
    "short relist": (
        {"operator": {"relistInterval": "4999ms"}},
        "operator.relistInterval is 4999ms: set it to 5s",
    ),
    "prefix with a dot": ({"fullnameOverride": "my.gauge"}, "/fullnameOverride"),
    "prefix with a digit": ({"nameOverride": "8gpus"}, "/nameOverride"),
    "long prefix": ({"fullnameOverride": "g" * 51}, "/fullnameOverride"),
    "name with two dots": ({"probe": {"runtimeClassName": "a..b"}}, "/probe/runtimeClassName"),
    "affinity's field": (
        {"operator": {"affinity": {"nodeAffinity": {"required": {}}}}},
        "/operator/affinity/nodeAffinity",
    ),
    "group taken away": ({"operator": None}, "missing property 'operator'"),
    "value taken away": ({"operator": {"httpPort": None}}, "missing property 'httpPort'"),
    "nccl's priority": ({"nccl": {"priorityClass": {"value": 0}}}, "/nccl/priorityClass/value"),
    "policy's job": ({"policy": {"apply": {"timeout": "soon"}}}, "/policy/apply/timeout"),
    "pull secrets' form": ({"imagePullSecrets": "registry"}, "/imagePullSecrets"),
    "label key": (
        {"policy": {"spec": {"labels": {"interconnectKey": "two words"}}}},
        "/policy/spec/labels/interconnectKey",
    ),
    "label key of others": (
        {"policy": {"spec": {"labels": {"interconnectKey": "node.kubernetes.io/interconnect"}}}},
        "/policy/spec/labels/interconnectKey",
    ),
    "nccl's switch": ({"nccl": {"enabled": "no"}}, "/nccl/enabled"),
    "nccl's pull policy": ({"nccl": {"image": {"pullPolicy": "Always"}}}, "pullPolicy"),
    "nccl's repository": ({"nccl": {"image": {"repository": ""}}}, "/nccl/image/repository"),
    "nccl's digest": ({"nccl": {"image": {"digest": "abc"}}}, "/nccl/image/digest"),
    "nccl's memory": ({"nccl": {"resources": {"limits": {"memory": 32}}}}, "/nccl/resources/limits/memory"),
    "nccl's interval": ({"nccl": {"interval": "24h"}}, "interval"),
    "policy's pod label": (
        {"policy": {"spec": {"podTemplate": {"labels": {"nodegauge.dev/node": "a"}}}}},
        "/policy/spec/podTemplate/labels/nodegauge.dev~1node",
    ),
}


COMBINATIONS: dict[str, tuple[Object, str]] = {
    **{
        f"{name} latest": ({name: {"image": {"tag": "latest"}}}, f"{name}.image.tag must not be latest")
        for name in ("operator", "probe", "nccl")
    },
    **{
        f"{name} without account": (
            {name: {"serviceAccount": {"create": False}}},
            f"{name}.serviceAccount.name is required",
        )
        for name in ("operator", "probe")
    },
    "monitor without service": (
        {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
        "metrics.serviceMonitor.enabled needs metrics.service.enabled",
    ),
}
"""Values that the schema allows, but not together, or not for an image tag."""


def merged(left: Object, right: Object) -> Object | None:
    """Both maps in one; None if they set the same value."""
    both = left | right
    for key in left.keys() & right.keys():
        if not (isinstance(left[key], dict) and isinstance(right[key], dict)):
            return None
        if (inner := merged(left[key], right[key])) is None:
            return None
        both[key] = inner
    return both


def batches(cases: dict[str, Object]) -> list[tuple[list[str], Object]]:
    """Names and values of the cases, merged into few sets of values: helm checks a whole set at once."""
    found: list[tuple[list[str], Object]] = []
    for name, values in cases.items():
        for number, (others, batch) in enumerate(found):
            if (both := merged(batch, values)) is not None:
                found[number] = ([*others, name], both)
                break
        else:
            found.append(([name], values))
    return found


@cache
def complaints(helm: Helm) -> dict[str, str]:
    """By name of a wrong value that the schema refuses: what helm says about the batch that it is in."""
    found = {}
    for batch, values in batches({name: v for name, (v, path) in WRONG.items() if path.startswith("/")}):
        paths = [WRONG[name][1] for name in batch]
        assert len(set(paths)) == len(paths), "two wrong values of a batch cannot be told apart"
        with pytest.raises(HelmFailed) as caught:
            helm.template(values)
        found |= dict.fromkeys(batch, str(caught.value))
    return found


@pytest.mark.parametrize("case", [*WRONG, *COMBINATIONS])
def test_wrong_values_are_refused_by_name(helm: Helm, case: str) -> None:
    """A value that cannot be right stops helm before anything is installed, and the message names it."""
    values, named = (WRONG | COMBINATIONS)[case]
    if named.startswith("/"):
        assert f"at '{named}'" in complaints(helm)[case]
        return
    with pytest.raises(HelmFailed) as caught:
        helm.template(values)
    assert named in str(caught.value)


GOOD = [
    {"policy": {"spec": {"budget": {"concurrentProbes": 5}}}},
    {"policy": {"spec": {"budget": {"concurrentProbes": "10%"}}}},
    {"policy": {"spec": yaml.safe_load((ROOT / "crds/examples/full.yaml").read_text("utf-8"))["spec"]}},
    {"global": {"imageRegistry": "ignored"}},
    {"operator": {"resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}},
    {"operator": {"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}]}},
    {"policy": {"spec": {"labels": {"interconnectKey": "example.com/interconnect"}}}},
    {"policy": {"spec": {"labels": {"interconnectKey": ""}}}},
    {"operator": {"nodeLabelSelector": "a.b/c=d, e!=f,!g,h, i in (x, y),j notin (z),k==,l>5"}},
    {"operator": {"image": {"registry": "registry.example.com:5000/mirror", "repository": "a__b/c-d.e"}}},
    {"operator": {"image": {"registry": "[fd00::1]:5000", "repository": "op"}}},
    {"operator": {"image": {"repository": "registry.example.com:5000/nodegauge/operator"}}},
    {"operator": {"sweepInterval": "0m100ms", "relistInterval": "24h", "resources": {"limits": None}}},
    {"operator": {"sweepInterval": "300s", "relistInterval": "5s"}},
]


def test_good_values_are_accepted(helm: Helm) -> None:
    """The schema accepts what the CRD accepts in a policy, and what helm passes to every chart."""
    for _, values in batches({json.dumps(values): values for values in GOOD}):
        assert helm.template(values), values


def test_schema_knows_every_value() -> None:
    """values.yaml and values.schema.json have the same values, and every group refuses others.

    null may remove maps and lists, but neither groups nor single values.
    """
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    free = {"affinity", "textResources", "resources", "policySpec"}

    def is_free(value: Any, rule: Any) -> bool:
        return isinstance(value, list) or (isinstance(value, dict) and "properties" not in resolved(rule))

    def resolved(rule: Any) -> Any:
        reference = rule.get("$ref", "").removeprefix("#/definitions/")
        return {} if reference in free else schema["definitions"][reference] if reference else rule

    def look(value: Any, rule: Any, path: str) -> list[str]:
        rule = resolved(rule)
        if not isinstance(value, dict) or not rule.get("properties"):
            return []
        known = set(rule["properties"]) - {"global"}
        wrong = [f"{path}: {sorted(known ^ value.keys())}"] if known != value.keys() else []
        wrong += [] if rule.get("additionalProperties") is False else [f"{path}: open"]
        needed = {k for k in known & value.keys() if not is_free(value[k], rule["properties"][k])}
        wrong += (
            [f"{path}: {sorted(needed ^ set(rule['required']))}"] if needed != set(rule["required"]) else []
        )
        return wrong + [
            w for k in known & value.keys() for w in look(value[k], rule["properties"][k], f"{path}.{k}")
        ]

    assert look(values, schema, "") == []


def test_all_sets_every_value() -> None:
    """The variant `all` changes every default that is not a switch, a tag, a digest or a registry."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    spared = re.compile(r"\.(create|enabled|tag|digest|registry)$")

    def look(default: Any, given: Any, path: str) -> list[str]:
        if isinstance(default, dict) and default and isinstance(given, dict):
            return [w for k in default for w in look(default[k], given.get(k), f"{path}.{k}")]
        return [] if given not in (None, default) or spared.search(path) else [path]

    assert look(values, ALL, "") == []


def test_chart_metadata() -> None:
    """Chart and application have the project's version, and require a Kubernetes with CEL in CRDs."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert project
    assert chart["version"] == chart["appVersion"] == project[1]
    assert chart["kubeVersion"].startswith(">=1.29")


def test_chart_contains_nothing_else() -> None:
    """The chart contains only files that helm reads."""
    found = {path.suffix for path in Path(CHART).rglob("*") if path.is_file()} - {
        ".yaml",
        ".json",
        ".tpl",
        ".txt",
    }
    assert found <= {""}
