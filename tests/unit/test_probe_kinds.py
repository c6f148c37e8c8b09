"""Each kind of probe is one object, and no other module knows its name."""

from __future__ import annotations

import ast
from pathlib import Path

from nodegauge_judge.rule import Probe
from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.core.probes.registry import EVERY, KINDS, kinds_of, pools

SOURCE = Path(names.__file__).parent
OTHERS = EVERY.keys() - {names.PROBE_HEALTH}


def test_every_probe_has_a_kind_and_health_comes_first() -> None:
    assert tuple(KINDS) == names.PROBES
    assert all(kind.name == name for name, kind in KINDS.items())
    assert [pool.name for pool in pools()] == [names.PROBE_HEALTH, names.PROBE_NCCL]


def test_every_kind_counts_against_one_pool() -> None:
    assert [kinds_of(pool) for pool in pools()] == [
        (names.PROBE_HEALTH,),
        (names.PROBE_PULL, names.PROBE_NCCL, names.PROBE_LOAD),
    ]
    budget = Budget(concurrent_probes=3, concurrent_nccl_probes=2)
    assert [pool.setting(budget) for pool in pools()] == [3, 2]


def test_no_module_outside_of_the_kinds_knows_one_but_health() -> None:
    """A new kind is a module and a line in the registry: neither a branch nor a table elsewhere has to learn
    of it."""
    offenders = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if "probes" not in path.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and _names_a_kind(node)
    ]
    assert offenders == []


def _names_a_kind(node: ast.Attribute) -> bool:
    """`names.PROBE_NCCL`, `Probe.NCCL` and the like."""
    if isinstance(node.value, ast.Name) and node.value.id == "Probe":
        return getattr(Probe, node.attr, "") in OTHERS
    return node.attr.startswith("PROBE_") and getattr(names, node.attr, "") in OTHERS
