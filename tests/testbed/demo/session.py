"""What every step of the demo uses: progress, plain calls, runs asked for, what a node carries."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.cluster import Testbed
from testbed.demo.fleet import PREFIX, Expected
from testbed.errors import ApiError, TestbedError
from testbed.rest import Rest

Object = dict[str, Any]

NAMESPACE = "nodegauge"
CHECKOUT = Path(__file__).resolve().parents[3]
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
RUN_WITHIN = 60.0
LAST_WORDS = 10
"""Lines of the operator's log that an error quotes, LINE_LIMIT characters of each."""
LINE_LIMIT = 240


class Session:
    """A running testbed, seen as its administrator sees it."""

    def __init__(self, testbed: Testbed, directory: Path) -> None:
        self.testbed = testbed
        self.directory = directory
        self.started = time.monotonic()
        self._requests = 0

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{time.monotonic() - self.started:5.1f} s] {text}", flush=True)

    @property
    def api(self) -> Rest:
        """Plain calls as the administrator."""
        plane = self.testbed.control_plane
        return Rest(plane.server, ca_file=plane.ca_file, token=plane.admin_token)

    def node(self, name: str) -> Object:
        """The Node as the API has it."""
        return self.api.get(f"/api/v1/nodes/{name}")

    def report(self, name: str) -> Object:
        """The status of a node's report; empty before there is one."""
        try:
            status: Object = self.api.get(f"{REPORTS}/{name}").get("status") or {}
        except ApiError as error:
            if error.status != 404:
                raise
            return {}
        return status

    def carried(self, name: str) -> Expected:
        """What the node carries of ours."""
        node = self.node(name)
        labels: dict[str, str] = node["metadata"].get("labels", {})
        short, full = labels.get("interconnect", ""), labels.get(PREFIX + "interconnect", "")
        return Expected(
            interconnect=full if short == full else f"{short} / {full}",
            gbps=labels.get(PREFIX + "nvlink-gbps", ""),
            evidence=labels.get(PREFIX + "interconnect-evidence", ""),
            health=labels.get(PREFIX + "health", ""),
            throttled=labels.get(PREFIX + "throttled", ""),
            psu=labels.get(PREFIX + "psu", ""),
            taints=tuple(sorted(our_taints(node))),
        )

    def measure(self, names: Iterable[str]) -> None:
        """Ask for a run on each node now, and wait until each has been judged."""
        wanted = list(names)
        asked = self.ask(wanted)
        self.until(
            lambda: all(answered(self.report(name)) == asked for name in wanted),
            f"runs on {', '.join(wanted)}",
            RUN_WITHIN,
        )

    def ask(self, names: Iterable[str]) -> str:
        """Ask for a run on each node now, as anybody may; the request as it stands in their reports."""
        self._requests += 1
        asked = datetime.fromtimestamp(time.time() + self._requests, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name in names:
            self.api.patch(f"{REPORTS}/{name}", {"spec": {"requestedAt": asked}})
        return asked

    def until(self, seen: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for what must come; `TestbedError` when it does not."""
        self.nothing_left(lambda: [] if seen() else [""], what, seconds)

    def nothing_left(self, left: Callable[[], list[str]], what: str, seconds: float) -> None:
        """Wait until nothing is left to be wrong; `TestbedError` that names what is."""
        end = time.monotonic() + seconds
        while wrong := left():
            if time.monotonic() > end:
                words = "".join(f"\n  {one}" for one in wrong if one)
                raise TestbedError(f"waited {seconds:.0f} s in vain for {what}{words}")
            time.sleep(0.1)

    def last_words(self) -> str:
        """The end of the operator's log, for an error; empty when it never said anything."""
        lines = self.testbed.logs(NAMESPACE, "nodegauge-").splitlines()[-LAST_WORDS:]
        return "".join(["\nThe operator's last words:"] * bool(lines) + [_log_line(line) for line in lines])


def our_taints(node: Object) -> list[str]:
    """Taints of ours on a node as KEY=VALUE:EFFECT."""
    return [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for taint in node["spec"].get("taints") or ()
        if taint["key"].startswith(PREFIX)
    ]


def answered(report: Object) -> str:
    """The request that the report's last health run answered."""
    return str(probe_of(report, "health").get("request", ""))


def probe_of(report: Object, name: str) -> Object:
    """What a report says of one probe; empty before its first run."""
    return next((probe for probe in report.get("probes") or () if probe["name"] == name), {})


def condition(node: Object) -> str:
    """Status of GPUValidated; a dash where there is none."""
    found = (c["status"] for c in node["status"].get("conditions", []) if c["type"] == "GPUValidated")
    return next(found, "-")


def _log_line(line: str) -> str:
    """Level and message of a JSON log line; any other line as it is."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        entry = json.loads(line)
        line = f"{entry['level']}: {entry['message']}"
    return f"\n  | {line[:LINE_LIMIT]}"
