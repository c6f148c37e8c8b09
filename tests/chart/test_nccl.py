"""What the chart says of benchmarks: image and resources reach the operator, or no image."""

from __future__ import annotations

import pytest

from nodegauge_operator.core.probes.pod import ProbeDefaults
from nodegauge_operator.settings import parse
from support.chart_tools import ALL, Helm, HelmFailed, Object, only

GIVEN: Object = {
    "image": {"registry": "registry.example.com:5000", "repository": "gpu/nccl", "tag": "2.0"},
    "resources": {"limits": {"memory": "32Gi"}, "requests": {"cpu": "4"}},
}


def defaults(helm: Helm, values: Object) -> ProbeDefaults:
    """What the operator takes from the chart's environment for its probes."""
    (container,) = only(helm.objects(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    return parse({e["name"]: e.get("value", "somewhere") for e in container["env"]}).probe


def test_by_default_there_is_an_image_of_the_chart_s_version(helm: Helm) -> None:
    """As for the other images; and nothing is said of resources, so that the operator's own hold."""
    found = defaults(helm, {})
    name, _, version = found.nccl_image.partition(":")
    assert name == "nodegauge/nccl"
    assert version == found.image.partition(":")[2] != ""
    assert found.nccl_resources == {}


def test_values_reach_the_benchmark(helm: Helm) -> None:
    """Registry, repository, tag and digest make the image; resources arrive as they were written."""
    found = defaults(helm, ALL | {"nccl": GIVEN})
    assert found.nccl_image == "registry.example.com:5000/gpu/nccl:2.0"
    assert found.nccl_resources == GIVEN["resources"]
    digest = {"nccl": GIVEN | {"image": {"digest": f"sha256:{'0' * 64}"}}}
    assert defaults(helm, digest).nccl_image == f"nodegauge/nccl@sha256:{'0' * 64}"


def test_switched_off_there_is_no_image(helm: Helm) -> None:
    """And without one the operator runs no benchmark."""
    assert defaults(helm, {"nccl": GIVEN | {"enabled": False}}).nccl_image == ""


@pytest.mark.parametrize("given", [{}, {"name": "gauge-nccl", "value": -70}])
def test_the_benchmark_asks_for_the_class_that_the_chart_makes(helm: Helm, given: Object) -> None:
    """Below the cluster autoscaler's cutoff of -10, preempting nobody, whatever its name."""
    values = {"nccl": {"priorityClass": given}}
    classes = {o["metadata"]["name"]: o for o in helm.objects(values) if o["kind"] == "PriorityClass"}
    made = classes[defaults(helm, values).nccl_priority_class_name]
    assert made["value"] == given.get("value", -50) < -10
    assert made["preemptionPolicy"] == "Never"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"enabled": "no"}, "/nccl/enabled"),
        ({"image": {"pullPolicy": "Always"}}, "pullPolicy"),
        ({"image": {"repository": ""}}, "/nccl/image/repository"),
        ({"image": {"digest": "abc"}}, "/nccl/image/digest"),
        ({"resources": {"limits": {"memory": 32}}}, "/nccl/resources/limits/memory"),
        ({"interval": "24h"}, "interval"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, values: Object, named: str) -> None:
    """What the chart does not know, or cannot be, is said before anything is installed."""
    with pytest.raises(HelmFailed, match=named):
        helm.template({"nccl": values})


def test_latest_is_refused(helm: Helm) -> None:
    """As for the other images."""
    with pytest.raises(HelmFailed, match=r"nccl\.image\.tag must not be latest"):
        helm.template({"nccl": {"image": {"tag": "latest"}}})
