"""The default policy: made in one go with its CRD, merged on upgrade, and never deleted to be made anew."""

from __future__ import annotations

import pytest

from chart_tools import POLICY_API, Helm, Object, events, of_kind
from nodegauge_operator.api.policy import Mode, PolicySpec, parse

KNOWN = ("--api-versions", POLICY_API)


def policies(helm: Helm, values: Object | None = None, *options: str) -> dict[str, Object]:
    """The policies by what Helm does with them: hook events, or `object` for an ordinary one."""
    found = of_kind(helm.objects(values, *options), "GPUValidationPolicy")
    return {",".join(events(o)) or "object": o for o in found}


def test_first_install_makes_it_after_its_crd(helm: Helm) -> None:
    """Where the API server does not know the CRD, the policy is a hook that bears the release's marks."""
    found = policies(helm)
    assert set(found) == {"post-install,post-upgrade"}
    annotations = found["post-install,post-upgrade"]["metadata"]["annotations"]
    assert annotations["meta.helm.sh/release-name"] == "ng"
    assert annotations["meta.helm.sh/release-namespace"] == "gpu-tools"
    assert "before-hook-creation" not in annotations["helm.sh/hook-delete-policy"]


def test_upgrade_takes_it_as_an_object(helm: Helm) -> None:
    """Where the API server knows the CRD, the policy is an ordinary object that a rollback does not prune."""
    found = policies(helm, None, *KNOWN)
    assert set(found) == {"object"}
    assert found["object"]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("options", [(), KNOWN], ids=["install", "upgrade"])
def test_uninstall_without_a_cleanup_removes_it(helm: Helm, options: tuple[str, ...]) -> None:
    """Without the clean-up a hook has Helm delete the policy; what it makes in between selects nothing."""
    values = {"policy": {"name": "mine"}, "cleanup": {"enabled": False}}
    hook = policies(helm, values, *options)["pre-delete"]
    assert hook["metadata"]["name"] == "mine"
    annotations = hook["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert parse(hook).spec.mode is Mode.OBSERVE
    assert parse(hook).spec.node_selector.match_expressions[0].operator == "DoesNotExist"


def test_default_selects_gpu_nodes(helm: Helm) -> None:
    """Without values the policy is for nodes that have GPUs by their label, with the CRD's defaults."""
    spec = parse(policies(helm)["post-install,post-upgrade"]).spec
    assert spec == PolicySpec(node_selector=spec.node_selector)
    assert spec.node_selector.match_labels == {"nvidia.com/gpu.present": "true"}


def test_selector_is_replaced_not_merged(helm: Helm) -> None:
    """A node selector in values replaces the default one, and the rest of the spec is passed on."""
    spec = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}, "probes": {"health": {"interval": "5m"}}}
    for options in ((), KNOWN):
        (policy,) = policies(helm, {"policy": {"spec": spec}}, *options).values()
        assert policy["spec"] == spec


def test_it_can_be_left_out(helm: Helm) -> None:
    """With `policy.create` false there is no policy, and no hook about one."""
    assert policies(helm, {"policy": {"create": False}}) == {}
