"""Xids during an hour without the API server in mode Watch, in virtual time: none is lost, none counts twice.

The kubelet keeps the newest end alone, so what the ends before it reported is in the newest one as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from fleet.machines import Machine
from fleet.virtual import Fleet
from support.api_server import REPORTS, Body
from support.virtual_operator import VirtualTimeOperator, play

MINUTE, HOUR = 60.0, 3600.0
AWAY, BACK, END = 62 * MINUTE, 122 * MINUTE, 150 * MINUTE
FATAL, COUNTED, PROGRAM = 79, 63, 13
STORIES = {
    "fatal": [(AWAY + 5 * MINUTE, FATAL), (AWAY + 15 * MINUTE, PROGRAM), (AWAY + 30 * MINUTE, PROGRAM)],
    "counted": [(HOUR, COUNTED), *((AWAY + minute * MINUTE, COUNTED) for minute in (5, 15, 30))],
    "too-few": [(HOUR, COUNTED), *((AWAY + minute * MINUTE, PROGRAM) for minute in (5, 15)), (BACK, COUNTED)],
    "known": [(HOUR / 2, FATAL), *((AWAY + minute * MINUTE, PROGRAM) for minute in (-17, 5, 65))],
}
"""When which Xid came, by node."""


@dataclass
class Lived:
    """When a taint for Xids came and went, by node; how many a rule of the policy counted, at most."""

    tainted: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in STORIES})
    lifted: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in STORIES})
    counts: dict[str, int] = field(default_factory=dict)


def lived(*, outage: bool) -> Lived:
    """The stories, with or without the outage."""
    result, fleet = Lived(), Fleet()
    machines = [Machine(name=name, kind="2x TITAN RTX", pool="") for name in STORIES]

    async def story(operator: VirtualTimeOperator) -> None:
        loop = operator.loop

        def seen(path: str, _: str, body: Body) -> None:
            name = body["metadata"]["name"]
            if path == REPORTS:
                for probe in body.get("status", {}).get("probes", []):
                    for finding in probe.get("findings") or ():
                        if count := finding["evidence"].get("count"):
                            result.counts[name] = max(int(count), result.counts.get(name, 0))

        rule = {"codes": [COUNTED], "count": 3, "severity": "Fail"}
        await fleet.begin(operator, machines, mode="Watch", chance=random.Random(1), xids=[rule])
        fleet.subscribers.append(seen)
        for name, times in STORIES.items():
            for at, code in times:
                loop.call_at(at, fleet.containers[name].xid, 1, code)
        if outage:
            await operator.after(AWAY - loop.time())
            operator.cut_off()
            for container in fleet.containers.values():
                container.cut_off()
            await operator.after(BACK - loop.time())
            for container in fleet.containers.values():
                container.reconnect()
            operator.reconnect()
        await operator.after(END - loop.time())

    play(story, cluster=fleet)
    for at, name, taints in fleet.tainted:
        (result.tainted if "unhealthy=xid" in taints else result.lifted)[name].append(at)
    return result


@pytest.mark.parametrize("outage", [False, True], ids=["calm", "an hour without the API server"])
def test_no_xid_is_lost_and_none_counts_twice(outage: bool) -> None:
    """A fatal one taints, at once or as soon as its report arrives, though others followed; counted ones are
    as many as came; one that was judged before is none of the later reports that repeat it, which are good
    ones for its taint."""
    result = lived(outage=outage)
    assert {name: len(times) for name, times in result.tainted.items()} == {
        "fatal": 1,
        "counted": 1,
        "too-few": 0,
        "known": 1,
    }
    began = BACK if outage else AWAY + 5 * MINUTE
    assert began <= result.tainted["fatal"][0] < began + MINUTE
    assert result.lifted["known"] == [pytest.approx(AWAY - 15 * MINUTE, abs=MINUTE)]
    assert result.counts["counted"] == 4
    assert "too-few" not in result.counts
