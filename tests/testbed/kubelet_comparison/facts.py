"""What the API showed of a pod, without what differs from run to run, and what a real kubelet showed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from testbed.kubelet_comparison.samples import Sample
from testbed.watching import Event

Object = dict[str, Any]
Facts = dict[str, Any]
"""Aspect to value: texts, numbers, and lists of texts."""

RECORDED = Path(__file__).with_name("recorded.json")
LONG_BYTES, EDGE = 300, 24
SCHEDULERS = ("PodScheduled",)
"""Conditions that are not the kubelet's."""
SHOWN = ("type", "status", "reason")
ALTERNATING = {"ImagePullBackOff": "ErrImagePull"}
"""A kubelet says the one when it has tried and the other until it tries again: which is seen is chance."""
VOLATILE = (
    (re.compile(r"-run-[0-9a-f]{8}"), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UID"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "ID"),
    (re.compile(r"used: \d+, capacity: \d+"), "used: N, capacity: N"),
    (re.compile(r"127\.0\.0\.1:\d{4,5}->"), "127.0.0.1:PORT->"),
)


def of_pod(sample: Sample, events: Sequence[Event], *, acted: float | None) -> Facts:
    last = events[-1].body
    status = last["status"]
    facts: Facts = {
        "steps": steps(events),
        "phase": status.get("phase", ""),
        "reason": status.get("reason", ""),
        "message": without_ids(status.get("message", "")),
        "conditions": sorted(
            " ".join(filter(None, (*(one.get(key) for key in SHOWN), without_ids(one.get("message") or ""))))
            for one in status.get("conditions", [])
            if one["type"] not in SCHEDULERS
        ),
        **container(status),
    }
    if acted is not None:
        over = [event.at for event in events if event.kind == "DELETED"] or [events[-1].at]
        facts["end"] = f"{'before' if over[0] - acted < sample.grace else 'after'} the grace period's end"
    return facts


def steps(events: Sequence[Event]) -> list[str]:
    reported = [step(event.body) for event in events if event.kind != "DELETED"]
    gone = ["gone"] if any(event.kind == "DELETED" for event in events) else []
    return [message for message, _ in groupby(filter(None, reported))] + gone


def step(pod: Object) -> str:
    """Empty where nothing has begun, and while one container runs and the next is made: whether that is seen
    is chance."""
    status = pod["status"]
    states = [state(one.get("state", {})) for one in status.get("containerStatuses", [])]
    half_started = "running" in states and "waiting ContainerCreating" in states
    if half_started or (not states and status.get("phase") == "Pending"):
        return ""
    deleting = "deleting" if pod["metadata"].get("deletionTimestamp") else ""
    head = " ".join(filter(None, [status.get("phase", ""), status.get("reason", ""), deleting]))
    return f"{head}: {', '.join(states)}" if states else head


def state(result: Object) -> str:
    if end := result.get("terminated"):
        return f"terminated {end.get('reason', '')} {end['exitCode']}"
    kind = next(iter(result), "waiting")
    reason = result.get(kind, {}).get("reason", "")
    return " ".join(filter(None, [kind, ALTERNATING.get(reason, reason)]))


def container(status: Object) -> Facts:
    statuses = status.get("containerStatuses") or [{}]
    result = statuses[0]
    now = result.get("state", {})
    kind = next(iter(now), "")
    detail = now.get(kind, {})
    return {
        "state": state(now),
        "last words": without_ids(detail.get("message", "")),
        "times": ", ".join(key for key in ("startedAt", "finishedAt") if detail.get(key)),
        "ready": f"ready {result.get('ready')}, started {result.get('started')}",
        "restarted": "yes" if result.get("restartCount") else "no",
        "before": state(result["lastState"]) if result.get("lastState") else "",
    }


def without_ids(text: str) -> str:
    """A text without ids; a long one as its length and its edges."""
    for pattern, stands in VOLATILE:
        text = pattern.sub(stands, text)
    size = len(text.encode())
    return text if size <= LONG_BYTES else f"{size} bytes: {text[:EDGE]} ... {text[-EDGE:]}"


def read() -> dict[str, Facts]:
    pods: dict[str, Facts] = json.loads(RECORDED.read_text(encoding="utf-8"))["pods"]
    return pods


def versions() -> dict[str, str]:
    result: dict[str, str] = json.loads(RECORDED.read_text(encoding="utf-8"))["versions"]
    return result


def write(pods: dict[str, Facts], *, versions: dict[str, str]) -> None:
    document: dict[str, Any] = {"versions": versions, "pods": pods}
    RECORDED.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(wanted: dict[str, Facts], seen: dict[str, Facts]) -> dict[tuple[str, str], tuple[Any, Any]]:
    keys = [(pod, aspect) for pods in (wanted, seen) for pod, facts in pods.items() for aspect in facts]
    both = {
        (pod, aspect): (wanted.get(pod, {}).get(aspect), seen.get(pod, {}).get(aspect))
        for pod, aspect in keys
    }
    return {key: values for key, values in both.items() if values[0] != values[1]}
