"""The demo's gang: the pods of one job, which run on nodes of one class or not at all."""

from __future__ import annotations

from collections import defaultdict

from testbed import placing
from testbed.demo import bandwidth
from testbed.demo.fleet import BUSY_NODE, FLEET, PREFIX
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.table import table

CLASS = PREFIX + "class"
MORE = ("gpu-h100-2", "gpu-h100-3")
SIZE = 1 + len(MORE)


def classes(session: Session) -> None:
    """Two more machines join; every node that NCCL measured has its class."""
    session.say(f"{' and '.join(MORE)} join, two more machines like {BUSY_NODE}; NCCL runs measure them")
    session.testbed.nodes.add(dict.fromkeys(MORE, FLEET[BUSY_NODE].profile))
    bandwidth.allow(session, bandwidth.AT_A_TIME)
    session.until(lambda: all(_class(session, name) for name in MORE), f"{CLASS} on {', '.join(MORE)}")
    bandwidth.allow(session, 0)
    of = defaultdict(list)
    for name in (*FLEET, *MORE):
        of[_class(session, name)].append(name)
    if of[_class(session, BUSY_NODE)] != [BUSY_NODE, *MORE]:
        raise TestbedError(f"not one class: {BUSY_NODE}, {', '.join(MORE)}: {dict(of)}")
    session.say(
        "label nodegauge.dev/class: one word for nodes of one model and interconnect, as NCCL measured it:"
    )
    rows = [(klass, ", ".join(names)) for klass, names in sorted(of.items()) if klass]
    print("\n" + table([("CLASS", "NODES"), *rows]) + "\n", flush=True)


def schedule(session: Session) -> None:
    """A gang that a class can hold is placed whole; one pod more, and all of it waits."""
    session.say(f"a gang of {SIZE} pods with 8 GPUs each: a PodGroup whose topology key is {CLASS}")
    placing.start_gang(session.api, SIZE)
    session.until(lambda: all(_nodes(session)), f"nodes for a gang of {SIZE}")
    taken = sorted(_nodes(session))
    of = list({_class(session, name) for name in taken})
    if len(taken) != SIZE or len(of) != 1:
        raise TestbedError(f"a gang of {SIZE} is on {', '.join(taken)}, of {', '.join(of)}")
    session.say(f"kube-scheduler placed it on {', '.join(taken)}, all {of[0]}")
    placing.end_gang(session.api)
    session.say(f"the same gang with {SIZE + 1} pods: gpu-dgx1 and gpu-dgx2 have room, but other classes")
    placing.start_gang(session.api, SIZE + 1)
    session.until(lambda: bool(placing.gang_refusal(session.api)), f"a word on a gang of {SIZE + 1}")
    if any(_nodes(session)):
        raise TestbedError(f"a part of a gang of {SIZE + 1} is placed: {_nodes(session)}")
    session.say(f"none of its {SIZE + 1} pods is placed: {placing.gang_refusal(session.api)}")
    placing.end_gang(session.api)


def _class(session: Session, name: str) -> str:
    return str(session.node(name)["metadata"].get("labels", {}).get(CLASS, ""))


def _nodes(session: Session) -> list[str]:
    """Of each of the gang's pods; empty where it waits."""
    return [pod["spec"].get("nodeName", "") for pod in placing.gang(session.api)]
