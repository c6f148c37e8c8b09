"""By which expectations and thresholds a policy has bandwidth graded, and how to tell that they changed."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Struct

from nodegauge_judge import Thresholds
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy


class Rules(Struct, frozen=True, kw_only=True):
    """What grades bandwidth; `grade` stands for all of it, whichever policy it is from."""

    expectations: Expectations
    thresholds: Thresholds
    grade: str


def rules_of(policy: Policy) -> Rules:
    """The rules of a policy: its own rows before those that nodegauge brings."""
    own = msgspec.json.encode((policy.spec.expectations, policy.spec.thresholds))
    return _rules(own)


@lru_cache(maxsize=64)
def _rules(own: bytes) -> Rules:
    """Asked for at every look at every node that was measured: most share a few policies."""
    rows, thresholds = msgspec.json.decode(own, type=tuple[list[Expectation], Thresholds])
    expectations = Expectations.default().with_policy(rows)
    grade = names.digest(f"{expectations.digest()}{msgspec.json.encode(thresholds).decode()}")
    return Rules(expectations=expectations, thresholds=thresholds, grade=grade)
