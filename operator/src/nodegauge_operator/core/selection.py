"""Which policy a node follows, and whether a run may be planned there at all.

Label selectors follow Kubernetes' own rules (apimachinery's labels.Selector): all parts must match, and
NotIn also matches a node that lacks the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, Requirement, Selector
from nodegauge_operator.core.model import NodeView


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether every part of the selector holds for the labels."""
    return all(labels.get(k) == v for k, v in selector.match_labels.items()) and all(
        _holds(requirement, labels) for requirement in selector.match_expressions
    )


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def ranked(policies: Iterable[Policy], labels: Mapping[str, str]) -> list[Policy]:
    """The policies that select a node with these labels; the first is in force (priority, then the name)."""
    chosen = [p for p in policies if matches(p.spec.node_selector, labels)]
    return sorted(chosen, key=lambda p: (-p.spec.priority, p.name))


def may_run(node: NodeView) -> bool:
    """Whether a new run may be planned on a node: Ready, not on its way out, its driver left in peace.

    A cordoned node is health-checked like any other (promise 7).
    """
    return node.ready and not node.leaving and not driver_changes(node.labels)


def driver_changes(labels: Mapping[str, str]) -> bool:
    """The GPU Operator is exchanging the driver or the MIG layout: a probe would be in its way."""
    upgrade = labels.get(names.GPU_UPGRADE_STATE, "")
    mig = labels.get(names.MIG_CONFIG_STATE, "")
    return upgrade not in ("", names.GPU_UPGRADE_DONE) or mig in names.MIG_CONFIG_UNDER_WAY
