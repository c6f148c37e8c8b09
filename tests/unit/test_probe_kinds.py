"""Each kind of probe is one object, and no other module knows its name."""

from __future__ import annotations

import ast
from pathlib import Path

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.core.probes.registry import KINDS, POOLS, kinds_of

SOURCE = Path(names.__file__).parent
BRANCHES = (ast.Compare, ast.match_case)


def test_every_probe_has_a_kind_and_health_comes_first() -> None:
    assert tuple(KINDS) == names.PROBES
    assert all(kind.name == name for name, kind in KINDS.items())
    assert [pool.name for pool in POOLS] == [names.PROBE_HEALTH, names.PROBE_NCCL]


def test_every_kind_counts_against_one_pool() -> None:
    assert [kinds_of(pool) for pool in POOLS] == [
        (names.PROBE_HEALTH,),
        (names.PROBE_PULL, names.PROBE_NCCL, names.PROBE_LOAD),
    ]
    budget = Budget(concurrent_probes=3, concurrent_nccl_probes=2)
    assert [pool.setting(budget) for pool in POOLS] == [3, 2]


def test_no_module_outside_of_the_kinds_branches_on_a_probe_s_name() -> None:
    """A new kind is a module and an entry in the registry: no comparison elsewhere has to learn of it."""
    offenders = [
        f"{path.relative_to(SOURCE)}:{node.lineno if isinstance(node, ast.Compare) else node.pattern.lineno}"
        for path in SOURCE.rglob("*.py")
        if "probes" not in path.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, BRANCHES) and any(_names_a_probe(part) for part in ast.iter_child_nodes(node))
    ]
    assert offenders == []


def _names_a_probe(node: ast.AST) -> bool:
    """`names.PROBE_HEALTH` and the like, itself or as a pattern."""
    value = node.value if isinstance(node, ast.MatchValue) else node
    return isinstance(value, ast.Attribute) and getattr(names, value.attr, "") in names.PROBES
