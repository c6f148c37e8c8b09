"""Label selectors over nodes, as Kubernetes defines them.

An operator that this version does not know makes the selector unreadable: guessing that it selects nothing
would give its nodes to another policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


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

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether every part of the selector holds for these labels."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(expression.matches(labels) for expression in self.match_expressions)
