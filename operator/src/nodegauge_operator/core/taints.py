"""The node's list of taints as it should be: ours replaced in their places, everybody else's untouched.

A patch of taints replaces the whole list, so this makes the whole list (promise 2): foreign taints keep their
order and their `timeAdded`, and so do ours where nothing about them changes.  Only keys of
`names.NODE_TAINTS` are ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredTaint
from nodegauge_operator.core.model import NodeView, Taint

NOTHING: frozenset[str] = frozenset()
UNVALIDATED = frozenset({names.TAINT_UNVALIDATED})


def taint_patch(
    node: NodeView, wanted: Iterable[DesiredTaint], *, leave: frozenset[str] = NOTHING
) -> tuple[Taint, ...] | None:
    """The whole list that carries exactly `wanted` of ours; None when the node does already.

    `leave`: keys of ours that stay as they are unless wanted.  `unvalidated` is content with whatever value
    and effect a kubelet gave it.
    """
    missing = {taint.key: taint for taint in wanted}
    after: list[Taint] = []
    untouched = (leave - missing.keys()) | (UNVALIDATED & missing.keys())
    for taint in node.taints:
        if taint.key not in names.NODE_TAINTS or taint.key in untouched:
            after.append(taint)
        elif taint.key in missing and not any(seen.key == taint.key for seen in after):
            after.append(_best(node, missing[taint.key]))
    present = {taint.key for taint in after}
    after += [_fresh(taint) for key, taint in missing.items() if key not in present]
    return None if tuple(after) == node.taints else tuple(after)


def _best(node: NodeView, wanted: DesiredTaint) -> Taint:
    """The taint that stands there already as wanted, with its time; else a new one."""
    same = (t for t in node.taints if (t.key, t.value, t.effect) == (wanted.key, wanted.value, wanted.effect))
    return next(same, _fresh(wanted))


def _fresh(wanted: DesiredTaint) -> Taint:
    return Taint(key=wanted.key, value=wanted.value, effect=wanted.effect)
