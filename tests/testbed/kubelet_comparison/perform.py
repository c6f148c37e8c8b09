"""Run the table of pods on one node, all at once, and say what the API showed of each.  Leaves no pod."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import watching
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.kubelet_comparison import facts
from testbed.kubelet_comparison.facts import Facts
from testbed.kubelet_comparison.samples import SAMPLES, SLOT, URGENT, Act, Sample, urgent
from testbed.processes import with_variable
from testbed.rest import Rest
from testbed.wait import wait_for
from testbed.watching import Event

Object = dict[str, Any]

NAMESPACE = "default"
Difference = tuple[str, str]
"""Pod and aspect; no aspect stands for all."""
SETTLE_SECONDS = 1.0
"""A pod whose phase is final may still get its container's end."""


@dataclass
class _Pod:
    sample: Sample
    acted: float | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def over(self) -> bool:
        if not self.events:
            return False
        last = self.events[-1]
        phase = last.body["status"].get("phase")
        return last.kind == "DELETED" if self.sample.act else phase in ("Succeeded", "Failed")


def perform(plane: ControlPlane, *, node: str, samples: Sequence[Sample]) -> dict[str, Facts]:
    """What the API showed, by the samples' names.  TestbedError for a pod that does not end in time."""
    api, label = plane.rest(), f"run-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    make_room(api, node=node)
    running = {f"{sample.name}-{label}": _Pod(sample) for sample in samples}
    with watching.pods(plane, namespace=NAMESPACE, selector=f"comparison={label}") as seen:
        try:
            for sample in samples:
                api.create(path, sample.body(node=node, label=label))
            _follow(running, seen, api=api, node=node, path=path, label=label)
        finally:
            for name in (*running, f"{URGENT}-{label}"):  # no pod stays; those that have ended go at once
                with _but(404):
                    api.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
    return {p.sample.name: facts.of_pod(p.sample, p.events, acted=p.acted) for p in running.values()}


def compared(
    plane: ControlPlane, *, node: str, but: Collection[Difference] = ()
) -> tuple[dict[str, Facts], set[str]]:
    """What every sample showed, and which did otherwise than written down, but for `but`, and were run again
    alone: a busy machine can swallow a step."""
    seen = perform(plane, node=node, samples=SAMPLES)
    wrong = {
        pod
        for pod, aspect in facts.differences(facts.read(), seen)
        if not {(pod, aspect), (pod, "")} & {*but}
    }
    if samples := [sample for sample in SAMPLES if sample.name in wrong]:
        seen |= perform(plane, node=node, samples=samples)
    return seen, wrong


def _follow(
    running: dict[str, _Pod], seen: list[Event], *, api: Rest, node: str, path: str, label: str
) -> None:
    taken = 0

    def all_over() -> bool:
        nonlocal taken
        fresh = seen[taken:]
        taken += len(fresh)
        for event in fresh:
            if (pod := running.get(event.body["metadata"]["name"])) is not None:
                pod.events.append(event)
        for name, pod in running.items():
            if pod.sample.act and pod.acted is None and _reached(pod, name):
                pod.acted = time.monotonic()
                _act(pod.sample.act, f"{path}/{name}", api=api, urgent=urgent(node=node, label=label))
        return all(pod.over for pod in running.values())

    wait_for(all_over, what="the end of every pod")
    until = time.monotonic() + SETTLE_SECONDS
    wait_for(lambda: all_over() and time.monotonic() > until, what="the last news of every pod")


def _reached(pod: _Pod, name: str) -> bool:
    if not pod.events:
        return False
    status = (pod.events[-1].body["status"].get("containerStatuses") or [{}])[0]
    now = status.get("state", {})
    match pod.sample.when:
        case "runs":
            return "running" in now
        case "handles SIGTERM":
            caught = (process_field(number, "SigCgt", base=16) for number in processes_of(name))
            return "running" in now and any(mask >> (signal.SIGTERM - 1) & 1 for mask in caught)
        case "waits with a reason":
            return now.get("waiting", {}).get("reason", "") not in ("", "ContainerCreating")
        case "has ended":
            return "terminated" in now


def _act(act: Act, pod: str, *, api: Rest, urgent: Object) -> None:
    collection, _, name = pod.rpartition("/")
    match act:
        case "delete":
            api.delete(pod)
        case "evict":
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            api.create(f"{pod}/eviction", body)
        case "preempt":
            api.create(collection, urgent)


def processes_of(pod: str) -> Iterator[int]:
    return with_variable(f"HOSTNAME={pod}")


def process_field(number: int, name: str, *, base: int = 10, at: int = 1) -> int:
    """A number from a line of /proc/PID/status, the word `at`; 0 when the process has gone."""
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line for line in lines if line.startswith(name)).split()[at], base)


def make_room(api: Rest, *, node: str) -> None:
    location = {SLOT: "1"}
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": location, "allocatable": location}})
    priority = {"metadata": {"name": URGENT}, "value": 1000}
    with _but(409):
        api.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)


@contextmanager
def _but(status: int) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status != status:
            raise
