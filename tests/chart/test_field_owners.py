"""What the runbook advises never stands in the way of a later `helm upgrade`; a conflict names its way out.

helm is the real one, and applies on the server.  kubectl's requests are made under its field managers.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from support.chart import (
    CRDS,
    NAMESPACE,
    POLICIES,
    ROOT,
    Helm,
    HelmFailed,
    Object,
    installed_crds,
    is_served,
    policies,
)
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/ng-nodegauge"
PATCH = ["kubectl", "patch", "nodereport"]
APPLY = ["kubectl", "apply", "-f"]
SCALE = ["kubectl", "scale", "deployment", "nodegauge"]
ANNOTATE = ["kubectl", "annotate", "node"]
RESTART = ["kubectl", "rollout", "restart"]
UPGRADE = ["helm", "upgrade", "nodegauge", "charts/nodegauge", "--namespace", "nodegauge"]
WRITES = re.compile(r"^ *(helm upgrade|kubectl (apply|annotate|edit|label|patch|replace|scale|set|rollout)) ")
OTHER: Object = {
    "policy": {
        "spec": {
            "mode": "Enforce",
            "taints": {"effect": "NoExecute", "causes": {"thermal": "NoSchedule", "busbw": "NoExecute"}},
            "budget": {"gatedNodes": 3},
        }
    }
}
"""Values that set what the runbook changes to something else."""


def advised() -> list[list[str]]:
    """Every command of the runbook and the FAQ that writes, split."""
    pages = [(ROOT / "docs" / page).read_text("utf-8") for page in ("runbook.md", "faq.md")]
    text = "\n".join(pages).replace("\\\n", " ")
    lines, spans = text.splitlines(), re.findall(r"`([^`\n]+)`", text)
    return [shlex.split(c.partition("  #")[0]) for c in [*lines, *spans] if WRITES.match(c)]


def perform(cluster: Helm, rest: Rest, command: list[str]) -> None:
    """The command, on this release."""
    if command[:6] == UPGRADE:
        cluster.release("upgrade", *command[6:], values={})
    elif command[:4] == SCALE:
        replicas = int(command[command.index("--replicas") + 1])
        rest.patch(f"{OPERATOR}/scale?fieldManager=kubectl", {"spec": {"replicas": replicas}})
    elif command[:3] == RESTART:
        stamp = {"kubectl.kubernetes.io/restartedAt": "2026-11-23T00:00:00Z"}
        template = {"metadata": {"annotations": stamp}}
        rest.patch(f"{OPERATOR}?fieldManager=kubectl-rollout", {"spec": {"template": template}})
    elif command[:3] == APPLY:
        crd = yaml.safe_load((ROOT / command[3]).read_text("utf-8"))
        name = crd["metadata"]["name"]
        rest.patch(f"{CRDS}/{name}?fieldManager=kubectl-client-side-apply", {"spec": crd["spec"]})
    else:
        assert command[:3] in (PATCH, ANNOTATE) or command[:3] == ["kubectl", "edit", "gvp"], (
            f"not known to this test: {command}"
        )


def spec(rest: Rest) -> Any:
    """The policy's spec."""
    return policies(rest)["default"]["spec"]


def test_what_the_runbook_advises_never_conflicts_with_an_upgrade(cluster: Helm, rest: Rest) -> None:
    """After every command of the runbook, an upgrade to other values of the same fields succeeds."""
    cluster.install()
    commands = advised()
    assert {tuple(command[:2]) for command in commands} >= {("helm", "upgrade"), ("kubectl", "scale")}
    for command in commands:
        perform(cluster, rest, command)
    assert spec(rest)["mode"] == "Observe"
    assert spec(rest)["taints"]["causes"] == {"thermal": "None"}
    assert rest.get(OPERATOR)["spec"]["replicas"] == 0
    cluster.upgrade(OTHER)
    assert (spec(rest)["mode"], spec(rest)["taints"]["causes"]["thermal"]) == ("Enforce", "NoSchedule")
    assert rest.get(OPERATOR)["spec"]["replicas"] == 1, "an upgrade starts a stopped operator"


def test_a_conflict_names_the_field_and_is_ended_once(cluster: Helm, rest: Rest) -> None:
    """A field that a person changed and the values set otherwise: as docs/install.md says, and as it ends."""
    cluster.install({"policy": {"spec": {"budget": {"gatedNodes": 1}}}})
    change = {"mode": "Observe", "budget": {"gatedNodes": 5}}
    rest.patch(f"{POLICIES}/default?fieldManager=kubectl-edit", {"spec": change})
    with pytest.raises(HelmFailed, match=r'conflict with \\"kubectl-edit\\".*\.spec\.budget\.gatedNodes'):
        cluster.upgrade({"policy": {"spec": {"budget": {"gatedNodes": 2}}}})
    assert spec(rest)["budget"]["gatedNodes"] == 5
    values = {"policy": {"spec": {"budget": {"gatedNodes": 4}}}}
    cluster.release("upgrade", "--force-conflicts", values=values)
    assert (spec(rest)["budget"]["gatedNodes"], spec(rest)["mode"]) == (4, "Observe")
    cluster.upgrade({"policy": {"spec": {"budget": {"gatedNodes": 3}}}})
    assert spec(rest)["budget"]["gatedNodes"] == 3


def test_deleted_crds_come_back_with_an_upgrade(cluster: Helm, rest: Rest) -> None:
    """`helm upgrade` creates CRDs and policy again, also if somebody has applied the CRDs by hand."""
    cluster.install()
    for by_hand in (False, True):
        for name in installed_crds(rest):
            rest.delete(f"{CRDS}/{name}")
        wait_for(lambda: not installed_crds(rest) and not is_served(rest), what="CRDs gone")
        if by_hand:
            for path in (ROOT / "crds").glob("*.yaml"):
                body = yaml.safe_load(path.read_text("utf-8"))
                rest.create(f"{CRDS}?fieldManager=kubectl-client-side-apply", body)
            wait_for(lambda: is_served(rest), what="the CRDs")
        cluster.upgrade()
        assert set(policies(rest)) == {"default"}
