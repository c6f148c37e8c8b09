"""A person's word about one node, in annotations on it: leave it alone, or take it as healthy, until a time.

An override changes the policy for this one node: `leave-alone` pauses it, `healthy` asks for no taint.  So
it ends as it began: by looking at the clock.  The operator reads these annotations and never writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.override import HEALTHY, LEAVE_ALONE, Override
from nodegauge_operator.api.policy import Effect, Mode, Policy, Taints, Unvalidated
from nodegauge_operator.api.times import NEVER, stamp, unstamp
from nodegauge_operator.core.report_size import cut, printable

MAX_AHEAD_DAYS = 30
"""An override ends at most so many days from now.  Chosen by this project: a repair takes days, and an
override that nobody renews for a month is forgotten."""
MAX_WORD, MAX_BY, MAX_REASON = 40, 100, 300
"""Bytes that the report keeps."""
DAY = 86_400.0
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
OVER = "over since "
"""How the problem of an override begins whose time is over."""
NO_TAINTS = Taints(effect=Effect.NONE, unvalidated=Unvalidated.LIFT)


class Annotations(Struct, frozen=True, kw_only=True):
    """The annotations of an override as somebody wrote them."""

    kind: str
    until: str = ""
    by: str = ""
    reason: str = ""


def annotations_of(node: Mapping[str, str]) -> Annotations | None:
    """The override in a node's annotations; None if there is none."""
    if names.OVERRIDE not in node:
        return None
    return Annotations(
        kind=_text(node[names.OVERRIDE], MAX_WORD),
        until=_text(node.get(names.OVERRIDE_UNTIL), MAX_WORD),
        by=_text(node.get(names.OVERRIDE_BY), MAX_BY),
        reason=_text(node.get(names.OVERRIDE_REASON), MAX_REASON),
    )


def override_at(written: Annotations | None, *, now: float) -> Override | None:
    """What the annotations mean at this time; None without any."""
    if written is None:
        return None
    until = _until(written)
    problem = _problem(written, until=until, now=now)
    return Override(
        kind=written.kind,
        until=stamp(until),
        by=written.by,
        reason=written.reason,
        in_force="" if problem else written.kind,
        problem=problem,
    )


def changes_at(written: Annotations | None, *, now: float) -> float:
    """When time alone changes what the annotations mean, epoch seconds; `NEVER` if it does not."""
    until = _until(written) if written is not None else 0.0
    return min((at for at in (until - MAX_AHEAD_DAYS * DAY, until) if at > now), default=NEVER)


def applied(policy: Policy, override: Override | None) -> Policy:
    """The policy as it is in force on a node with this override."""
    if override is None or override.problem:
        return policy
    if override.leaves_alone:
        return replace(policy, spec=replace(policy.spec, mode=Mode.PAUSED))
    return replace(policy, spec=replace(policy.spec, taints=NO_TAINTS))


def _until(written: Annotations) -> float:
    """When the override ends, epoch seconds; 0.0 if nobody wrote a time."""
    return unstamp(written.until) if RFC_3339.fullmatch(written.until) else 0.0


def _problem(written: Annotations, *, until: float, now: float) -> str:
    """Why the override is not in force: the first annotation that is wrong, and the way out."""
    if written.kind not in (LEAVE_ALONE, HEALTHY):
        return f'annotation {names.OVERRIDE} is "{written.kind}": write {LEAVE_ALONE} or {HEALTHY}'
    for key, text in ((names.OVERRIDE_BY, written.by), (names.OVERRIDE_REASON, written.reason)):
        if not text:
            return f"annotation {key} is missing or empty: write who takes this decision, and why"
    if not until:
        return f'annotation {names.OVERRIDE_UNTIL} is "{written.until}": write a time, YYYY-MM-DDThh:mm:ssZ'
    if until > now + MAX_AHEAD_DAYS * DAY:
        return (
            f"annotation {names.OVERRIDE_UNTIL} is more than {MAX_AHEAD_DAYS} days ahead: write an earlier "
            "time, and renew it"
        )
    if until <= now:
        return f"{OVER}{stamp(until)}: remove the annotations, or write a later {names.OVERRIDE_UNTIL}"
    return ""


def _text(value: object, most: int) -> str:
    return cut(printable(str(value or "")).strip(), most)
