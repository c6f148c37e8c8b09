"""The demo's resident containers: the node that was heated is heated again, and nobody asks for a run."""

from __future__ import annotations

import time

from testbed.demo.fleet import FLEET, HOT_NODE
from testbed.demo.heat import MOST_RUNS, TAINT
from testbed.demo.session import CHECKOUT, NAMESPACE, Session, our_taints, probe_of

MODE = "policy.spec.probes.health.mode"


def watch(session: Session) -> None:
    """Mode Watch: heat under load is tainted within seconds, by what the container on the node reports."""
    session.say(f"helm upgrade --set {MODE}=Watch: a DaemonSet keeps a small container on each GPU node")
    _upgrade(session, "Watch")
    session.until(lambda: _of_container(session) == FLEET.keys(), "a report of every container")
    session.say("every container has reported; each looks at its node every second, and no pod is made")
    hardware = session.testbed.hardware(HOT_NODE)
    hardware.load(100)
    hardware.fault("thermal-slowdown", gpu=0)
    session.say(f"{HOT_NODE}: heat slows GPU 0 down under load, and nobody asks for a run")
    began = time.monotonic()
    session.until(lambda: TAINT in our_taints(session.node(HOT_NODE)), f"the taint {TAINT}")
    session.say(f"{HOT_NODE} is tainted {TAINT} after {time.monotonic() - began:.1f} s and two reports")
    hardware.heal("thermal-slowdown")
    for _ in range(MOST_RUNS):
        if TAINT in our_taints(session.node(HOT_NODE)):
            session.measure([HOT_NODE])
    session.until(lambda: not our_taints(session.node(HOT_NODE)), "no taint after the repair")
    hardware.load(0)
    session.say(f"{HOT_NODE} is cool under load: the taint is gone; back to a pod for each run")
    _upgrade(session, "Periodic")


def _upgrade(session: Session, mode: str) -> None:
    values, chart = str(session.directory / "values.yaml"), str(CHECKOUT / "charts" / "nodegauge")
    command = ["upgrade", "nodegauge", chart, "--namespace", NAMESPACE, "--values", values]
    session.testbed.helm(*command, "--set", f"{MODE}={mode}", "--wait", "--timeout", "300s")


def _of_container(session: Session) -> set[str]:
    """Nodes whose last reading is a container's."""
    runs = {name: probe_of(session.report(name), "health").get("lastRun") or {} for name in FLEET}
    return {name for name, run in runs.items() if str(run.get("podName", "")).startswith("nodegauge-watch")}
