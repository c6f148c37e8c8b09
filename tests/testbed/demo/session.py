"""What every step of the demo uses: progress, API calls, requested runs, labels and taints of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from testbed.cluster import Testbed
from testbed.demo.fleet import Marks
from testbed.marks import PREFIX, carries, probe_of, taints_of
from testbed.playground import DEADLINE_SECONDS, NAMESPACE, REPORTS
from testbed.rest import Object, Rest
from testbed.scripted import READINGS
from testbed.wait import Progress, wait_for

CHECKOUT = Path(__file__).resolve().parents[3]
LOG_LINES = 10
"""Lines of the operator's log that an error quotes, LINE_LIMIT characters of each."""
LINE_LIMIT = 240


class Session(Progress):
    def __init__(self, testbed: Testbed, directory: Path) -> None:
        super().__init__()
        self.testbed = testbed
        self.directory = directory
        self.whole = ExitStack()
        """What lasts as long as the demo."""
        self._requests = 0

    @property
    def api(self) -> Rest:
        return self.testbed.control_plane.rest()

    @cached_property
    def rules_path(self) -> str:
        """Of DeviceTaintRules."""
        return f"{self.api.served('resource.k8s.io', 'devicetaintrules')}/devicetaintrules"

    def node(self, name: str) -> Object:
        return self.api.get(f"/api/v1/nodes/{name}")

    def nodes(self) -> dict[str, Object]:
        """All by name, in one request."""
        return {one["metadata"]["name"]: one for one in self.api.get("/api/v1/nodes")["items"]}

    def report(self, name: str) -> Object:
        return self.api.find(f"{REPORTS}/{name}").get("status") or {}

    def current_report(self, name: str) -> Object:
        """The same once it holds what the node carries: the node is written a moment earlier."""

        self.until(
            lambda: carries(self.node(name), self.report(name).get("desired") or {}),
            f"a report of {name} with what the node carries",
        )
        return self.report(name)

    def reading(self, name: str) -> Object:
        return self.api.get(f"{READINGS}/{name}")

    def marks(self, name: str) -> Marks:
        return self.marks_of(self.node(name))

    def marks_of(self, node: Object) -> Marks:
        labels: dict[str, str] = node["metadata"].get("labels", {})
        short, full = labels.get("interconnect", ""), labels.get(PREFIX + "interconnect", "")
        return Marks(
            interconnect=full if short == full else f"{short} / {full}",
            gbps=labels.get(PREFIX + "nvlink-gbps", ""),
            evidence=labels.get(PREFIX + "interconnect-evidence", ""),
            health=labels.get(PREFIX + "health", ""),
            throttled=labels.get(PREFIX + "throttled", ""),
            psu=labels.get(PREFIX + "psu", ""),
            taints=tuple(sorted(taints_of(node))),
        )

    def measure(self, names: Iterable[str]) -> None:
        wanted = list(names)
        asked = self.ask(wanted)
        self.until(
            lambda: all(probe_of(self.report(name)).get("request") == asked for name in wanted),
            f"runs on {', '.join(wanted)}",
        )

    def ask(self, names: Iterable[str]) -> str:
        self._requests += 1
        asked = datetime.fromtimestamp(time.time() + self._requests, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name in names:
            self.api.patch(f"{REPORTS}/{name}", {"spec": {"requestedAt": asked}})
        return asked

    def until(self, reached: Callable[[], bool], what: str) -> None:
        wait_for(reached, seconds=DEADLINE_SECONDS, what=what)

    def log_tail(self) -> str:
        every = self.testbed.logs(NAMESPACE, "nodegauge-").splitlines()
        lines = [line for line in every if '"logger"' in line][-LOG_LINES:]  # what probes print is no log
        quoted = [f"  | {line[:LINE_LIMIT]}" for line in lines]
        return "\n".join(["\nThe end of the operator's log:"] * bool(lines) + quoted)
