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
    assert {
        policy["metadata"].pop("annotations")["helm.sh/resource-policy"] for policy in (written, later)
    } == {
        "keep",
        "deleted-by-hook",
    }
    assert written == later
    assert isinstance(later["spec"]["priority"], int)


def test_everything_around_the_job_is_a_hook(helm: Helm) -> None:
    """Job, account and roles are hooks of the first install; the Job comes last."""
    mark = "policy-writer"
    objects = [o for o in helm.objects() if o["metadata"]["labels"]["app.kubernetes.io/component"] == mark]
    weight = {o["kind"]: int(o["metadata"]["annotations"]["helm.sh/hook-weight"]) for o in objects}
    assert set(weight) == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert weight["ServiceAccount"] <= weight["ClusterRole"] < weight["ClusterRoleBinding"] < weight["Job"]
    for o in objects:
        assert events(o) == ["post-install", "post-upgrade", "pre-rollback"]
        rule = o["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert rule == "before-hook-creation,hook-succeeded"
    known = [o["metadata"]["labels"]["app.kubernetes.io/component"] for o in helm.objects(None, *KNOWN)]
    assert mark not in known


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
