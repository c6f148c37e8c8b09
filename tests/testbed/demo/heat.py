"""The demo's throttled node: it gets hot under load, is tainted, is avoided, cools down and is used again."""

from __future__ import annotations

import time
from collections.abc import Callable

from testbed.demo import jobs, steps
from testbed.demo.fleet import HOT_NODE, PREFIX
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.marks import probe_of, taints_of

TAINT = f"{PREFIX}throttled=thermal:NoSchedule"
IDLE_RUNS = 4
"""One more than the number of good runs that lift the taint."""
HERE = jobs.required({"key": PREFIX + "nvlink-gbps", "operator": "In", "values": ["56"]})


def heat(session: Session) -> None:
    """Hot under load: tainted after two readings, which nobody asks for."""
    hardware = session.testbed.hardware(HOT_NODE)
    session.say(f"{HOT_NODE}: both GPUs are under load, the airflow fails, and heat slows GPU 0 down;")
    print("    nobody asks for a run: the container on the node looks every second, and reports a change")
    hardware.load(100)
    hardware.fault("thermal-slowdown", gpu=0)
    began = time.monotonic()
    _follow(session, lambda: TAINT in _taints(session), f"the taint {TAINT}")
    took = time.monotonic() - began
    session.say(f"{HOT_NODE} is tainted {TAINT} {took:.1f} s after the fault: {_why(session)}")
    session.say(f"kubectl nodegauge explain {HOT_NODE}")
    print(steps.nodegauge(session, "explain", HOT_NODE), flush=True)


def avoid(session: Session) -> None:
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
    _follow(session, lambda: TAINT not in _taints(session), f"no taint {TAINT}")
    session.say(f"{HOT_NODE}: the taint is gone, label throttled={session.marks(HOT_NODE).throttled}")
    session.say(f"job zero-only-here ran on {jobs.ends(session, 'zero-only-here')} and succeeded")


def _follow(session: Session, reached: Callable[[], bool], what: str) -> None:
    number = 0

    def look() -> bool:
        nonlocal number
        report = session.report(HOT_NODE)
        run = probe_of(report, "health")["lastRun"]
        if number and run["number"] != number:
            by = "container" if run["podName"].startswith("nodegauge-watch") else "health pod"
            gates = [
                f"{one['code']} is {one.get('state')}, {one.get('bad', 0)} bad and {one.get('good', 0)} good"
                for one in report.get("gates") or []
            ]
            message = "; ".join(f"{gate} in a row" for gate in gates) or "no findings"
            session.say(f"{HOT_NODE}: run {run['number']} ({by}): {message}")
        number = run["number"]
        return reached()

    session.until(look, f"{what} on {HOT_NODE}")


def _taints(session: Session) -> list[str]:
    return taints_of(session.node(HOT_NODE))


def _why(session: Session) -> str:
    gates = session.current_report(HOT_NODE).get("gates") or []
    return "; ".join(f"{gate['subject']}: {gate['message']}" for gate in gates if gate["state"] == "gated")
