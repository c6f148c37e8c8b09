# nodegauge: Apache-2.0, see LICENSE
"""Asks the archive on the controller: its judge, the operator's in its version, and its page.

Must not know what a verdict means for a task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.archive import digest

JUDGE_S = 120.0
"""A judgement takes half a second; a controller that needs longer than this is out of memory."""


class CannotJudge(Exception):
    """The archive gave no judgement; the message says why."""


def judge(
    archive: Path,
    document: str | Mapping[str, Any],
    *,
    policy: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    node: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The judgement of one document, with `judge_version`; each of its findings has its `steps`.

    `document`, `before`: what a probe or the BMC's reader returned. `node`: `name`, `expectedGpus`,
    `suppliesNeeded` and others, as the archive's `judge` takes them. Raises `CannotJudge`.
    """
    request = {
        "documents": [_text(document)],
        "policy": policy or None,
        "before": [_text(before) if before else None],
        "node": node or None,
    }
    answer = _answer(archive, "judge", request)
    judgement: dict[str, Any] = dict(answer["judgements"][0])
    if "error" in judgement:
        raise CannotJudge(str(judgement["error"]))
    steps = judgement.pop("steps", {})
    judgement["findings"] = [
        {**finding, "steps": steps.get(finding["code"], [])} for finding in judgement.get("findings", [])
    ]
    return {**judgement, "judge_version": answer["version"]}


def check_policy(archive: Path, policy: Mapping[str, Any]) -> None:
    """Raises `CannotJudge` with what the judge refuses of a policy; there is nothing to judge."""
    _answer(archive, "judge", {"documents": [], "policy": policy})


def page(archive: Path, report: Mapping[str, Any], *, title: str) -> str:
    """The HTML page of what the filter `validation_report` returned. Raises `CannotJudge`."""
    return str(_answer(archive, "page", {"title": title, "report": report})["html"])


def with_steps(message: str, steps: Sequence[str]) -> str:
    """A message that ends with what to do."""
    if not steps:
        return message
    if len(steps) == 1:
        return f"{message} What to do: {steps[0]}"
    return f"{message} What to do: " + " ".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _text(document: str | Mapping[str, Any]) -> str:
    return document if isinstance(document, str) else json.dumps(document)


def _answer(archive: Path, program: str, request: Mapping[str, Any]) -> dict[str, Any]:
    command, text = [sys.executable, str(archive), program], json.dumps(request)
    # Ansible's own folder of this run, which is private and goes with it.
    kept = Path(C.DEFAULT_LOCAL_TMP, f"nodegauge-{digest(archive)[:16]}")
    own = {**os.environ, "NODEGAUGE_UNPACKED": str(kept)}
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=JUDGE_S, check=False, env=own
        )
        answer = json.loads(done.stdout) if done.stdout else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CannotJudge(f"the archive's `{program}` fails on the controller: {error}") from error
    if not isinstance(answer, dict):
        last = done.stderr.strip().removeprefix("nodegauge: ")[-400:] or f"exit code {done.returncode}"
        raise CannotJudge(f"the archive's `{program}` fails on the controller: {last}")
    if "error" in answer:
        raise CannotJudge(str(answer["error"]))
    return answer
