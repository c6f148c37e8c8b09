"""The catalogue of findings: every rule by its code."""

from __future__ import annotations

from nodegauge_judge.case import HealthRule
from nodegauge_judge.entry import Code, Entry
from nodegauge_judge.findings_bandwidth import BANDWIDTH_ENTRIES
from nodegauge_judge.findings_collectives import COLLECTIVE_ENTRIES
from nodegauge_judge.rule import Effect, Probe
from nodegauge_judge.rules import HEALTH_RULES

__all__ = ["CATALOGUE", "Code", "Effect", "Entry", "Probe"]

CATALOGUE: dict[str, HealthRule | Entry] = {rule.code: rule for rule in HEALTH_RULES} | {
    str(entry.code): entry for entry in (*BANDWIDTH_ENTRIES, *COLLECTIVE_ENTRIES)
}
