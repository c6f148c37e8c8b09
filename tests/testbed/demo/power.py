"""The demo's power supplies, read over HTTPS, and its load run on simulated CUDA."""

from __future__ import annotations

from testbed import playground
from testbed.demo.fleet import BUSY_NODE, PREFIX, VALUES
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.hardware.bmcs import bmcs
from testbed.hardware.loads import following
from testbed.marks import probe_of, taints_of
from testbed.rest import Object

POLICIES = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies"
FEED = (0, 1, 2)
"""Supplies of the DGX H100 that hang on one feed; three of six just carry it."""
TAINT = f"{PREFIX}unhealthy=psu:NoSchedule"
LOADED_NODE = "gpu-titan"
LOAD_SECONDS = 10


def supplies(session: Session) -> None:
    """Switch the BMC reader on; its readings become labels, a warning and a taint."""
    hardware = session.testbed.hardware(BUSY_NODE)
    folder = session.directory / "bmc"
    with bmcs({BUSY_NODE: hardware}, folder) as urls:
        session.say(f"the BMC of {BUSY_NODE} serves Redfish at {urls[BUSY_NODE]}; helm upgrade switches on")
        print("    the BMC reader (bmc.enabled), which finds address and password in a Secret", flush=True)
        playground.tell_of_bmcs(session.api, folder)
        values = VALUES + "bmc: {enabled: true, interval: 10s}\n"
        playground.install(session.testbed, values, verb="upgrade")
        _until_psu(session, "ok")
        session.say(f"{BUSY_NODE}: label psu=ok: {_summary(session)}")
        _start_load(session)
        for supply in FEED:
            hardware.fault("supply-input-lost", supply=supply)
        session.say(f"{BUSY_NODE}: one of its two feeds fails; three of six supplies have no input")
        _until_psu(session, "redundancy-lost")
        if TAINT in taints_of(session.node(BUSY_NODE)):
            raise TestbedError(f"{BUSY_NODE} has the taint {TAINT}, although three supplies carry it")
        session.say(f"{BUSY_NODE}: label psu=redundancy-lost, no taint: {_summary(session)}")
        hardware.heal("supply-input-lost")
        hardware.load(100)
        hardware.fault("weak-supply")
        session.say(f"{BUSY_NODE}: the feed is back; under full load a weak supply lets 12 V sag")
        session.until(lambda: TAINT in taints_of(session.node(BUSY_NODE)), f"{TAINT} on {BUSY_NODE}")
        session.say(f"{BUSY_NODE} is tainted {TAINT} after two readings: {_summary(session)}")
        hardware.heal("weak-supply")
        _until_psu(session, "ok")
        session.say(f"{BUSY_NODE}: the supply is replaced, label psu=ok; three good readings lift the taint")


def _start_load(session: Session) -> None:
    session.say(f"load probe: both GPUs of {LOADED_NODE} compute for {LOAD_SECONDS} s at full power")
    policy = session.api.get(f"{POLICIES}/default")
    spec: Object = policy["spec"] | {
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": LOADED_NODE}},
        "priority": 10,
    }
    spec["probes"] |= {
        "load": {"enabled": True, "duration": f"{LOAD_SECONDS}s", "deadline": "5m"},
        "nccl": {"enabled": False},
    }
    spec["budget"] |= {"concurrentNcclProbes": 1}
    session.whole.enter_context(following(session.testbed.hardware(LOADED_NODE)))
    session.api.create(POLICIES, policy | {"metadata": {"name": "load"}, "spec": spec, "status": {}})
    session.ask([LOADED_NODE])


def load(session: Session) -> None:
    """The load run that began while the supplies were read."""
    session.until(lambda: bool(_load_run(session)), f"a load run on {LOADED_NODE}")
    run = _load_run(session)
    if (run["verdict"], run["lastRun"]["outcome"]) != ("pass", "read"):
        raise TestbedError(f"the load run on {LOADED_NODE} did not pass: {run}")
    session.say(f"{LOADED_NODE}: {run['summary']}")


def _until_psu(session: Session, wanted: str) -> None:
    session.until(lambda: session.marks(BUSY_NODE).psu == wanted, f"label psu={wanted} on {BUSY_NODE}")


def _summary(session: Session) -> str:
    return str(probe_of(session.current_report(BUSY_NODE), "bmc")["summary"])


def _load_run(session: Session) -> Object:
    probe = probe_of(session.report(LOADED_NODE), "load")
    return probe if probe.get("lastRun") else {}
