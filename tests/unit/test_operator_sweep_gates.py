"""A whole fleet that is bad at once: the sweep with its workers, late watches and slow calls keeps to the
budgets, the rates and the incidents, also over a restart, and says so.
"""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_operator import names
from support.api_server import EVENTS, NODES, POLICIES, REPORTS
from support.client import unavailable
from support.judging import saying
from support.virtual_operator import VirtualTimeOperator, on_virtual_time, refusing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stated_answers")]

HOUR = 3600.0


class Watched:
    """An operator on which every single change is looked at: how many nodes are gated at that moment."""

    def __init__(self, operator: VirtualTimeOperator) -> None:
        self.operator, self.cluster = operator, operator.cluster
        self.most = 0
        operator.cluster.subscribers.append(self._look)

    def _look(self, path: str, kind: str, body: dict[str, Any]) -> None:
        reports = self.cluster.objects[REPORTS].items()
        reserved = {n for n, b in reports if b.get("status", {}).get("desired", {}).get("taints")}
        self.most = max(self.most, len(self.cluster.tainted_nodes() | reserved))

    def all(self, answers: str, *, but: set[str] | None = None) -> None:
        """Every node's next run ends like this, except these nodes'."""
        for name in self.cluster.objects[NODES].keys() - (but or set()):
            self.cluster.results[name] = saying(answers)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.objects[POLICIES]["default"]["status"]
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        (condition,) = [c for c in self.status()["conditions"] if c["type"] == kind]
        return dict(condition)

    def event_messages(self) -> list[str]:
        events = self.cluster.objects[EVENTS].values()
        return [e["message"] for e in events if e["involvedObject"]["kind"] == names.POLICY_KIND]


COMMON: dict[str, Any] = {
    "probes": {"health": {"interval": "5m"}},
    "budget": {"concurrentProbes": "100%", "gatedNodes": "20%", "gatedNodesPerHour": "10%"},
    "breaker": {},
}


@on_virtual_time
async def test_a_common_cause_is_shown_once_and_heals_by_itself(operator: VirtualTimeOperator) -> None:
    """Also while the status cannot be written, and over a restart, which says nothing again."""
    watched = Watched(operator)
    operator.client.refuse = refusing(unavailable(), "PATCH", POLICIES)
    operator.cluster.results = {f"node-{n}": saying("gpu-lost=b") for n in range(40)}
    await operator.begin(40, after=600, **COMMON)
    assert 0 < len(watched.cluster.tainted_nodes()) <= 4
    first = watched.cluster.tainted_nodes()
    operator.client.refuse = lambda verb, path: None
    await operator.after(600)
    condition = watched.condition("BreakerOpen")
    assert (condition["status"], condition["reason"]) == ("True", "IncidentOpen")
    (incident,) = watched.status()["incidents"]
    command = f"nodegauge.dev/close-incident={incident['id']} --overwrite"
    assert command in condition["message"]
    assert command in watched.event_messages()[0]
    assert operator.sample("nodegauge_incidents_open", cause="gpu-lost", policy="default") == 1
    assert operator.sample("nodegauge_incidents_total", cause="gpu-lost") == 1
    blocked = [r["status"]["desired"]["message"] for r in operator.cluster.objects[REPORTS].values()]
    assert sum(f"held back by incident {incident['id']}" in text for text in blocked) == 40 - len(first)
    await operator.stop()
    again = VirtualTimeOperator(operator.loop, cluster=operator.cluster)
    again.start()
    await again.after(1.25 * HOUR)
    assert watched.cluster.tainted_nodes() == first, "the rate would have let more nodes in"
    assert [i["id"] for i in watched.status()["incidents"]] == [incident["id"]]
    watched.all("", but={"node-0"})
    await again.after(1800)
    condition = watched.condition("BreakerOpen")
    assert (condition["status"], condition["reason"]) == ("False", "NoIncident")
    assert watched.status()["incidents"][0]["closedAt"]
    assert watched.cluster.tainted_nodes() == {"node-0"}, "still bad, and alone"
    watched.all("")
    await again.after(1800)
    assert watched.cluster.tainted_nodes() == set()
    assert (len(watched.event_messages()), watched.most) == (1, 4)
    await again.stop()
