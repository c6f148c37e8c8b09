"""The default policy is created once its CRD is served, merged on upgrade, and never recreated."""

from __future__ import annotations

import json

import pytest

from nodegauge_operator.api.policy import Mode, PolicySpec, parse
from support.chart import KNOWN, Helm, Object, events, of_kind, pods


def policies(helm: Helm, values: Object | None = None, *options: str) -> dict[str, Object]:
    """The policies by what Helm does with them: hook events, or `object` for an ordinary one."""
    rendered = of_kind(helm.objects(values, *options), "GPUValidationPolicy")
    return {",".join(events(o)) or "object": o for o in rendered}


def first(helm: Helm, values: Object | None = None) -> Object:
    """The policy in the arguments of the first install's Job."""
    (pod,) = [pod for name, pod in pods(helm.objects(values)).items() if name == "Job/ng-nodegauge-policy"]
    (container,) = pod["spec"]["containers"]
    (text,) = [word for word in container["args"] if word.startswith("--policy=")]
    return json.loads(text.removeprefix("--policy=").replace("$$", "$"))


def test_first_and_later_policies_are_the_same(helm: Helm) -> None:
    """The Job's policy equals the upgrade's object, except for annotations that Helm adds itself."""
    values = {"policy": {"spec": {"priority": 1000000, "thresholds": {"powerCapRatio": 0.5}}}}
    written, later = first(helm, values), policies(helm, values, *KNOWN)["object"]
    annotations = [policy["metadata"].pop("annotations") for policy in (written, later)]
    assert {a["helm.sh/resource-policy"] for a in annotations} == {"keep", "deleted-by-hook"}
    assert written == later
    assert isinstance(later["spec"]["priority"], int)


@pytest.mark.parametrize("options", [(), KNOWN], ids=["install", "upgrade"])
def test_an_uninstall_without_clean_up_deletes_it(helm: Helm, options: tuple[str, ...]) -> None:
    """Without the clean-up a hook lets Helm delete the policy; meanwhile the policy selects no node."""
    values = {"policy": {"name": "mine"}, "cleanup": {"enabled": False}}
    hook = policies(helm, values, *options)["pre-delete"]
    assert hook["metadata"]["name"] == "mine"
    annotations = hook["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert parse(hook).spec.mode is Mode.OBSERVE
    assert parse(hook).spec.node_selector.match_expressions[0].operator == "DoesNotExist"


@pytest.mark.parametrize("given", [{}, None])
def test_default_selects_gpu_nodes(helm: Helm, given: Object | None) -> None:
    """By default the policy selects nodes labelled as GPU nodes and has the CRD's defaults."""
    spec = parse(first(helm, {"policy": {"spec": given}})).spec
    assert spec == PolicySpec(node_selector=spec.node_selector)
    assert spec.node_selector.match_labels == {"nvidia.com/gpu.present": "true"}


def test_a_selector_replaces_the_default_one(helm: Helm) -> None:
    """A node selector in the values replaces the default one; the rest of the spec is passed on."""
    spec = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}, "probes": {"health": {"interval": "5m"}}}
    values = {"policy": {"spec": spec}}
    assert first(helm, values)["spec"] == policies(helm, values, *KNOWN)["object"]["spec"] == spec
