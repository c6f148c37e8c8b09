"""Label selectors over nodes, as Kubernetes defines them.

An operator that this version does not know makes the selector unreadable: guessing that it selects nothing
would give its nodes to another policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from nodegauge_operator import names

RESERVED = re.compile(r"([^/]*[.])?(nodegauge[.]dev|kubernetes[.]io|(x-)?k8s[.]io|nvidia[.]com)/")
"""Label keys that other controllers write: Kubernetes, its projects, and NVIDIA's operators."""


class Operator(StrEnum):
    """How a label is compared with values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Struct, frozen=True, rename="camel", kw_only=True):
    """One expression of a label selector, as Kubernetes defines it."""

    key: str
    operator: Operator
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As apimachinery's labels.Selector: NotIn also matches a node that lacks the key."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None


class Selector(Struct, frozen=True, rename="camel", kw_only=True):
    """A label selector over nodes; both parts must match; empty selects every node."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []

    @property
    def keys(self) -> frozenset[str]:
        """The label keys that decide."""
        return frozenset({*self.match_labels, *(expression.key for expression in self.match_expressions)})

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether every part of the selector holds for these labels."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(expression.matches(labels) for expression in self.match_expressions)


_KEY = r"[^\s!=<>,()]+"
_REQUIREMENT = re.compile(
    rf"""\s*(?:!\s*(?P<absent>{_KEY})
        |(?P<key>{_KEY})\s*(?:(?P<sign>==?|!=|<|>)\s*(?P<value>[^\s!=<>,()]*)
                            |(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)""",
    re.VERBOSE,
)
_NODE_AFFINITY = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt"}


def match_expressions(text: str) -> list[dict[str, Any]]:
    """A label selector as lists take it (`pool in (a,b),!spot`), as match expressions of a node affinity.

    They select the same nodes.  Raises `ValueError` where the text is no selector.
    """
    expressions: list[dict[str, Any]] = []
    at = 0
    while text[at:].strip():
        match = _REQUIREMENT.match(text, at)
        if match is None:
            raise ValueError(f"not a label selector from {text[at:].strip()!r} on")
        at = match.end()
        if match["absent"]:
            expressions.append({"key": match["absent"], "operator": "DoesNotExist"})
        elif operator := _NODE_AFFINITY.get(match["sign"] or match["set"]):
            values = [value.strip() for value in (match["values"] or match["value"] or "").split(",")]
            expressions.append({"key": match["key"], "operator": operator, "values": values})
        else:
            expressions.append({"key": match["key"], "operator": "Exists"})
    return expressions


def key_problem(selector: Selector, *, short_key: str) -> str:
    """What is wrong with the keys of a policy's labels, with the field; empty for nothing.

    Such a label would come and go for ever: two controllers write it, or it decides which policy writes it.
    """
    at_key, keys = "at `spec.labels.interconnectKey`", selector.keys
    if RESERVED.match(short_key):
        return (
            f"{short_key!r} is under a domain whose labels other controllers write: write a key of your own, "
            f"or leave it empty for no short key - {at_key}"
        )
    if short_key in keys:
        return (
            f"nodeSelector selects nodes by {short_key!r}, which this policy would write and remove: write "
            f"another key, or leave it empty for no short key - {at_key}"
        )
    ours = [key for key in keys if key.startswith(names.PREFIX)]
    if ours:
        return (
            f"{min(ours)!r} is under {names.PREFIX}, whose labels come and go with readings: write "
            "another label key - at `spec.nodeSelector`"
        )
    return ""
