"""Every rule by its code, health, NCCL, BMC, load and feed, in the order of the reference page."""

from __future__ import annotations

from typing import Any

from nodegauge_judge.chassis.judge import CHASSIS_RULES
from nodegauge_judge.feed.rules import FEED_RULES
from nodegauge_judge.loadtest_rules.judge import LOAD_RULES
from nodegauge_judge.nccl.judge import NCCL_RULES
from nodegauge_judge.rule import Rule
from nodegauge_judge.rules import HEALTH_RULES

_RULES: tuple[Rule[Any], ...] = (*HEALTH_RULES, *NCCL_RULES, *CHASSIS_RULES, *LOAD_RULES, *FEED_RULES)
CATALOGUE: dict[str, Rule[Any]] = {rule.code: rule for rule in _RULES}
"""The rule of every code that a finding can have."""
