"""What `helm install` says in the end: commands that fit these values, and what they mean for the nodes."""

from __future__ import annotations

import pytest

from support.chart_tools import CHART, NAMESPACE, RELEASE, Helm, Object, variants


def notes(helm: Helm, values: Object | None = None) -> str:
    """The notes of a first install."""
    words = ["install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=client"]
    return helm.run(*words, values=values).partition("NOTES:\n")[2]


@variants
def test_notes_are_whole(helm: Helm, values: Object) -> None:
    """With each set of values there is text, without a value that is missing and without two empty lines."""
    said = notes(helm, values)
    assert said.startswith("nodegauge ")
    assert "<no value>" not in said
    assert "<nil>" not in said
    assert "map[" not in said
    assert "\n\n\n" not in said


@pytest.mark.parametrize(
    ("labels", "column"),
    [
        ({}, "-L interconnect,"),
        ({"interconnectKey": "example.com/link"}, "-L example.com/link,"),
        ({"interconnectKey": ""}, "-L nodegauge.dev/interconnect,"),
    ],
    ids=["default", "renamed", "switched off"],
)
def test_the_table_has_the_labels_key(helm: Helm, labels: Object, column: str) -> None:
    """The command that shows the nodes asks for the key that these values give the label."""
    assert column in notes(helm, {"policy": {"spec": {"labels": labels}}})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "At most 20% of the nodes"),
        ({"budget": {"gatedNodes": 3}}, "At most 3 of the nodes"),
        ({"budget": {"gatedNodes": 0}}, "At most 0 of the nodes"),
        ({"taints": {"effect": "None"}}, "no node is tainted"),
        ({"taints": {"effect": "NoExecute"}}, "power-brake|hw-slowdown:NoExecute"),
        ({"taints": {"causes": {"thermal": "None"}}}, "Effects of single causes: thermal:None."),
        ({"taints": {"unvalidated": "Set"}}, "carry nodegauge.dev/unvalidated:NoSchedule"),
        ({"mode": "Observe"}, "Mode is Observe"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_follows_for_the_nodes(helm: Helm, spec: Object, words: str) -> None:
    """Mode, taints and budget of these values stand in the text."""
    assert words in notes(helm, {"policy": {"spec": spec}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"operator": {"nodeLabelSelector": "gpu=yes"}}, "match operator.nodeLabelSelector: gpu=yes"),
        ({"policy": {"create": False}}, "nothing is measured until you create a GPUValidationPolicy"),
        ({"cleanup": {"enabled": False}}, "`helm uninstall` leaves labels, taints, conditions and reports"),
    ],
    ids=["selector", "no policy", "no clean-up"],
)
def test_what_else_one_has_to_know(helm: Helm, values: Object, words: str) -> None:
    """What is left out, or narrower than one may think, is said."""
    assert words in notes(helm, values)
