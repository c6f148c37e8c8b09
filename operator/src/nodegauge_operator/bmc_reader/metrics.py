"""Prometheus metrics of the BMC reader.  No metric has a node's name as a label: see `kubectl get bmc`."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from nodegauge_operator.bmc_reader.outcome import Reason

SECONDS = (0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 120, 300)
READ = "read"


class Metrics:
    """All metrics on a registry of their own, and the states of BMCs that they are counted from.

    `clock` gives epoch seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.read_at: dict[str, float] = {}
        """Epoch seconds of the last reading that worked, by node; 0.0 before the first."""
        self._since = clock()
        self._states: dict[str, str] = {}
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        gauge, counter = partial(Gauge, registry=self.registry), partial(Counter, registry=self.registry)
        self.bmcs = gauge(
            "nodegauge_bmc_bmcs",
            "BMCs by how the last try went: read, or the reason why not.",
            ("state",),
        )
        self.oldest = gauge(
            "nodegauge_bmc_oldest_reading_age_seconds",
            "Age of the oldest reading of all BMCs; one that was never read counts from the reader's start.",
        )
        self.readings = counter("nodegauge_bmc_readings_total", "Readings that worked.")
        self.failures = counter("nodegauge_bmc_failures_total", "Tries that failed, by reason.", ("reason",))
        self.seconds = Histogram(
            "nodegauge_bmc_reading_seconds",
            "Duration of readings that worked.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.unwritten = counter(
            "nodegauge_bmc_unwritten_total", "Writes of ChassisReadings that failed; most are tried again."
        )
        self.unused = gauge(
            "nodegauge_bmc_unused_entries",
            "Files of the inventory that belong to no node.",
        )
        for reason in Reason:
            self.failures.labels(reason.value)

    def was_read(self, node: str, *, at: float, seconds: float) -> None:
        """A reading that worked: its end in epoch seconds, and how long it took."""
        self.read_at[node] = at
        self.readings.inc()
        self.seconds.observe(seconds)

    def state(self, node: str, reason: Reason | None) -> None:
        """How the last try on this node's BMC went."""
        self._states[node] = reason.value if reason else READ

    def keep(self, nodes: set[str]) -> None:
        """Forget every other node."""
        self.read_at = {node: at for node, at in self.read_at.items() if node in nodes}
        self._states = {node: state for node, state in self._states.items() if node in nodes}

    def render(self) -> bytes:
        """The exposition text."""
        states = Counts(self._states.values())
        for state in (READ, *(reason.value for reason in Reason)):
            self.bmcs.labels(state).set(states[state])
        oldest = min((at or self._since for at in self.read_at.values()), default=self._clock())
        self.oldest.set(max(0.0, self._clock() - oldest))
        return generate_latest(self.registry)
