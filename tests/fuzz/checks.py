"""What must hold of everything that the operator would write, and of everything that a terminal shows."""

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.policy import Effect
from nodegauge_operator.core import actions
from nodegauge_operator.core.probes.registry import label_keys
from nodegauge_operator.kube.reports import without_nulls
from support import schema

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""apimachinery, validation: label values, of at most 63 characters."""
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
"""apimachinery, metav1.Condition: reasons."""
NUMBERS = [key for key in label_keys() if "busbw" in key or "gbps" in key]
MAX_REPORT = 200_000
"""This project's: 5,000 reports fit into etcd."""
MAX_EVENT = 1024
"""kubernetes, events/v1: bytes of a note."""
MAX_CONDITION = 1024
"""This project's: characters of a node condition's message; a kubectl table stays readable."""


class Broken(AssertionError):
    """Something was written that must not be."""


def require(holds: bool, what: str, value: object = "") -> None:
    if not holds:
        raise Broken(f"{what}: {value!r:.500}")


def shown(text: str, *, what: str, lines: bool = False) -> None:
    """A text for people: without control characters, and without what turns or hides other text."""
    rest = text.replace("\n", "") if lines else text
    require(rest.isprintable(), f"control characters in {what}", text)


def refusals(status: Any) -> list[str]:
    return schema.errors(status, schema.schema("nodereports")["properties"]["status"])


def stored(status: Any) -> bool:
    return not refusals(status)


def step(write: actions.Step, *, stored: bool = True) -> None:
    """One write of the operator; `stored`: the API server held the report before."""
    match write:
        case actions.PatchReport(_, status) if stored:
            written = without_nulls(to_builtins(status))
            problems, size = refusals(written), len(json.dumps(written))
            require(not problems, "the API server refuses the report", problems)
            require(size < MAX_REPORT, "size of the report", size)
        case actions.PatchNode(_, labels, taints):
            for key, value in labels.items():
                valid = value is None or (len(value) <= 63 and LABEL_VALUE.fullmatch(value) is not None)
                require(valid, f"label {key}", value)
                number = int(value) if value and key in NUMBERS else 0
                require(0 <= number <= 10**6, f"label {key}", value)
            for taint in taints or ():
                require(LABEL_VALUE.fullmatch(taint.value or "") is not None, f"taint {taint.key}", taint)
                if taint.key in names.NODE_TAINTS:
                    require(taint.effect in set(Effect), "effect of our taint", taint)
        case actions.SetCondition(_, condition) if condition is not None:
            shown(condition.message, what="the condition")
            require(len(condition.message) <= MAX_CONDITION, "length of the condition", condition.message)
            require(
                REASON.fullmatch(condition.reason) is not None, "reason of the condition", condition.reason
            )
        case actions.PostEvent(_, change):
            shown(change.message, what="the event")
            require(len(change.message.encode()) <= MAX_EVENT, "length of the event", change.message)
            require(REASON.fullmatch(change.reason) is not None, "reason of the event", change.reason)
        case actions.CreatePod():
            json.dumps(write.manifest, allow_nan=False)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)
