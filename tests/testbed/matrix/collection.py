"""The same documents, judged as the Ansible collection does: by the archive, in a process without this code.

The operator and the collection must agree on every cell: verdict, findings and interconnect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from nodegauge_judge import Judgement, NodeFacts
from testbed.errors import TestbedError

COMPARED = ("verdict", "findings", "interconnect")
SECONDS = 600.0


class Harness(Protocol):
    """A node that was read several times: its documents, and the operator's judgement of the last."""

    documents: list[str]
    judgement: Judgement | None

    @property
    def facts(self) -> NodeFacts: ...


def differences(nodes: Sequence[Harness], *, archive: str, policy: Mapping[str, Any]) -> list[str]:
    """For each node an empty text, or what both say where they differ.  All are of one machine."""
    if not nodes:
        return []
    facts = nodes[0].facts
    request = {
        "documents": [node.documents[-1] for node in nodes],
        "before": [node.documents[:-1] for node in nodes],
        "policy": policy,
        "node": {"gpuCapacity": facts.gpu_capacity, "sharing": facts.sharing.value},
    }
    done = subprocess.run(
        [sys.executable, archive, "judge"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise TestbedError(f"the archive's judge: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    answers = json.loads(done.stdout)["judgements"]
    return [_difference(node, answer) for node, answer in zip(nodes, answers, strict=True)]


def _difference(node: Harness, answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return f"the collection cannot judge it: {answer['error']}"
    operator = msgspec.to_builtins(node.judgement)
    return "; ".join(
        f"{key}: the operator says {operator[key]}, the collection {answer[key]}"
        for key in COMPARED
        if operator[key] != answer[key]
    )
