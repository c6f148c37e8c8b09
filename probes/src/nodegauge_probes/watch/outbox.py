"""Hands readings to the API server, in a thread of its own: the newest one waits, older ones are overwritten.

Whatever is wrong with the API server, the node goes on being watched.  The first write waits up to
`SPREAD_S`, and the pauses between tries grow; each is drawn anew: 5,000 containers that start at once, or an
API server that comes back, do not meet at the same moment.  A reading that was refused for good (an admission
policy that is being repaired, perhaps) waits like any other.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from nodegauge_contract.reading import Part
from nodegauge_probes.api_client import KEPT_S, Refused

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Chosen by this project: an API server that comes back hears of each node within a minute and a half."""
SPREAD_S = 5.0
"""Chosen by this project: short beside the start of a pod; 5,000 first readings come at 1,000 a second, and
those for which the API server has no place are told to come again."""
REHEARSED_S = 120.0
"""A calm node writes for hours nothing: after so long without a write the last reading is tried once more,
with `dryRun`, so that a way that is closed (token, role, webhook, network) is known before there is news.
Chosen by this project: a person hears of it within ten minutes (docs/monitoring.md); 5,000 nodes ask 42 times
a second, where their kubelets renew 500 Leases."""


class Client(Protocol):
    """What `api_client.ReadingClient` offers to this."""

    def write(self, name: str, part: Part, *, dry_run: bool = False) -> None: ...
    def close_idle(self) -> None: ...


class Outbox:
    """`put` never waits.  `accepted`: readings that were written; `overwritten`: those that a newer one
    replaced before they were."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        say: Callable[[str], None],
        heard_before: bool = False,
        rehearsed_after: float = REHEARSED_S,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.accepted = self.overwritten = 0
        self._client, self._name = client, name
        self._say, self._jitter, self._clock = say, jitter, clock
        self._heard_before, self._rehearsed_after = heard_before, rehearsed_after
        self._changed = threading.Condition()
        self._waiting: Part | None = None
        self._written: Part | None = None
        self._failures = 0
        self._not_before = clock() + SPREAD_S * jitter()

    def start(self) -> None:
        """Begin to write."""
        threading.Thread(target=self._work, daemon=True, name="outbox").start()

    def put(self, part: Part) -> None:
        """Write this one next."""
        with self._changed:
            self.overwritten += self._waiting is not None
            if self._waiting is None:
                self._waits_since = self._clock()
            self._waiting = part
            self._changed.notify_all()

    @property
    def is_empty(self) -> bool:
        """Whether everything was written."""
        return self._waiting is None

    @property
    def is_heard(self) -> bool:
        """Whether something was written (`heard_before`: by an earlier container of this pod), and the last
        try did not fail."""
        return bool(self.accepted or self._heard_before) and not self._failures

    def _work(self) -> None:
        while True:
            self._write(self._next())

    def _next(self) -> Part:
        """The newest reading, once it may be tried; or the last one, if nothing was written for long."""
        with self._changed:
            while True:
                part = self._waiting or self._written
                calm = self._waiting is None and not self._failures
                pause = self._not_before + (self._rehearsed_after if calm else 0.0) - self._clock()
                if part is not None and pause <= 0:
                    return part
                self._changed.wait(min(pause, REHEARSED_S) if part is not None else KEPT_S)
                if self._waiting is None:
                    self._client.close_idle()

    def _write(self, part: Part) -> None:
        rehearsed = part is self._written
        try:
            self._client.write(self._name, part, dry_run=rehearsed)
        except Refused as refused:
            self._failed(part, refused, "would not be taken now" if rehearsed else "is not written")
            return
        with self._changed:
            if self._failures:
                done = "would be taken again" if rehearsed else "is written"
                self._say(f"reading {part.sequence} {done}, after {self._failures} failed tries")
            self.accepted += not rehearsed
            self._failures, self._not_before, self._written = 0, self._clock(), part
            if self._waiting is part:
                self._waiting = None

    def _failed(self, part: Part, refused: Refused, what: str) -> None:
        with self._changed:
            self._failures += 1
            most = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
            pause = max(refused.retry_after, most * (0.5 + self._jitter()))
            self._not_before = self._clock() + pause
            self._say(f"reading {part.sequence} {what}: {refused}; next try in {pause:.0f} s")
