"""Wrong values are refused by name before anything is installed; no pod gets an image that nobody named."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import (
    ALL,
    CHART,
    KNOWN,
    ROOT,
    Helm,
    HelmFailed,
    Object,
    environment,
    pods,
    variants,
)
from support.crds import nested

WRONG, COMBINATIONS = yaml.safe_load(
    (Path(__file__).with_name("wrong-values.yaml")).read_text("utf-8")
).values()
"""Path of a value, the wrong value, and what the message names if that is not the path."""


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
    result: list[tuple[list[str], Object]] = []
    for name, values in cases.items():
        for number, (others, batch) in enumerate(result):
            if (both := merged(batch, values)) is not None:
                result[number] = ([*others, name], both)
                break
        else:
            result.append(([name], values))
    return result


@cache
def complaints(helm: Helm) -> dict[str, str]:
    """By wrong value that the schema refuses: what helm says about the batch that contains it."""
    cases = {
        str(case): (nested(case[0].split("/")[1:], case[1]), case[-1] if case[2:] else case[0])
        for case in WRONG
    }
    outputs = {}
    for batch, values in batches({case: v for case, (v, path) in cases.items() if path.startswith("/")}):
        paths = [cases[case][1] for case in batch]
        assert len(set(paths)) == len(paths), "two wrong values of a batch cannot be told apart"
        outputs |= dict.fromkeys(batch, refusal(helm, values))
    return outputs


@pytest.mark.parametrize("case", [*WRONG, *COMBINATIONS], ids=lambda case: f"{case[0]}={case[1]}"[:60])
def test_wrong_values_are_refused_by_name(helm: Helm, case: tuple[Any, ...]) -> None:
    path, value, named = (*case, case[0])[:3]
    if named.startswith("/"):
        assert f"at '{named}'" in complaints(helm)[str(case)]
        return
    assert named in refusal(helm, nested(path.split("/")[1:], value))


GOOD = [
    *yaml.safe_load(Path(__file__).with_name("good-values.yaml").read_text("utf-8")),
    {"policy": {"spec": yaml.safe_load((ROOT / "crds/examples/full.yaml").read_text("utf-8"))["spec"]}},
]


def test_good_values_are_accepted(helm: Helm) -> None:
    """The schema accepts what the CRD accepts in a policy, and what helm passes to every chart."""
    for _, values in batches({json.dumps(values): values for values in GOOD}):
        assert helm.template(values), values
    older = dict.fromkeys(("driverAccess", "hostDriver", "giveWay"))
    assert helm.template(older) == helm.template(), "helm upgrade --reuse-values from a chart that had none"


def test_chart_metadata() -> None:
    """The project's version, and a Kubernetes whose tokens name nodes."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert project
    assert chart["version"] == chart["appVersion"] == project[1]
    assert chart["kubeVersion"].startswith(">=1.32")


WHICH = ("operator", "probe", "nccl")


def images(objects: list[Object]) -> dict[str, str]:
    """The image of the chart's own pods, and those that the operator starts pods with."""
    variables = environment(objects)
    (own,) = {c["image"] for pod in pods(objects).values() for c in pod["spec"]["containers"]}
    return {"operator": own} | {x: variables[f"NODEGAUGE_{x.upper()}_IMAGE"] for x in ("probe", "nccl")}


def refusal(helm: Helm, values: Object) -> str:
    with pytest.raises(HelmFailed) as caught:
        helm.template(values)
    return str(caught.value)


@variants
def test_every_image_names_its_registry(helm: Helm, values: Object) -> None:
    named = images(helm.objects(values, *KNOWN))
    for reference in named.values():
        host, slash, _ = reference.partition("/")
        assert (slash and ("." in host or ":" in host or host == "localhost")) or reference == "", named
    assert bool(named["nccl"]) is values.get("nccl", {}).get("enabled", True)


REFERENCES = yaml.safe_load(Path(__file__).with_name("image-references.yaml").read_text("utf-8"))


@pytest.mark.parametrize("case", REFERENCES.values(), ids=REFERENCES)
def test_image_references(helm: Helm, case: Object) -> None:
    """All pods run the operator's."""
    assert images(helm.objects(case["values"])) == case["images"]


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("registry", ["", "mirror/gpus"])
def test_an_image_without_registry_is_refused(helm: Helm, which: str, registry: str) -> None:
    others = {x: {"image": {"registry": "r.example.com"}} for x in WHICH if x != which}
    text = refusal(helm, others | {"image": {"registry": registry}})
    assert f"{which}.image" in text
    assert "set image.registry" in text
    assert ("nccl.enabled=false" in text) is (which == "nccl")


@pytest.mark.parametrize("which", WHICH)
def test_a_tag_that_names_no_version_is_refused(helm: Helm, which: str) -> None:
    text = refusal(helm, ALL | {which: {"image": {"tag": "latest"}}})
    assert f"{which}.image.tag must not be latest" in text
