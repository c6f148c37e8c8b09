"""When the next full list is due: once per interval, soon after a gap, and ever later while that helps not.

A full list costs the API server pages by the dozen, and gaps come in crowds exactly when it has least to
spare.  So each list for a gap makes the next one wait longer, until there has been quiet; and so does each
list that fails.  Times are monotonic seconds: a clock that is set must not stop the lists.
"""

from __future__ import annotations

from nodegauge_operator.reconcile.backoff import LONGEST, SHORTEST, Jitter, backoff

GATHER_SECONDS = 20.0
"""kopf's own list after an interruption comes as one event per object; our list waits for its end so long."""
CALM_SECONDS = 2 * LONGEST
"""After so long without a list for a gap, the next gap is the first one again."""


class Relist:
    """The plan of full lists.  `begin` one when it is due, then say how it ended."""

    def __init__(self, *, interval: float, jitter: Jitter) -> None:
        self._interval = interval
        self._jitter = jitter
        self._regular = 0.0
        self._gap: tuple[float, float] | None = None
        """When the gap was first and last heard of."""
        self._taken: tuple[float, float] | None = None
        """The gap that the list under way is to mend."""
        self._failures = 0
        self._hurried = 0
        self._hurried_at = -CALM_SECONDS
        self._not_before = 0.0

    def gap(self, now: float) -> None:
        """Something may have been missed: a list that begins after this has to mend it."""
        self._gap = (self._gap[0] if self._gap else now, now)

    def at(self) -> float:
        """When the next list is due."""
        if self._gap is None or self._failures:
            return self._regular
        first, last = self._gap
        heard = min(last + SHORTEST, first + GATHER_SECONDS)
        return min(self._regular, max(heard, self._not_before))

    def begin(self) -> None:
        """A list is taken now."""
        self._taken, self._gap = self._gap, None

    def done(self, now: float) -> None:
        """The list is complete."""
        self._failures = 0
        self._regular = now + self._interval
        if self._taken is not None:
            self._hurried = 0 if now - self._hurried_at >= CALM_SECONDS else self._hurried
            self._hurried, self._hurried_at = self._hurried + 1, now
            self._not_before = now + backoff(self._hurried, self._jitter)
        self._taken = None

    def failed(self, now: float) -> None:
        """The API server did not give all of it."""
        self._again(now, backoff(self._failures, self._jitter))

    def missing(self, now: float) -> None:
        """Our resources are not there: one cheap question, and people wait for its answer to change."""
        self._again(now, SHORTEST)

    def _again(self, now: float, wait: float) -> None:
        self._failures += 1
        self._regular = now + wait
        self._gap, self._taken = self._taken or self._gap, None
