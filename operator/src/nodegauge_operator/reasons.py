"""Reasons: PascalCase words on conditions and events, each with the sentence that says what it means.

Conditions and events take their `reason` from here only; people grep for them at 3 a.m.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reasons of the node condition `GPUValidated` and of events regarding a node."""

    VALIDATED = "Validated"
    """The last run was read and found nothing bad."""
    WARNINGS = "Warnings"
    """The last run was read; something deserves a look, nothing is broken."""
    FAULTS_FOUND = "FaultsFound"
    """The last run was read and found a fault; the message names it."""
    NOT_YET_VALIDATED = "NotYetValidated"
    """No run could be read yet; the message says why."""
    STALE = "Stale"
    """Nothing could be read for longer than the policy's staleness limit."""
    INTERCONNECT_CHANGED = "InterconnectChanged"
    """The interconnect class or its bandwidth is another one than before."""
    LABEL_CONFLICT = "LabelConflict"
    """A label under the short key belongs to someone else and was left alone."""
    PROBE_FAILED = "ProbeFailed"
    """A run ended without a readable result."""


class PolicyReason(StrEnum):
    """Reasons of the condition `Ready` of a GPUValidationPolicy."""

    ACTIVE = "Active"
    """The policy is in force."""
    INVALID = "Invalid"
    """The policy cannot be read; the last good one stays in force."""
    NO_NODES = "NoNodes"
    """The policy selects no node."""
    OVERRIDDEN = "Overridden"
    """Some of its nodes follow a policy of higher priority."""
