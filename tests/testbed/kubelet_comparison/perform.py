"""Run the table of pods on one node, all at once, and say what the API showed of each.

The node is whatever bears the host name: a real kubelet's or a simulated one's.  It must see the node's
processes in /proc, to know when a container handles SIGTERM.  Leaves no pod.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.kubelet_comparison import facts, watching
from testbed.kubelet_comparison.facts import Facts
from testbed.kubelet_comparison.samples import SAMPLES, SLOT, URGENT, Act, Sample, When, urgent
from testbed.kubelet_comparison.watching import Event
from testbed.rest import Rest
from testbed.wait import DEADLINE_SECONDS

Object = dict[str, Any]

LOOK_SECONDS = 0.05
WITHIN_SECONDS = DEADLINE_SECONDS
SETTLE_SECONDS = 1.0
"""A pod whose phase is final may still get its container's end."""
EVERY_POD = "every pod"
"""The entry with what is the same for all."""


@dataclass
class _Pod:
    """One pod on its way."""

    sample: Sample
    acted: float | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        if self.sample.act is not Act.NOTHING:
            return bool(self.events) and self.events[-1].kind == "DELETED"
        return bool(self.events) and self.events[-1].pod["status"].get("phase") in ("Succeeded", "Failed")


def perform(plane: ControlPlane, *, node: str, samples: Sequence[Sample], namespace: str) -> dict[str, Facts]:
    """What the API showed, by the samples' names.  TestbedError for a pod that does not end in time."""
    api, label = plane.rest(), f"run-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{namespace}/pods"
    make_room(api, node=node)
    running = {sample.name: _Pod(sample) for sample in samples}
    with watching.pods(plane, namespace=namespace, selector=f"comparison={label}") as seen:
        try:
            for sample in samples:
                api.create(path, sample.body(node=node, label=label))
            _follow(running, seen, api=api, node=node, path=path, label=label)
        finally:
            _clear(api, path=path, names=[f"{name}-{label}" for name in (*running, URGENT)])
    result = {name: facts.of_pod(pod.sample, pod.events, acted=pod.acted) for name, pod in running.items()}
    return result | {EVERY_POD: facts.fields(event for pod in running.values() for event in pod.events)}


def again(
    result: dict[str, Facts], *, wrong: Collection[str], plane: ControlPlane, node: str, namespace: str
) -> dict[str, Facts]:
    """What was found, with the samples named in `wrong` run once more by themselves.

    A machine that is too busy can swallow a step or start a container after its deadline; a kubelet that does
    otherwise does so twice.
    """
    samples = [sample for sample in SAMPLES if sample.name in wrong]
    if not samples:
        return result
    second = perform(plane, node=node, samples=samples, namespace=namespace)
    return result | {sample.name: second[sample.name] for sample in samples}


def _follow(
    running: dict[str, _Pod], seen: list[Event], *, api: Rest, node: str, path: str, label: str
) -> None:
    """Sort the events, act when it is time, until every pod is over."""
    taken, end = 0, time.monotonic() + WITHIN_SECONDS
    all_over_since: float | None = None
    while all_over_since is None or time.monotonic() < all_over_since + SETTLE_SECONDS:
        if all_over_since is None and all(pod.over for pod in running.values()):
            all_over_since = time.monotonic()
        if time.monotonic() > end:
            left = {name: facts.steps(pod.events) for name, pod in running.items() if not pod.over}
            raise TestbedError(f"pods that have not ended within {WITHIN_SECONDS:.0f} s: {left}")
        fresh = seen[taken:]
        taken += len(fresh)
        for event in fresh:
            pod = running.get(event.pod["metadata"]["name"].removesuffix(f"-{label}"))
            if pod is not None:
                pod.events.append(event)
        for pod in running.values():
            if pod.sample.act is not Act.NOTHING and pod.acted is None and _reached(pod, label=label):
                pod.acted = time.monotonic()
                _act(pod.sample, api=api, node=node, path=path, label=label)
        time.sleep(LOOK_SECONDS)


def _reached(pod: _Pod, *, label: str) -> bool:
    """Whether it is time to act on it."""
    if not pod.events:
        return False
    status = (pod.events[-1].pod["status"].get("containerStatuses") or [{}])[0]
    now = status.get("state", {})
    waiting = now.get("waiting", {}).get("reason", "")
    match pod.sample.when:
        case When.RUNNING:
            return "running" in now
        case When.HANDLES:
            return "running" in now and handles_sigterm(f"{pod.sample.name}-{label}")
        case When.WAITS:
            return waiting not in ("", "ContainerCreating")
        case When.MAIN_ENDED:
            return "terminated" in now


def _act(sample: Sample, *, api: Rest, node: str, path: str, label: str) -> None:
    name = f"{sample.name}-{label}"
    match sample.act:
        case Act.DELETE:
            api.delete(f"{path}/{name}")
        case Act.EVICT:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            api.create(f"{path}/{name}/eviction", body)
        case Act.PREEMPT:
            api.create(path, urgent(node=node, label=label))
        case Act.NOTHING:
            pass


def handles_sigterm(pod: str) -> bool:
    """Whether a process of the pod has a handler for SIGTERM."""
    return any(
        process_field(number, "SigCgt", base=16) >> (signal.SIGTERM - 1) & 1 for number in processes_of(pod)
    )


def processes_of(pod: str) -> Iterator[int]:
    """Processes that have the pod's name as their host's name."""
    wanted = f"HOSTNAME={pod}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def process_field(number: int, name: str, *, base: int = 10, at: int = 1) -> int:
    """A number from a line of /proc/PID/status, the word `at`; 0 when the process has gone."""
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line for line in lines if line.startswith(name)).split()[at], base)


def make_room(api: Rest, *, node: str) -> None:
    """One place on the node, and a priority that gets it."""
    location = {SLOT: "1"}
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": location, "allocatable": location}})
    try:
        api.create(
            "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": URGENT}, "value": 1000}
        )
    except ApiError as error:
        if error.status != 409:
            raise


def _clear(api: Rest, *, path: str, names: Sequence[str]) -> None:
    """No pod stays; those that have ended go at once."""
    for name in names:
        try:
            api.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise
