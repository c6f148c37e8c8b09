"""Prometheus metrics of nodes, runs and API calls.  Only `nodegauge_node_fault` and its info name nodes.

Every metric is defined here; names contain their unit, and counters end in `_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

HELD_SECONDS = (5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """All metrics on a registry of their own, so that tests can make many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._of_nodes()
        self._of_gpus()
        self._of_faults()
        self._of_runs()
        self._of_work()

    def _of_nodes(self) -> None:
        """Nodes by verdict, interconnect, taint and measurement."""
        gauge = partial(Gauge, registry=self.registry)
        self.nodes = gauge(
            "nodegauge_nodes", "Nodes of a policy by the verdict of their last runs.", ("policy", "verdict")
        )
        self.interconnect = gauge(
            "nodegauge_nodes_by_interconnect",
            "Nodes by interconnect class; none if it is unknown.",
            ("policy", "interconnect"),
        )
        self.gated = gauge(
            "nodegauge_gated_nodes",
            "Nodes with a taint for a fault, by taint and cause; a node can have two.",
            ("policy", "taint", "cause"),
        )
        self.held_back = gauge(
            "nodegauge_held_back_nodes",
            (
                "Nodes whose taint for a fault waits for a free slot in a budget or rate, or for the end of "
                "an incident."
            ),
            ("policy",),
        )
        self.gated_devices = gauge(
            "nodegauge_gated_devices", "Devices that a DeviceTaintRule takes out of use.", ("policy",)
        )
        self.held_back_devices = gauge(
            "nodegauge_held_back_devices",
            "Devices that wait for a free slot in a budget of devices.",
            ("policy",),
        )
        self.incidents_open = gauge(
            "nodegauge_incidents_open",
            "Open incidents: one cause that came up on many nodes within minutes. They hold new taints back.",
            ("policy", "cause"),
        )
        self.incidents = Counter(
            "nodegauge_incidents_total", "Incidents that were opened.", ("cause",), registry=self.registry
        )
        self.newly_gated = gauge(
            "nodegauge_newly_gated_nodes",
            "Nodes that newly took a taint for a fault within the last hour, whether or not it still stands.",
            ("policy",),
        )
        self.foreign = gauge(
            "nodegauge_foreign_nodes",
            "Nodes that belong to another installation and are left alone.",
            ("policy",),
        )
        self.obstacles = gauge(
            "nodegauge_obstacles",
            "What keeps a policy from doing what it says, so that its condition Ready is False. kind=label, "
            "taint, condition, report, write: nodes where the API server refuses it; status, lease, or the "
            "type of a condition that Ready follows: 1.",
            ("policy", "kind"),
        )
        self.readings_protected = gauge(
            "nodegauge_readings_protected",
            "1 while the admission policy of NodeReadings stands; without it no reading is judged.",
        )
        self.gate_slots = gauge(
            "nodegauge_gate_slots",
            "Nodes that may carry a taint for a fault at a time, in all policies together.",
        )
        self.oldest_reading = gauge(
            "nodegauge_oldest_reading_age_seconds",
            "Age of the oldest health reading. last_run=read: of nodes whose last run was read, so it "
            "exceeds the interval only if readings are late; unread: of nodes whose runs fail. Nodes on "
            "which no run is possible now, such as those that are NotReady, do not count.",
            ("policy", "last_run"),
        )
        self.silent = gauge(
            "nodegauge_silent_nodes",
            "Nodes that bring no reading. reason=unreadable: the driver or the probe there does not answer; "
            "not-ready: the node is not Ready. Cordoned nodes, those being removed and those whose driver is "
            "being changed do not count as not-ready.",
            ("policy", "reason"),
        )
        self.health_interval = gauge(
            "nodegauge_health_interval_seconds",
            ("The policy's time between two health readings; in mode Watch probes.health.watch.interval."),
            ("policy",),
        )
        self.watch_containers = gauge(
            "nodegauge_watch_containers",
            "Nodes of a policy in mode Watch by the state of their container: ready, starting, missing, "
            "restarting, late (it writes nothing), unjudged (what it wrote is not judged), not-expected (the "
            "node can run none now).",
            ("policy", "state"),
        )
        self.watchers_ready = gauge(
            "nodegauge_watchers_ready",
            "0 while the condition WatchersReady of a policy in mode Watch is False, else 1.",
            ("policy",),
        )
        self.unreadable = gauge(
            "nodegauge_unreadable_reports",
            "Nodes whose report has a status that cannot be read whole, because somebody else wrote it.",
            ("policy",),
        )
        self.overrides = gauge(
            "nodegauge_overrides",
            "Nodes with an override by kind; invalid: one that is not in force, such as an expired one.",
            ("policy", "kind"),
        )
        self.measured = gauge(
            "nodegauge_measured_nodes",
            "Nodes with measured NCCL bandwidth, by whether it confirms the interconnect that the driver "
            "reports, contradicts it, or is unsure.",
            ("policy", "agreement"),
        )

    def _of_faults(self) -> None:
        """Nodes with something to say, by name: as many as the installation allows
        (`reconcile.node_series`)."""
        gauge = partial(Gauge, registry=self.registry)
        self.node_fault = gauge(
            "nodegauge_node_fault",
            "1 for each cause of a confirmed fault of a node, whether or not its taint stands, and for a "
            "node that nobody reads (cause=unread). Index of the GPU or of several, serial number and PCI "
            "address of one or two; empty where unknown. As many nodes as metrics.perNode.limit allows.",
            ("policy", "node", "taint", "cause", "code", "gpu", "serial", "pci"),
        )
        self.node_fault_info = gauge(
            "nodegauge_node_fault_info",
            "The text to each series of nodegauge_node_fault, for the annotations of alerts: what was "
            "measured, since when, whether the taint is set, and what to do first. Its value: since when, in "
            "epoch seconds; 0 if unknown.",
            ("policy", "node", "code", "measured", "since", "taint_state", "next_step"),
        )
        self.node_faults_left_out = gauge(
            "nodegauge_node_faults_left_out",
            "Nodes that should have such series, and have none because of that limit.",
            ("policy",),
        )

    def _of_gpus(self) -> None:
        """GPUs: how many can be used, what the others are lost to, and what those in use wait for."""
        gauge = partial(Gauge, registry=self.registry)
        self.gpus = gauge(
            "nodegauge_gpus",
            "GPUs that the nodes of a policy have or should have, by class (number and model of a node's "
            "GPUs; unknown). Usable and unusable ones together.",
            ("policy", "class"),
        )
        self.usable_gpus = gauge(
            "nodegauge_usable_gpus",
            "GPUs that jobs can use: read lately and passed before, without a confirmed fault, on a node "
            "that takes pods.",
            ("policy", "class"),
        )
        self.unusable_gpus = gauge(
            "nodegauge_unusable_gpus",
            "All others, each for its worst cause: that of a taint, whether or not it stands; missing, away, "
            "paused, unread, unvalidated, cordoned (docs/monitoring.md).",
            ("policy", "class", "cause"),
        )
        self.uncounted_nodes = gauge(
            "nodegauge_uncounted_nodes",
            "Nodes that were never read and of which neither capacity, labels nor policy say how many GPUs "
            "they have: these are in no other number.",
            ("policy",),
        )
        self.gpus_allocated = gauge(
            "nodegauge_gpus_allocated",
            "GPUs that somebody held in the last feed window of each node.",
            ("policy",),
        )
        self.gpus_lost = gauge(
            "nodegauge_gpus_lost",
            "GPUs of those that did not work, by cause (docs/feeding.md); idle: nobody used them.",
            ("policy", "cause"),
        )

    def _of_runs(self) -> None:
        """Probe runs: finished, running and waiting."""
        gauge, counter = partial(Gauge, registry=self.registry), partial(Counter, registry=self.registry)
        self.runs = counter(
            "nodegauge_runs_total", "Finished probe runs by outcome.", ("probe", "outcome", "reason")
        )
        self.running = gauge("nodegauge_running_probes", "Nodes with a pod of this probe.", ("probe",))
        self.waiting = gauge(
            "nodegauge_waiting_nodes",
            "Nodes whose due run waits for a slot in the budget; nccl includes the pull and load runs.",
            ("probe",),
        )
        self.waiting_pods = gauge(
            "nodegauge_waiting_pods",
            "Pods of others that wait for GPUs: on nodes that could serve one, no NCCL or load run starts.",
        )
        self.held_seconds = Histogram(
            "nodegauge_nccl_held_seconds",
            "How long an NCCL or load run took the GPUs of a node: from scheduling its pod to its end.",
            buckets=HELD_SECONDS,
            registry=self.registry,
        )
        self.refused = counter(
            "nodegauge_pods_refused_total", "Probe pods that the API server refused (webhook, quota)."
        )

    def _of_work(self) -> None:
        """The operator itself: API calls, durations, passes and failures."""
        gauge, counter = partial(Gauge, registry=self.registry), partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=SECONDS, registry=self.registry)
        self.calls = counter(
            "nodegauge_api_calls_total",
            "API calls by verb, resource and status; status 0 means no answer.",
            ("verb", "resource", "status"),
        )
        self.call_seconds = seconds("nodegauge_api_call_seconds", "Duration of API calls.", ("verb",))
        self.result_seconds = seconds(
            "nodegauge_result_to_node_seconds",
            "From the pod event that ended a run until the labels that it changed are written to the node.",
        )
        self.failures = counter(
            "nodegauge_reconcile_failures_total",
            "Reconciles of a node that ended in an error and are tried again.",
            ("kind",),
        )
        self.ready = gauge("nodegauge_ready", "1 while /readyz says ok.")
        self.failed_lists = gauge(
            "nodegauge_failed_lists", "Full lists in a row that failed; 0 after one that is complete."
        )
        self.standing_by = gauge(
            "nodegauge_standing_by",
            "1 while nothing is written: another installation is live, or the Lease cannot be renewed.",
        )
        self.last_pass = gauge(
            "nodegauge_last_pass_timestamp_seconds", "When the operator's loop last finished a pass."
        )

    def count_runs(
        self, *, waiting: Callable[[], Mapping[str, int]], running: Callable[[], Mapping[str, int]]
    ) -> None:
        """Count by probe what waits and what runs, whenever the metrics are read."""
        for gauge, counts in ((self.waiting, waiting), (self.running, running)):
            for probe in counts():
                gauge.labels(probe).set_function(partial(_count, counts, probe))

    def observe_call(self, *, verb: str, resource: str, status: int, seconds: float) -> None:
        """One finished API call (`kube.client.Observer`)."""
        self.calls.labels(verb, resource, str(status)).inc()
        self.call_seconds.labels(verb).observe(seconds)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


def _count(counts: Callable[[], Mapping[str, int]], probe: str) -> float:
    return counts()[probe]
