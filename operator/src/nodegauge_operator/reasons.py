"""Reasons: PascalCase words on conditions and events, each with the sentence that says what it means.

Conditions and events take their `reason` from here only; people grep for them at 3 a.m.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reasons of the node condition `GPUValidated` and of events regarding a node."""

    VALIDATED = "Validated"
    """The last readable run found no problem."""
    WARNINGS = "Warnings"
    """The last readable run found something worth a look, but nothing broken."""
    FAULTS_FOUND = "FaultsFound"
    """The last readable run found a fault; the message names it."""
    NOT_YET_VALIDATED = "NotYetValidated"
    """No run has been readable yet; the message says why."""
    STALE = "Stale"
    """No run has been readable for longer than the policy's staleness limit."""
    INTERCONNECT_CHANGED = "InterconnectChanged"
    """The interconnect class or its bandwidth has changed."""
    LABEL_CONFLICT = "LabelConflict"
    """Another owner has set the label with the short key; nodegauge leaves it alone."""
    PROBE_FAILED = "ProbeFailed"
    """A run ended without a readable result."""
    TAINTED = "Tainted"
    """A taint for a fault was set; the message has the evidence."""
    HELD_BACK = "HeldBack"
    """A taint is due, but the policy's budget of gated nodes is used up."""
    ON_PROBATION = "OnProbation"
    """A taint that only runs under load can clear was removed on probation; one bad run sets it again."""
    TAINT_LIFTED = "TaintLifted"
    """A taint for a fault was removed: enough good runs, or the policy no longer wants it."""


class PolicyReason(StrEnum):
    """Reasons of the condition `Ready` of a GPUValidationPolicy."""

    ACTIVE = "Active"
    """The policy is in force."""
    INVALID = "Invalid"
    """The policy cannot be read; its last good version stays in force."""
    NO_NODES = "NoNodes"
    """The policy selects no node."""
    OVERRIDDEN = "Overridden"
    """Some of its nodes follow a policy of higher priority."""


class BudgetReason(StrEnum):
    """Reasons of the condition `GatesWithinBudget` of a GPUValidationPolicy."""

    WITHIN_BUDGET = "WithinBudget"
    """The budget allows every taint that is due."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """The budget is used up and faulty nodes are held back; the message counts them by cause."""
    BUDGET_EXCEEDED = "BudgetExceeded"
    """More nodes are tainted than the budget allows: it was lowered, nodes left the policy, or two operators
    ran at once. Existing taints stay, and none is added."""
