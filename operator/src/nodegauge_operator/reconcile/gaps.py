"""Since when this process can read its nodes: waiting out a gap is no reason to call a reading stale.

A gap ends at the start of the process, when a policy is resumed, when a node may run probes again, also
because an override that left it alone is over, when the API server answers again after a while or this
installation may write again, and when the clock is set.  After each of them a reading gets an interval in
which it can be renewed (`Context.expires_at`).  This only keeps time; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.times import NEVER, SKEW_SECONDS
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.override import override_at
from nodegauge_operator.kube.errors import KubeError, Unavailable

UNANSWERED_SECONDS = 60.0
"""Without an answer for longer than that, runs were missed.  Chosen by this project: retries come sooner."""


class Gaps:
    """`clock` gives epoch seconds and may be set; `monotonic` gives seconds and never goes back."""

    def __init__(self, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._since = clock()
        self._offset = clock() - monotonic()
        self._clock_steps = 0
        self._unanswered_at: float | None = None
        """Since when writes get no answer, monotonic."""
        self._answered_at = float("-inf")
        self._ended_at: dict[tuple[str, str], float] = {}
        """When a gap of one policy or node ended; `NEVER` while it lasts."""

    def failed(self, error: KubeError, *, since: float) -> None:
        """A write failed that was begun then, monotonic."""
        if self._unanswered_at is None and isinstance(error, Unavailable):
            self._unanswered_at = max(since, self._answered_at)

    def answered(self) -> None:
        """A write or a full list was answered."""
        self._note_silence()
        self._unanswered_at, self._answered_at = None, self._monotonic()

    def idle(self) -> None:
        """Nothing is written now, so nothing can fail: the Lease is not ours, or was not renewed in time."""
        self._since = self._clock()

    def over_at(self, policy: Policy | None, node: NodeView | None) -> float:
        """When the last gap ended for this node, epoch seconds."""
        self._note_step()
        self._note_silence()
        if policy is None or node is None:
            return self._since
        paused = self._over_at(("policy", policy.name), lasts=policy.paused)
        override = override_at(node.override, now=self._clock())
        away = not node.may_run or (override is not None and override.leaves_alone)
        return max(self._since, paused, self._over_at(("node", node.name), lasts=away))

    def forget(self, node: str) -> None:
        """The node is gone; another one of its name has gaps of its own."""
        self._ended_at.pop(("node", node), None)

    def _over_at(self, key: tuple[str, str], *, lasts: bool) -> float:
        """When a gap of one policy or node ended; 0.0 while it lasts, or if there was none."""
        if lasts:
            self._ended_at[key] = NEVER
        elif self._ended_at.get(key) == NEVER:
            self._ended_at[key] = self._clock()
        ended_at = self._ended_at.get(key, 0.0)
        return 0.0 if lasts else ended_at

    def clock_steps(self) -> int:
        """How often the clock has been set: timers from before may be days too late."""
        self._note_step()
        return self._clock_steps

    def _note_silence(self) -> None:
        silent = self._unanswered_at
        if silent is not None and self._monotonic() - silent > UNANSWERED_SECONDS:
            self._since = self._clock()

    def _note_step(self) -> None:
        """Times from before the clock was set say nothing about how long ago they were."""
        offset = self._clock() - self._monotonic()
        if abs(offset - self._offset) > SKEW_SECONDS:
            self._since = self._clock()
            self._ended_at = {key: at for key, at in self._ended_at.items() if at == NEVER}
            self._offset = offset
            self._clock_steps += 1
