"""An hour without the API server in mode Watch: what must be true is told by the same story without it."""

import random
from dataclasses import dataclass, field
from functools import cache

import pytest

from fleet.machines import KINDS, NO_FAULT, Machine
from fleet.oracle import ours_of
from fleet.virtual import Fleet
from nodegauge_operator import names
from nodegauge_probes.watch.outbox import LONGEST_PAUSE_S
from support.api_server import NODES, REPORTS, Body
from support.virtual_operator import VirtualTimeOperator, play

pytestmark = pytest.mark.slow

MINUTE, HOUR = 60.0, 3600.0
BROKEN, AWAY, BACK, END = 0.5 * HOUR, 62 * MINUTE, 122 * MINUTE, 150 * MINUTE
FATAL, COUNTED, PROGRAM = 79, 63, 13
LONGEST_RETRY_S = 1.5 * LONGEST_PAUSE_S
"""Until an outbox tries again after a long outage: half more than its longest pause, at most."""

Story = list[tuple[float, str]]
"""From when on which fault."""


STORIES: dict[str, Story] = {
    "lost before, repaired meanwhile": [(BROKEN, "gpu-lost"), (AWAY + 30 * MINUTE, NO_FAULT)],
    "two bad runs, repaired meanwhile": [(BROKEN, "p2p"), (AWAY + 5 * MINUTE, NO_FAULT)],
    "lost meanwhile": [(AWAY + 20 * MINUTE, "gpu-lost")],
    "two bad runs needed, meanwhile": [(AWAY + 7 * MINUTE, "p2p")],
    "hot under load, meanwhile": [(AWAY + 15 * MINUTE, "hot")],
    "supply, in the last minute": [(BACK - 40, "psu")],
    "comes and goes": [(AWAY + 10 * MINUTE, "memory"), (AWAY + 40 * MINUTE, NO_FAULT)],
    "another fault than before": [(BROKEN, "gpu-lost"), (AWAY + 10 * MINUTE, "memory")],
    "stands throughout": [(BROKEN, "nvlink")],
    **{f"calm, {n}": [] for n in range(8)},
}
FAULTS = [(at, f"node-{n}", fault) for n, story in enumerate(STORIES.values()) for at, fault in story]
CALM = [f"node-{n}" for n, story in enumerate(STORIES.values()) if not story]
XIDS: dict[str, list[tuple[float, int]]] = {
    "fatal": [(AWAY + 5 * MINUTE, FATAL), (AWAY + 15 * MINUTE, PROGRAM), (AWAY + 30 * MINUTE, PROGRAM)],
    "counted": [(HOUR, COUNTED), *((AWAY + minute * MINUTE, COUNTED) for minute in (5, 15, 30))],
    "too-few": [(HOUR, COUNTED), *((AWAY + minute * MINUTE, PROGRAM) for minute in (5, 15)), (BACK, COUNTED)],
    "known": [(HOUR / 2, FATAL), *((AWAY + minute * MINUTE, PROGRAM) for minute in (-17, 5, 65))],
}
"""When which Xid came, by node."""
RULE = {"codes": [COUNTED], "count": 3, "severity": "Fail"}


@dataclass
class Lived:
    """What nodes carried at the end, and during the outage; nodes for which a health pod was made after it;
    what calm nodes lost at any time; when a taint for Xids came and went, and how many Xids were counted."""

    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    meanwhile: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    tainted: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in XIDS})
    lifted: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in XIDS})
    counts: dict[str, int] = field(default_factory=dict)


@cache
def lived(*, outage: bool) -> Lived:
    """The stories, each on a machine of its own, with or without the outage."""
    result, kinds, fleet = Lived(), [k for k in KINDS if not KINDS[k].immune], Fleet()
    machines = [Machine(name=f"node-{n}", kind=kinds[n % len(kinds)], pool="") for n in range(len(STORIES))]
    machines += [Machine(name=name, kind="2x TITAN RTX", pool="") for name in XIDS]

    def seen(path: str, _: str, body: Body) -> None:
        name = body["metadata"]["name"]
        if path == NODES and name in CALM and marks(body) != result.meanwhile.get(name, marks(body)):
            result.lost.append(name)
        for probe in body.get("status", {}).get("probes", []) if path == REPORTS else []:
            for finding in probe.get("findings") or ():
                if count := finding["evidence"].get("count"):
                    result.counts[name] = max(int(count), result.counts.get(name, 0))

    async def story(operator: VirtualTimeOperator) -> None:
        chance, made = random.Random(1), 0
        await fleet.begin(operator, machines, mode="Watch", chance=chance, xids=[RULE])
        fleet.subscribers.append(seen)
        for name, times in XIDS.items():
            for at, code in times:
                operator.loop.call_at(at, fleet.containers[name].xid, 1, code)
        for at, name, fault in sorted(
            [*FAULTS, *([(AWAY, "", "away"), (BACK, "", "back")] if outage else [])]
        ):
            await operator.after(max(0.0, at - operator.loop.time()))
            if name:
                fleet.fault(name, fault)
            elif fault == "away":
                result.meanwhile = {name: marks(body) for name, body in fleet.objects[NODES].items()}
                operator.cut_off()
                for container in fleet.containers.values():
                    container.cut_off()
            elif fault == "back":
                made = len(operator.begun)
                for container in fleet.containers.values():
                    operator.loop.call_later(chance.uniform(0, LONGEST_RETRY_S), container.reconnect)
                operator.reconnect()
        await operator.after(END - operator.loop.time())
        result.pods = [node for _, node in operator.begun[made:]] if outage else []
        result.nodes = {name: marks(body) for name, body in fleet.objects[NODES].items() if name not in XIDS}

    play(story, cluster=fleet)
    for at, name, taints in fleet.tainted:
        if name in XIDS:
            (result.tainted if "unhealthy=xid" in taints else result.lifted)[name].append(at)
    return result


def marks(node: Body) -> dict[str, str]:
    return {key: value for key, value in ours_of(node).items() if key != names.LABEL_VALIDATED_AT}


def test_an_hour_without_the_api_server_ends_like_a_calm_one() -> None:
    """Although every regular reading is overdue by then, pods read only what is to be confirmed."""
    calm, disturbed = lived(outage=False), lived(outage=True)
    tainted = [name for name, node in calm.nodes.items() if any(key.startswith("taint ") for key in node)]
    standing = [f"node-{n}" for n, story in enumerate(STORIES.values()) if story and story[-1][1]]
    assert sorted(tainted) == sorted(standing)
    assert disturbed.nodes == calm.nodes
    assert disturbed.lost == []
    assert disturbed.pods
    assert not set(disturbed.pods) & set(CALM)


@pytest.mark.parametrize("outage", [False, True], ids=["calm", "an hour without the API server"])
def test_no_xid_is_lost_and_none_counts_twice(outage: bool) -> None:
    result = lived(outage=outage)
    tainted = {name: len(times) for name, times in result.tainted.items()}
    assert tainted == {"fatal": 1, "counted": 1, "too-few": 0, "known": 1}
    began, within = (BACK, LONGEST_RETRY_S) if outage else (AWAY + 5 * MINUTE, MINUTE)
    assert began <= result.tainted["fatal"][0] < began + within
    assert result.lifted["known"] == [pytest.approx(AWAY - 15 * MINUTE, abs=MINUTE)]
    assert result.counts["counted"] == 4
    assert "too-few" not in result.counts
