"""The demo's throttled node: it grows hot under load, is tainted, is avoided, cools down and comes back.

A taint drains the load that shows the fault, and an idle GPU cannot throttle: idle runs must not lift it.
"""

from __future__ import annotations

from testbed.demo import jobs
from testbed.demo.fleet import HOT_NODE, PREFIX
from testbed.demo.session import Session, our_taints, probe_of
from testbed.errors import TestbedError

TAINT = f"{PREFIX}throttled=thermal:NoSchedule"
IDLE_RUNS = 4
"""One more than the good runs that would lift the taint."""
MOST_RUNS = 12
HERE = jobs.required({"key": PREFIX + "nvlink-gbps", "operator": "In", "values": ["56"]})
"""What only the hot node offers: a job that can run nowhere else."""


def heat(session: Session) -> None:
    """Hot under load: tainted after two runs."""
    hardware = session.testbed.hardware(HOT_NODE)
    session.say(f"{HOT_NODE}: both GPUs are loaded, the air flow fails, GPU 0 slows down for heat")
    hardware.load(100)
    hardware.fault("thermal-slowdown", gpu=0)
    runs = 0
    while TAINT not in _taints(session):
        if runs == MOST_RUNS:
            raise TestbedError(f"{HOT_NODE} was hot for {runs} runs and carries no {TAINT}")
        session.measure([HOT_NODE])
        runs += 1
        session.say(f"{HOT_NODE}: run {_number(session)}: {_gate(session)}")
    session.say(f"{HOT_NODE} is tainted {TAINT}: {_why(session)}")


def avoid(session: Session) -> None:
    """A second ZeRO job goes elsewhere; one that could only run here waits."""
    session.say("a second ZeRO job asks for NVLink")
    jobs.run_job(session, "zero-second", jobs.ANY_NVLINK, allowed=jobs.nvlink_nodes() - {HOT_NODE})
    words = jobs.waits_for_a_node(session, "zero-only-here", HERE)
    session.say(f"job zero-only-here can run on {HOT_NODE} alone, so it waits: {words}")


def idle(session: Session) -> None:
    """The load has ended: idle runs say nothing of throttling, and lift nothing."""
    session.testbed.hardware(HOT_NODE).load(0)
    session.say(f"{HOT_NODE}: its load ends; {IDLE_RUNS} idle runs")
    for _ in range(IDLE_RUNS):
        session.measure([HOT_NODE])
        if TAINT not in _taints(session):
            raise TestbedError(f"an idle run lifted {TAINT} from {HOT_NODE}")
    session.say(f"{HOT_NODE} is still tainted: an idle GPU cannot throttle, so idle runs prove nothing")


def cool(session: Session) -> None:
    """Cool under load: the taint goes after three good runs, and the waiting job runs."""
    hardware = session.testbed.hardware(HOT_NODE)
    session.say(f"{HOT_NODE}: the air flow is mended; a burn-in loads both GPUs, and they stay cool")
    hardware.heal("thermal-slowdown")
    hardware.load(100)
    runs = 0
    while TAINT in _taints(session):
        if runs == MOST_RUNS:
            raise TestbedError(f"{HOT_NODE} was cool under load for {runs} runs and still carries {TAINT}")
        session.measure([HOT_NODE])
        runs += 1
        session.say(f"{HOT_NODE}: run {_number(session)}: {_gate(session)}")
    session.say(f"{HOT_NODE}: the taint is gone, label throttled={session.carried(HOT_NODE).throttled}")
    session.say(f"job zero-only-here ran on {jobs.ends(session, 'zero-only-here')} and ended well")


def _taints(session: Session) -> list[str]:
    return our_taints(session.node(HOT_NODE))


def _number(session: Session) -> int:
    return int(probe_of(session.report(HOT_NODE), "health")["lastRun"]["number"])


def _gate(session: Session) -> str:
    """Where the rows stand that are bad or were, in words."""
    rows = session.report(HOT_NODE).get("gates") or []
    counted = [(row["code"], row.get("state"), row.get("bad", 0), row.get("good", 0)) for row in rows]
    words = [f"{code} is {state}, {bad} bad and {good} good in a row" for code, state, bad, good in counted]
    return "; ".join(words) or "nothing bad"


def _why(session: Session) -> str:
    rows = session.report(HOT_NODE).get("gates") or []
    return "; ".join(f"{row['subject']}: {row['message']}" for row in rows if row["state"] == "gated")
