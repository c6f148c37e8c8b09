"""The default policy, and the notes after `helm install`."""

import json
from pathlib import Path

import pytest
import yaml

from nodegauge_operator.api.policy import Mode, PolicySpec, parse
from support.chart import KNOWN, Helm, Object, events, of_kind, pods, variants
from support.crds import nested


def policies(helm: Helm, values: Object | None = None, *options: str) -> dict[str, Object]:
    """The policies by what Helm does with them: hook events, or `object` for an ordinary one."""
    rendered = of_kind(helm.objects(values, *options), "GPUValidationPolicy")
    return {",".join(events(o)) or "object": o for o in rendered}


def first(helm: Helm, values: Object | None = None) -> Object:
    (pod,) = [pod for name, pod in pods(helm.objects(values)).items() if name == "Job/ng-nodegauge-policy"]
    (container,) = pod["spec"]["containers"]
    (text,) = [word for word in container["args"] if word.startswith("--policy=")]
    return json.loads(text.removeprefix("--policy=").replace("$$", "$"))


def test_first_and_later_policies_are_the_same(helm: Helm) -> None:
    """Except for annotations that Helm adds itself; a selector of the values replaces the default one."""
    spec = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}, "priority": 1000000}
    values = {"policy": {"spec": spec | {"thresholds": {"powerCapRatio": 0.5}}}}
    written, later = first(helm, values), policies(helm, values, *KNOWN)["object"]
    annotations = [policy["metadata"].pop("annotations") for policy in (written, later)]
    assert {a["helm.sh/resource-policy"] for a in annotations} == {"keep", "deleted-by-hook"}
    assert written == later
    assert written["spec"] == values["policy"]["spec"]
    assert isinstance(later["spec"]["priority"], int)


@pytest.mark.parametrize("options", [(), KNOWN], ids=["install", "upgrade"])
def test_an_uninstall_without_clean_up_deletes_it(helm: Helm, options: tuple[str, ...]) -> None:
    """A hook lets Helm delete it; meanwhile it selects no node."""
    values = {"policy": {"name": "mine"}, "cleanup": {"enabled": False}}
    hook = policies(helm, values, *options)["pre-delete"]
    assert hook["metadata"]["name"] == "mine"
    annotations = hook["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert parse(hook).spec.mode is Mode.OBSERVE
    assert parse(hook).spec.node_selector.match_expressions[0].operator == "DoesNotExist"


@pytest.mark.parametrize("given", [{}, None])
def test_default_selects_gpu_nodes(helm: Helm, given: Object | None) -> None:
    spec = parse(first(helm, {"policy": {"spec": given}})).spec
    assert spec == PolicySpec(node_selector=spec.node_selector)
    assert spec.node_selector.match_labels == {"nvidia.com/gpu.present": "true"}


NOTES = yaml.safe_load(Path(__file__).with_name("notes.yaml").read_text("utf-8"))


@variants
def test_notes_are_complete(helm: Helm, values: Object) -> None:
    """With each set of values the notes have no missing value and no double empty line."""
    text = helm.notes(values)
    assert text.startswith("nodegauge ")
    assert [odd for odd in ("<no value>", "<nil>", "map[", "\n\n\n") if odd in text] == []


@pytest.mark.parametrize(("values", "text"), NOTES, ids=lambda value: str(value)[:40])
def test_notes_say_what_happens_to_the_nodes(helm: Helm, values: Object, text: str) -> None:
    """What is switched off or limited, and the short key to list."""
    assert text in helm.notes(values)


OFF = {
    "labels, condition": "policy.spec.mode=Observe",
    "taints": "policy.spec.taints.effect=None",
    "NCCL, load runs": "policy.spec.budget.concurrentNcclProbes=0",
}


def test_the_notes_show_in_three_lines_what_begins_and_how_each_is_switched_off(helm: Helm) -> None:
    lines = helm.notes().splitlines()
    for what, value in OFF.items():
        [line] = [line for line in lines if line.startswith(f"  {what} ")]
        assert line.endswith(f" {value}")
        path, _, text = value.partition("=")
        values = nested(path.split("."), int(text) if text.isdigit() else text)
        assert line not in helm.notes(values).splitlines()
