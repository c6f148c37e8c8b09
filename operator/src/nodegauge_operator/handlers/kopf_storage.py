"""Storages for kopf that keep nothing: each watch event is handled by itself, without its predecessors.

kopf builds the "essence" of an object at every event, by copying it deeply several times, even where nothing
asks for a difference: for nodes of 20 KB that was a third of the operator's CPU time.  Storages that keep
nothing also cannot write annotations.
"""

from __future__ import annotations

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """Every object looks the same as before: like nothing."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """The essence of any object."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Never seen before."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


class NoProgress(kopf.ProgressStorage):
    """No handler ever needs a second try."""

    def fetch(self, **_: Any) -> None:
        """No progress is known."""

    def store(self, **_: Any) -> None:
        """Nothing is kept."""

    def purge(self, **_: Any) -> None:
        """Nothing is there."""

    def touch(self, **_: Any) -> None:
        """Nothing is written."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Nothing of ours is in it."""
        return essence
