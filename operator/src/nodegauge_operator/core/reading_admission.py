"""The admission policy that makes a reading true, and whether it stands in the cluster as it should.

The chart installs it (charts/nodegauge/templates/admission-readings.yaml takes the lists from here).
Without it anybody with the right on NodeReadings could speak for any node, so what is written then counts
for nothing (ADR 0035).

Facts on `userInfo.extra`: kubernetes,
staging/src/k8s.io/apiserver/pkg/authentication/serviceaccount/util.go; all three keys are there from
Kubernetes 1.32 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodegauge_contract.reading import PART_BYTES
from nodegauge_operator import names

NAME = f"readings.{names.GROUP}"
PROBE_USER = "@PROBE@"
"""Stands in the lists for the user name of the probes' service account."""
EXTRA = "authentication.kubernetes.io"
PARTS = ", ".join(f"'{name}'" for name in PART_BYTES)
VARIABLES: tuple[dict[str, str], ...] = (
    # Certificates have no extra; a token that is bound to no pod lacks these.
    {
        "name": "extra",
        "expression": "has(request.userInfo.extra) ? request.userInfo.extra : {}",
    },
    {"name": "node", "expression": f"variables.extra[?'{EXTRA}/node-name'].orValue([])"},
    {
        "name": "uids",
        "expression": f"variables.extra[?'{EXTRA}/pod-uid'].orValue([]) "
        f"+ variables.extra[?'{EXTRA}/node-uid'].orValue([])",
    },
    {"name": "parts", "expression": f"[{PARTS}]"},
    {
        "name": "changed",
        "expression": "variables.parts.filter(p, oldObject == null ? p in object "
        ": (p in object) != (p in oldObject) || (p in object && object[p] != oldObject[p]))",
    },
)
VALIDATIONS: tuple[dict[str, str], ...] = (
    # Storage migrations write what is there.
    {
        "expression": "(request.operation == 'UPDATE' && variables.changed.size() == 0) "
        f"|| (request.userInfo.username == '{PROBE_USER}' && variables.node == [object.metadata.name])",
        "message": "a NodeReading is written only by a probe pod on its own node, with the pod's own token",
        "reason": "Forbidden",
    },
    {
        "expression": "variables.changed.all(p, p in object "
        "&& [object[p].podUID, object[p].nodeUID] == variables.uids)",
        "message": "a reading names the pod that writes it and its node, by their UIDs",
        "reason": "Forbidden",
    },
    {
        "expression": "!has(object.metadata.finalizers) && !has(object.metadata.ownerReferences)",
        "message": "a NodeReading has no finalizers and no owners",
        "reason": "Forbidden",
    },
)
RULE: dict[str, Any] = {
    "apiGroups": [names.GROUP],
    "apiVersions": ["*"],
    "operations": ["CREATE", "UPDATE"],
    "resources": [names.READING_PLURAL],
}
NARROWING = ("excludeResourceRules", "namespaceSelector", "objectSelector")
"""Members of `matchConstraints` and of a binding's `matchResources` that leave something out."""


def wrong(policy: Mapping[str, Any], binding: Mapping[str, Any], *, probe_user: str) -> str:
    """Why the policy does not protect readings; empty if it does."""
    spec, bound = policy.get("spec") or {}, binding.get("spec") or {}
    constraints = spec.get("matchConstraints") or {}
    rules = [
        {key: rule.get(key) for key in RULE}
        for rule in constraints.get("resourceRules") or ()
        if not rule.get("resourceNames") and rule.get("scope") != "Namespaced"
    ]
    if spec.get("failurePolicy", "Fail") != "Fail":
        return "its failurePolicy is not Fail"
    if spec.get("matchConditions") or spec.get("paramKind") or RULE not in rules or _narrows(constraints):
        return "it does not match every write of a NodeReading"
    if not _same(spec.get("variables"), VARIABLES, probe_user):
        return "its variables are not those of this version"
    if not _same(spec.get("validations"), VALIDATIONS, probe_user):
        return "its validations are not those of this version"
    matched = bound.get("matchResources") or {}
    if bound.get("policyName") != NAME or _narrows(matched) or matched.get("resourceRules"):
        return "its binding does not bind it to every write"
    if "Deny" not in (bound.get("validationActions") or ()):
        return "its binding does not deny"
    return ""


def _narrows(constraints: Mapping[str, Any]) -> bool:
    return any(constraints.get(member) for member in NARROWING)


def _same(entries: Any, wanted: tuple[dict[str, str], ...], probe_user: str) -> bool:
    """Whether each has the name and the expression that it should have; messages may differ."""
    expressions = [(entry.get("name"), entry.get("expression")) for entry in entries or ()]
    return expressions == [
        (entry.get("name"), entry["expression"].replace(PROBE_USER, probe_user)) for entry in wanted
    ]
