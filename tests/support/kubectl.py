"""A kubectl that answers from files, for commands that read a cluster through it."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.report import Report
from nodegauge_operator.kube.reports import without_nulls
from support.api_server import Body

SCRIPT = """#!/bin/bash
for url; do :; done
cd "$(dirname "$0")"
echo "$*" >> calls
name=$(tr / _ <<< "${url%%\\?*}")
[[ $url == *watch=1* ]] && name=watch.$(grep -c watch=1 calls)
[[ -e $name.refused ]] && { cat "$name.refused" >&2; exit 1; }
[[ -e $name ]] && exec cat "$name"
echo "Error from server (NotFound): things \\"${url##*/}\\" not found" >&2
exit 1
"""


class FakeKubectl:
    """What it answers by path; the only kubectl on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        (folder / "kubectl").write_text(SCRIPT, encoding="utf-8")
        (folder / "kubectl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def serve(self, path: str, items: Iterable[Body]) -> None:
        """A collection with its objects, each also by name."""
        items = list(items)
        self._write(path, json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}))
        for item in items:
            self._write(f"{path}/{item['metadata']['name']}", json.dumps(item))

    def refuse(self, path: str, error: str) -> None:
        """kubectl's own words, such as `Error from server (Forbidden): ...`."""
        self._write(f"{path}.refused", error)

    def watches(self, *streams: Iterable[Body]) -> None:
        """What one watch after the other brings."""
        for number, events in enumerate(streams, 1):
            self._write(f"watch.{number}", "".join(f"{json.dumps(event)}\n" for event in events))

    @property
    def calls(self) -> list[str]:
        """What was asked for."""
        return (self._folder / "calls").read_text(encoding="utf-8").splitlines()

    def _write(self, path: str, text: str) -> None:
        (self._folder / path.replace("/", "_")).write_text(text, encoding="utf-8")


def body_of(report: Report) -> dict[str, Any]:
    """The report as the API has it."""
    owner = {"kind": "Node", "uid": report.node_uid}
    metadata = {"name": report.name, "uid": report.uid, "ownerReferences": [owner]}
    return {
        "kind": names.REPORT_KIND,
        "metadata": metadata,
        "status": without_nulls(to_builtins(report.status)),
    }


def policy_body(name: str = "default", *, status: Body | None = None, **spec: Any) -> Body:
    """A policy as the API has it."""
    return {"metadata": {"name": name}, "spec": {"nodeSelector": {}} | spec, "status": status or {}}
