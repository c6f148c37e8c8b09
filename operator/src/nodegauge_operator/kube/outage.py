"""How long the API server has not answered, and one log line a minute while something is waited for.

An outage makes thousands of calls fail, each of which is tried again by whoever made it.  They do not log:
the client notes each failed call here, and whoever waits for something else says so here too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("nodegauge.api")

LINE_SECONDS = 60.0
"""At most one line in so many seconds."""
LONG_SECONDS = 30.0
"""After so long without an answer the process is not ready."""


class Outage:
    """What is waited for.  `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._answered_at = float("-inf")
        self._line_at: float | None = None
        self._failed = 0
        """Failed calls since the last line."""

    @property
    def seconds(self) -> float:
        """How long every call has failed; 0.0 if the last one was answered."""
        return 0.0 if self._since is None else self._clock() - self._since

    def problem(self) -> str:
        """Why nothing can be done now; empty until the API server has been away for a while."""
        return (
            f"the API server has not answered for {self.seconds:.0f} s" if self.seconds > LONG_SECONDS else ""
        )

    def failed(self, why: str, *, since: float | None = None) -> None:
        """A call got no answer, or one that says later.  `since`: when it was made; the outage begins after
        the last answer."""
        if self._since is None:
            self._since = self._clock() if since is None else max(since, self._answered_at)
        self._failed += 1
        self.waiting(f"no answer for {self.seconds:.0f} s, {self._failed} failed calls, the last: {why}")

    def answered(self) -> None:
        """A call was answered."""
        if self.seconds >= LINE_SECONDS:
            log.info("the API server answers again after %.0f s", self.seconds)
        self._since, self._answered_at = None, self._clock()

    def waiting(self, what: str) -> None:
        """Say what is waited for, unless a line was written less than a minute ago."""
        now = self._clock()
        if self._line_at is not None and now < self._line_at + LINE_SECONDS:
            return
        self._line_at, self._failed = now, 0
        log.warning("waiting for the API server: %s", what)
