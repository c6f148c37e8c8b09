"""What a real kubelet showed of the samples: `recorded.json`, written by `make e2e ARGS=--record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.kubelet_comparison.facts import Facts

FILE = Path(__file__).with_name("recorded.json")


def read() -> dict[str, Facts]:
    """What the API showed, by the samples' names."""
    pods: dict[str, Facts] = json.loads(FILE.read_text(encoding="utf-8"))["pods"]
    return pods


def versions() -> dict[str, str]:
    """The programs that it was recorded with."""
    result: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))["versions"]
    return result


def write(pods: dict[str, Facts], *, versions: dict[str, str]) -> None:
    """Replace the record."""
    document: dict[str, Any] = {"versions": versions, "pods": pods}
    FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(wanted: dict[str, Facts], seen: dict[str, Facts]) -> dict[tuple[str, str], tuple[Any, Any]]:
    """(pod, aspect) to what was wanted and what was seen, None where one side says nothing of it."""
    keys = [(pod, aspect) for pods in (wanted, seen) for pod, facts in pods.items() for aspect in facts]
    both = {
        (pod, aspect): (wanted.get(pod, {}).get(aspect), seen.get(pod, {}).get(aspect))
        for pod, aspect in keys
    }
    return {key: values for key, values in both.items() if values[0] != values[1]}
