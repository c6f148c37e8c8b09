"""Readings count only while the chart's admission policy stands: the operator sees each hole in it."""

from collections.abc import Callable
from typing import Any

import pytest

from nodegauge_operator.core.reading_admission import wrong
from nodegauge_operator.kube.admission import BINDING, POLICY
from support.guarded import ACCOUNT, NAMESPACE, Guarded
from testbed.audit import service_account
from testbed.rest import Object

pytestmark = pytest.mark.cluster

RULE = "resourceRules"
ANYTHING = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
SOME = {"matchLabels": {"example.com/a": "b"}}
HOLES: dict[str, tuple[str, Callable[[Object], Any]]] = {
    "it lets pass what it cannot judge": (POLICY, lambda s: s.update(failurePolicy="Ignore")),
    "it has a condition": (
        POLICY,
        lambda s: s.update(matchConditions=[{"name": "x", "expression": "false"}]),
    ),
    "it sees no creation": (POLICY, lambda s: first_rule(s).update(operations=["UPDATE"])),
    "it sees one object": (POLICY, lambda s: first_rule(s).update(resourceNames=["x"])),
    "it sees namespaces only": (POLICY, lambda s: first_rule(s).update(scope="Namespaced")),
    "it sees another resource": (POLICY, lambda s: s["matchConstraints"].update({RULE: [ANYTHING]})),
    "it leaves an object out": (
        POLICY,
        lambda s: s["matchConstraints"].update(
            excludeResourceRules=[first_rule(s) | {"resourceNames": ["x"]}]
        ),
    ),
    "it sees labelled objects": (POLICY, lambda s: s["matchConstraints"].update(objectSelector=SOME)),
    "it takes any node": (POLICY, lambda s: s["variables"][1].update(expression="[object.metadata.name]")),
    "it takes UIDs for nodes": (POLICY, lambda s: swap_names(s["variables"][1], s["variables"][2])),
    "it sees fewer parts": (POLICY, lambda s: s["variables"][3].update(expression="['health']")),
    "it asks for less": (POLICY, lambda s: s["validations"].pop()),
    "the binding is another policy's": (BINDING, lambda s: s.update(policyName="reports.nodegauge.dev")),
    "the binding only notes it": (BINDING, lambda s: s.update(validationActions=["Audit"])),
    "the binding is of other resources": (BINDING, lambda s: s.update(matchResources={RULE: [ANYTHING]})),
    "the binding is of labelled objects": (
        BINDING,
        lambda s: s.update(matchResources={"objectSelector": SOME}),
    ),
    "the binding leaves readings out": (
        BINDING,
        lambda s: s.update(
            matchResources={"excludeResourceRules": [ANYTHING | {"apiGroups": ["*"], "resources": ["*"]}]}
        ),
    ),
}
"""Changes that the API server takes and that let others write, or that nobody has thought through."""


def first_rule(spec: Object) -> Object:
    rule: Object = spec["matchConstraints"][RULE][0]
    return rule


def swap_names(one: Object, other: Object) -> None:
    one["name"], other["name"] = other["name"], one["name"]


def test_the_operator_takes_what_the_chart_installs_for_protection(guarded: Guarded) -> None:
    """As the API server stores it, with its defaults; that of another account is none."""
    policy, binding = guarded.admin.get(POLICY), guarded.admin.get(BINDING)
    user = service_account(NAMESPACE, f"{ACCOUNT}-probe")
    assert wrong(policy, binding, probe_user=user) == ""
    assert "validations" in wrong(policy, binding, probe_user=service_account(NAMESPACE, ACCOUNT))


@pytest.mark.parametrize("what", HOLES)
def test_the_operator_sees_each_hole_in_the_protection(guarded: Guarded, what: str) -> None:
    """Whoever makes it with the API server's consent; nothing is stored here."""
    changed, change = HOLES[what]
    objects = {path: guarded.admin.get(path) for path in (POLICY, BINDING)}
    change(objects[changed]["spec"])
    stored = guarded.admin.call("PUT", f"{changed}?dryRun=All", body=objects[changed])
    assert stored["metadata"]["generation"] == objects[changed]["metadata"]["generation"] + 1, (
        "it is a change"
    )
    objects[changed] = stored
    user = service_account(NAMESPACE, f"{ACCOUNT}-probe")
    assert wrong(objects[POLICY], objects[BINDING], probe_user=user)
