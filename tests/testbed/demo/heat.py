"""The demo's throttled node: it gets hot under load, is tainted, is avoided, cools down and is used again.

The taint removes the load that shows the fault, and an idle GPU cannot throttle: idle runs must not lift it.
"""

from __future__ import annotations

from testbed.demo import jobs
from testbed.demo.fleet import HOT_NODE, PREFIX
from testbed.demo.session import Session, our_taints, probe_of
from testbed.errors import TestbedError

TAINT = f"{PREFIX}throttled=thermal:NoSchedule"
IDLE_RUNS = 4
"""One more than the number of good runs that lift the taint."""
MOST_RUNS = 12
HERE = jobs.required({"key": PREFIX + "nvlink-gbps", "operator": "In", "values": ["56"]})
"""Selects the hot node alone."""


def heat(session: Session) -> None:
    """Hot under load: tainted after two runs."""
    hardware = session.testbed.hardware(HOT_NODE)
    session.say(f"{HOT_NODE}: both GPUs are under load, the airflow fails, and heat slows GPU 0 down")
    hardware.load(100)
    hardware.fault("thermal-slowdown", gpu=0)
    runs = 0
    while TAINT not in _taints(session):
        if runs == MOST_RUNS:
            raise TestbedError(f"{HOT_NODE} was hot for {runs} runs and has no taint {TAINT}")
        session.measure([HOT_NODE])
        runs += 1
        session.say(f"{HOT_NODE}: run {_number(session)}: {_gate(session)}")
    session.say(f"{HOT_NODE} is tainted {TAINT}: {_why(session)}")


def avoid(session: Session) -> None:
    """A second ZeRO job runs on another node; one that can only run here waits."""
    session.say("a second ZeRO job asks for NVLink")
    jobs.run_job(session, "zero-second", jobs.ANY_NVLINK, allowed=jobs.nvlink_nodes() - {HOT_NODE})
    message = jobs.waits_for_a_node(session, "zero-only-here", HERE)
    session.say(f"job zero-only-here can only run on {HOT_NODE}, so it waits: {message}")


def idle(session: Session) -> None:
    """The load has ended: idle runs say nothing about throttling, and keep the taint."""
    session.testbed.hardware(HOT_NODE).load(0)
    session.say(f"{HOT_NODE}: its load ends; {IDLE_RUNS} idle runs")
    for _ in range(IDLE_RUNS):
        session.measure([HOT_NODE])
        if TAINT not in _taints(session):
            raise TestbedError(f"an idle run lifted {TAINT} from {HOT_NODE}")
    session.say(f"{HOT_NODE} is still tainted: an idle GPU cannot throttle, so only runs under load count")


def cool(session: Session) -> None:
    """Cool under load: the taint goes after three good runs, and the waiting job runs."""
    hardware = session.testbed.hardware(HOT_NODE)
    session.say(f"{HOT_NODE}: the airflow is repaired; a burn-in loads both GPUs, and they stay cool")
    hardware.heal("thermal-slowdown")
    hardware.load(100)
    runs = 0
    while TAINT in _taints(session):
        if runs == MOST_RUNS:
            raise TestbedError(f"{HOT_NODE} was cool under load for {runs} runs and still has {TAINT}")
        session.measure([HOT_NODE])
        runs += 1
        session.say(f"{HOT_NODE}: run {_number(session)}: {_gate(session)}")
    session.say(f"{HOT_NODE}: the taint is gone, label throttled={session.marks(HOT_NODE).throttled}")
    session.say(f"job zero-only-here ran on {jobs.ends(session, 'zero-only-here')} and succeeded")


def _taints(session: Session) -> list[str]:
    return our_taints(session.node(HOT_NODE))


def _number(session: Session) -> int:
    return int(probe_of(session.report(HOT_NODE), "health")["lastRun"]["number"])


def _gate(session: Session) -> str:
    """State and run counts of the node's gates."""
    gates = session.report(HOT_NODE).get("gates") or []
    counted = [(gate["code"], gate.get("state"), gate.get("bad", 0), gate.get("good", 0)) for gate in gates]
    message = [f"{code} is {state}, {bad} bad and {good} good in a row" for code, state, bad, good in counted]
    return "; ".join(message) or "no findings"


def _why(session: Session) -> str:
    gates = session.report(HOT_NODE).get("gates") or []
    return "; ".join(f"{gate['subject']}: {gate['message']}" for gate in gates if gate["state"] == "gated")
