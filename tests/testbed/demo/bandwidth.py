"""The demo's NCCL runs: what NVML reports about an interconnect is compared with measured bus bandwidth."""

from __future__ import annotations

import time

from testbed import playground
from testbed.demo import steps
from testbed.demo.fleet import BROKEN_LINKS, BUSY_NODE, FLEET, PREFIX, SEVEN_NODE
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.hardware import Hardware
from testbed.marks import labels_of, probe_of
from testbed.placing import PODS
from testbed.processes import with_argument, with_variable
from testbed.simulated_nccl.machine import MACHINE_VARIABLE

POLICY = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default"
AT_A_TIME = 4
NOISE = 0.03
"""Two runs on one machine differ by less; the label is rounded down."""
JOB = "zero-all-gpus"


def allow(session: Session, nodes: int) -> None:
    session.api.patch(POLICY, {"spec": {"budget": {"concurrentNcclProbes": nodes}}})


def measure(session: Session) -> None:
    """Let NCCL runs start; every node must get the labels that its measured bandwidth calls for."""
    session.say(f"NCCL probes were paused (budget.concurrentNcclProbes 0); now {AT_A_TIME} nodes at a time:")
    print("    a pod on all free GPUs of a node runs NCCL's collectives; NCCL itself is simulated here")
    allow(session, AT_A_TIME)
    session.until(lambda: not _waiting(session), "an NCCL run on every node that can have one")
    session.until(lambda: not _wrong(session), "the labels and taints that the bandwidth calls for")
    allow(session, 0)
    session.say("the nodes have new labels: bus bandwidth in GB/s (BUSBW: all_reduce, all_gather,")
    print("    reduce_scatter at 1 GiB) and the evidence for the interconnect:")
    steps.show(session)
    _show_contradiction(session)
    _show_seven(session)


def preempt(session: Session) -> None:
    """A job that needs the GPUs of an NCCL run preempts it, and the node keeps its labels."""
    before = _bandwidth_labels(session)
    number = _runs(session)
    session.say(
        f"{BUSY_NODE} is measured again, at NCCL's real pace; meanwhile a job asks for all eight GPUs"
    )
    session.testbed.hardware(BUSY_NODE).fault("nccl-in-real-time")
    allow(session, AT_A_TIME)
    session.ask([BUSY_NODE])
    hardware = session.testbed.hardware(BUSY_NODE)
    session.until(lambda: at_work(hardware), f"an NCCL run on {BUSY_NODE}")
    asked = time.monotonic()
    container = {"name": "train", "image": "busybox", "command": ["sleep", "3600"]}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": BUSY_NODE},
        "terminationGracePeriodSeconds": 0,
        "containers": [container | {"resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    }
    session.api.create(PODS, {"metadata": {"name": JOB}, "spec": spec})

    def phase() -> str:
        return str(session.api.get(f"{PODS}/{JOB}")["status"].get("phase", ""))

    session.until(lambda: phase() == "Running", f"{JOB} on {BUSY_NODE}")
    took = time.monotonic() - asked
    session.until(lambda: _runs(session) > number, f"the end of the NCCL run on {BUSY_NODE}")
    allow(session, 0)
    run = probe_of(session.report(BUSY_NODE), "nccl")["lastRun"]
    if (run["outcome"], run["reason"]) != ("skipped", "Preempted"):
        raise TestbedError(
            f"the NCCL run on {BUSY_NODE} ended {run['outcome']}, {run['reason']}: expected Preempted"
        )
    if (after := _bandwidth_labels(session)) != before:
        raise TestbedError(f"{BUSY_NODE} had the labels {before} and now has {after}")
    gbps = before[PREFIX + "busbw-allreduce"]
    session.say(f"kube-scheduler preempted the NCCL run: {JOB} ran {took:.1f} s after its creation")
    print(f"    the run counts as skipped ({run['reason']}), and the node still has its labels, {gbps} GB/s")
    session.api.delete(f"{PODS}/{JOB}", {"gracePeriodSeconds": 0})
    session.testbed.hardware(BUSY_NODE).heal("nccl-in-real-time")


def _waiting(session: Session) -> list[str]:
    able = [name for name, machine in FLEET.items() if machine.busbw]
    reports = playground.reports(session.api)
    return [name for name in able if not probe_of(reports.get(name) or {}, "nccl").get("readAt")]


def _wrong(session: Session) -> list[str]:
    result, nodes = [], session.nodes()
    for name, machine in FLEET.items():
        wanted, seen = machine.measured, session.marks_of(nodes[name])
        if wanted != seen:
            result.append(f"{name} has {seen}, expected {wanted}")
        busbw = nodes[name]["metadata"].get("labels", {}).get(PREFIX + "busbw-allreduce", "")
        gbps = machine.busbw if wanted.interconnect else 0
        about = busbw != "" and abs(int(busbw) + 0.5 - gbps) <= max(1.0, NOISE * gbps)
        if not (about if gbps else busbw == ""):
            result.append(f"{name} has {busbw or 'no'} GB/s of all_reduce, expected about {gbps or 'none'}")
    return result


def _show_contradiction(session: Session) -> None:
    result = session.current_report(BROKEN_LINKS)["interconnect"]
    if (result.get("reported"), result.get("reason")) != ("nvlink", "Contradicted"):
        raise TestbedError(f"{BROKEN_LINKS}: NVLink is not contradicted: {result}")
    session.say(f"{BROKEN_LINKS}: {result['reason']}: {result['message']}")
    print("    it lost interconnect=nvlink and has no busbw label; a second run below the floor tainted it")


def _show_seven(session: Session) -> None:
    report = session.current_report(SEVEN_NODE)
    measured = report["bandwidth"]
    codes = {f["code"]: f["message"] for f in probe_of(report, "nccl").get("findings") or ()}
    if (measured["gpus"], measured["of"]) != (7, 8) or "fewer-gpus" not in codes:
        raise TestbedError(f"{SEVEN_NODE} was not measured on 7 of 8 GPUs: {measured}, {codes}")
    session.say(f"{SEVEN_NODE}: {codes['fewer-gpus']}")


def _bandwidth_labels(session: Session) -> dict[str, str]:
    return labels_of(session.node(BUSY_NODE)["metadata"].get("labels", {}))


def _runs(session: Session) -> int:
    return int((probe_of(session.report(BUSY_NODE), "nccl").get("lastRun") or {"number": 0})["number"])


def at_work(hardware: Hardware) -> bool:
    here = with_variable(f"{MACHINE_VARIABLE}={hardware.env()[MACHINE_VARIABLE]}")
    return not {*here}.isdisjoint(with_argument("--order"))
