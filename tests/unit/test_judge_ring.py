"""The search for a ring against every order of the GPUs, one by one."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, permutations

import pytest

from nodegauge_judge.interconnect.classify import Ring, ring


def by_trying(joined: list[list[bool]]) -> bool:
    """Whether any order of the vertices is a cycle."""
    return any(
        all(joined[a][b] for a, b in pairwise((0, *order, 0)))
        for order in permutations(range(1, len(joined)))
    )


@pytest.mark.parametrize("size", range(3, 8))
def test_the_answer_is_that_of_trying_every_order(size: int) -> None:
    """Sparse and dense graphs, those where every vertex has half of the others among them."""
    chance, seen = random.Random(size), set()
    for _ in range(60):
        joined = [[False] * size for _ in range(size)]
        share = chance.random()
        for a, b in combinations(range(size), 2):
            joined[a][b] = joined[b][a] = chance.random() < share
        exists = by_trying(joined)
        seen.add(exists)
        assert ring(joined) is (Ring.YES if exists else Ring.NO), joined
    assert seen == {True, False}
