"""An hour without the API server in mode Watch, in virtual time: afterwards everything is as on a calm day.

Containers report all the while, their kubelets back off and keep the newest end alone; faults come, go and
flap.  The same story without the outage says what must be true.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fleet.machines import KINDS, NO_FAULT, Machine
from fleet.oracle import ours_of
from fleet.virtual import Fleet
from nodegauge_operator import names
from support.api_server import NODES, Body
from support.virtual_operator import VirtualTimeOperator, play

MINUTE, HOUR = 60.0, 3600.0
BROKEN, AWAY, BACK, END = 0.5 * HOUR, 62 * MINUTE, 122 * MINUTE, 145 * MINUTE

Story = list[tuple[float, str]]
"""From when on which fault."""


def flapping(fault: str, *, last: str) -> Story:
    """Every two minutes there or not, from the outage's fifth minute to its fortieth."""
    times = [AWAY + minute * MINUTE for minute in range(5, 40, 2)]
    return [(at, fault if n % 2 == 0 else NO_FAULT) for n, at in enumerate(times)] + [(AWAY + 2400, last)]


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
    "flaps, and stands": flapping("gpu-lost", last="gpu-lost"),
    "flaps, and is well": flapping("p2p", last=NO_FAULT),
    **{f"calm, {n}": [] for n in range(8)},
}


CALM = [f"node-{n}" for n, story in enumerate(STORIES.values()) if not story]


@dataclass(kw_only=True)
class Lived:
    """What nodes carried at the end, and during the outage; nodes for which a health pod was made after it;
    what calm nodes lost at any time."""

    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    meanwhile: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def lived(*, outage: bool) -> Lived:
    """The stories, each on a machine of its own, with or without the outage."""
    result, kinds = Lived(), [k for k in KINDS if not KINDS[k].immune]
    fleet = Fleet()
    machines = [Machine(name=f"node-{n}", kind=kinds[n % len(kinds)], pool="") for n in range(len(STORIES))]

    def seen(path: str, _: str, body: Body) -> None:
        name = body["metadata"]["name"]
        if path == NODES and name in CALM and marks(body) != result.meanwhile.get(name, marks(body)):
            result.lost.append(name)

    async def story(operator: VirtualTimeOperator) -> None:
        chance = random.Random(1)
        await fleet.begin(operator, machines, mode="Watch", chance=chance)
        fleet.subscribers.append(seen)
        for at, name, fault in moments(outage=outage):
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
                    operator.loop.call_later(chance.uniform(0, 10), container.reconnect)
                operator.reconnect()
        await operator.after(END - operator.loop.time())
        result.pods = [node for _, node in operator.begun[made:]] if outage else []
        result.nodes = {name: marks(body) for name, body in fleet.objects[NODES].items()}

    play(story, cluster=fleet)
    return result


def moments(*, outage: bool) -> list[tuple[float, str, str]]:
    """When what happens, on which node; without a node: to the API server."""
    faults = [(at, f"node-{n}", fault) for n, story in enumerate(STORIES.values()) for at, fault in story]
    return sorted([*faults, *([(AWAY, "", "away"), (BACK, "", "back")] if outage else [])])


def marks(node: Body) -> dict[str, str]:
    """Ours on a node, but for the time."""
    return {key: value for key, value in ours_of(node).items() if key != names.LABEL_VALIDATED_AT}


def test_an_hour_without_the_api_server_ends_like_a_calm_one() -> None:
    """What stands is tainted, what was repaired is not, no label is lost; only nodes on which something is
    to be confirmed are read by pods, although every regular reading is overdue by then."""
    calm, disturbed = lived(outage=False), lived(outage=True)
    tainted = [name for name, node in calm.nodes.items() if any(key.startswith("taint ") for key in node)]
    standing = [f"node-{n}" for n, story in enumerate(STORIES.values()) if story and story[-1][1]]
    assert sorted(tainted) == sorted(standing)
    assert disturbed.nodes == calm.nodes
    assert disturbed.lost == []
    assert disturbed.pods
    assert not set(disturbed.pods) & set(CALM)
