"""No pod gets an image that nobody named: every image has its registry, and a version or a digest."""

from __future__ import annotations

import pytest

from support.chart import ALL, KNOWN, NO_REGISTRY, Helm, HelmFailed, Object, environment, pods, variants

WHICH = ("operator", "probe", "nccl")
DIGEST = f"sha256:{'0' * 64}"


def images(objects: list[Object]) -> dict[str, str]:
    """The image of the chart's own pods, and those that the operator starts pods with."""
    variables = environment(objects)
    (own,) = {c["image"] for pod in pods(objects).values() for c in pod["spec"]["containers"]}
    return {"operator": own} | {x: variables[f"NODEGAUGE_{x.upper()}_IMAGE"] for x in ("probe", "nccl")}


def refusal(helm: Helm, values: Object) -> str:
    """What helm says about values that it refuses."""
    with pytest.raises(HelmFailed) as caught:
        helm.template(values)
    return str(caught.value)


@variants
def test_every_image_names_its_registry(helm: Helm, values: Object) -> None:
    """No rendered image depends on the container runtime's default registry."""
    named = images(helm.objects(values, *KNOWN))
    for reference in named.values():
        host, slash, _ = reference.partition("/")
        assert (slash and ("." in host or ":" in host or host == "localhost")) or reference == "", named
    assert bool(named["nccl"]) is values.get("nccl", {}).get("enabled", True)


def test_one_value_is_the_registry_of_all_images(helm: Helm) -> None:
    """`image.registry` is enough for all images; an image's own registry takes precedence."""
    one = "r.example.com:5000/mirror"
    seen = images(helm.objects({"image": {"registry": one}, "nccl": {"image": {"registry": "localhost"}}}))
    wanted = {"operator": one, "probe": one, "nccl": "localhost"}
    assert seen == {name: f"{registry}/nodegauge/{name}:0.1.0" for name, registry in wanted.items()}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({"registry": "a.io:5000", "repository": "gpu/x", "tag": "2.0"}, "a.io:5000/gpu/x:2.0"),
        ({"tag": "2.0", "digest": DIGEST}, f"registry.example.com/nodegauge/{{}}@{DIGEST}"),
        ({"registry": "[fd00::1]:5000"}, "[fd00::1]:5000/nodegauge/{}:0.1.0"),
        ({"registry": "docker.io/you"}, "docker.io/you/nodegauge/{}:0.1.0"),
    ],
    ids=["registry and tag", "digest", "IPv6", "the default registry by its name"],
)
def test_image_references(helm: Helm, which: str, image: Object, reference: str) -> None:
    """Every image has the chart's version or a tag, or a digest, which wins; all pods run the operator's."""
    objects = helm.objects({name: {"image": image} for name in WHICH})
    assert images(objects)[which] == reference.format(which)


def test_a_repository_may_hold_the_registry(helm: Helm) -> None:
    """A whole name in `repository` needs no other value."""
    whole = {x: {"image": {"repository": f"r.example.com/gpu/{x}", "digest": DIGEST}} for x in WHICH}
    assert images(helm.objects(NO_REGISTRY | whole)) == {x: f"r.example.com/gpu/{x}@{DIGEST}" for x in WHICH}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("registry", ["", "mirror", "mirror/gpus"])
def test_an_image_without_registry_is_refused(helm: Helm, which: str, registry: str) -> None:
    """Without a registry, or with one that is none, rendering stops and names the values to set."""
    others = {x: {"image": {"registry": "r.example.com"}} for x in WHICH if x != which}
    text = refusal(helm, others | {"image": {"registry": registry}})
    assert f"{which}.image" in text
    assert "set image.registry" in text
    assert ("nccl.enabled=false" in text) is (which == "nccl")


def test_without_nccl_there_is_no_nccl_image(helm: Helm) -> None:
    """With `nccl.enabled` false the operator gets no NCCL image, which so needs no registry either."""
    two = {x: {"image": {"registry": "r.example.com"}} for x in ("operator", "probe")}
    values = NO_REGISTRY | two | {"nccl": {"enabled": False, "image": {"repository": "gpu/nccl"}}}
    assert images(helm.objects(values))["nccl"] == ""


@pytest.mark.parametrize("which", WHICH)
def test_a_tag_that_names_no_version_is_refused(helm: Helm, which: str) -> None:
    """latest is refused, also where the image's registry is its own."""
    text = refusal(helm, ALL | {which: {"image": {"tag": "latest"}}})
    assert f"{which}.image.tag must not be latest" in text
