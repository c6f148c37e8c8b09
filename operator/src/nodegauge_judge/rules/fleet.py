"""The rule about versions: a node that runs something else than all others of its class.

The class is model and number of GPUs.  A fleet that is being rolled out has two versions for days, so only
what has not changed for a week counts, on this node and on the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from nodegauge_judge.case import Case, HealthRule, text
from nodegauge_judge.model import Severity, Versions
from nodegauge_judge.rule import Observation

UNCHANGED_S = 7 * 86_400.0
"""Seconds without a change, here and there.  Chosen by this project: a roll-out takes up to a week."""
NEEDED = 3
"""Other nodes that agree, at least.  Chosen by this project: two that agree may both have been forgotten."""
SHARE = 0.9
"""Share of the others that agree, at least.  Chosen by this project: with fewer, the fleet is mixed."""
NAMES = {"driver": "driver", "vbios": "VBIOS", "kernel": "kernel"}


def versions(case: Case) -> Versions:
    """What the node runs."""
    each = sorted({text(gpu.vbios) for gpu in case.result.gpus} - {""})
    host = case.result.host
    return Versions(driver=text(case.result.system.driver), vbios=", ".join(each), kernel=text(host.kernel))


def klass(case: Case) -> str:
    """Model and number of GPUs; empty for GPUs that could not be read, or of several models."""
    products = {text(gpu.name) for gpu in case.result.gpus}
    product = products.pop() if len(products) == 1 else ""
    return f"{len(case.result.gpus)} x {product}" if product else ""


def drift(case: Case) -> Iterator[Observation]:
    """Versions that almost every other node of the class has not."""
    own, name_of_class, before = versions(case), klass(case), case.node.versions
    unchanged_since = case.read_at - UNCHANGED_S
    if not name_of_class or not 0 < before.since <= unchanged_since or replace(before, since=0.0) != own:
        return
    others = case.fleet(name_of_class)
    for name, title in NAMES.items():
        known = [other for other in others if getattr(other, name)]
        agreeing = Counter(getattr(other, name) for other in known if 0 < other.since <= unchanged_since)
        [(usual, count)] = agreeing.most_common(1) or [("", 0)]
        mine = getattr(own, name)
        if mine and mine != usual and count >= max(NEEDED, SHARE * len(known)):
            yield Observation(
                severity=Severity.WARN,
                location=title,
                message=f"{mine} here; {count} of {len(known)} other nodes with {name_of_class} have "
                f"{usual}, for a week or longer.",
                evidence={"here": mine, "others": usual, "nodes": count},
            )


RULES = (
    HealthRule(
        code="fleet-drift",
        title="the node runs another version than its class",
        meaning=(
            "Almost all other nodes with the same model and number of GPUs run another driver, VBIOS or "
            "kernel, and neither they nor this node changed theirs for a week. Such a node was often "
            "forgotten in a roll-out, and behaves differently in ways that nobody expects."
        ),
        when={
            Severity.WARN: (
                "driver, VBIOS or kernel differ from those of at least three and nine tenths of the other "
                "nodes of the class, and all have been as they are for a week"
            )
        },
        next_step="bring it to the version of its class, or find out why it was left out.",
        way_out=(
            "Compare `kubectl get nodereports -o yaml`: `status.versions` of the class.",
            "Install the version of the class; a driver needs idle GPUs and the modules reloaded.",
        ),
        check=drift,
    ),
)
