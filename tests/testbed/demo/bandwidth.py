"""The demo's benchmarks: what NVML says of an interconnect is held against what collectives reach.

They are paused until here, so that a person sees what changes: evidence, GB/s, a label that goes.  NCCL is a
stand-in that says what the machine would give; pods, GPUs, scheduler and everything else are as elsewhere.
"""

from __future__ import annotations

import time
from functools import partial

from testbed.demo import steps
from testbed.demo.fleet import BROKEN_LINKS, BUSY_NODE, FLEET, PREFIX, SEVEN_NODE, Machine
from testbed.demo.session import Object, Session, probe_of
from testbed.errors import TestbedError
from testbed.simulated_nccl.nccl import at_work

POLICY = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default"
PODS = "/api/v1/namespaces/default/pods"
AT_A_TIME = 4
MEASURED_WITHIN = 150.0
PREEMPTED_WITHIN = 60.0
AT_ONCE = 10.0
"""Seconds; far more than it takes, for machines that are busy with other things."""
NOISE = 0.03
"""Two runs of one machine differ by less; the label is the whole number below."""
JOB = "zero-all-gpus"


def benchmark(session: Session) -> None:
    """Let benchmarks run; every node must carry what its links really carry."""
    session.say(f"benchmarks were paused (budget.concurrentNcclProbes 0); now {AT_A_TIME} nodes at a time:")
    print("    a pod on all free GPUs of a node runs NCCL's collectives; NCCL itself is a stand-in here")
    _pause(session, AT_A_TIME)
    waiting, wrong = partial(_waiting, session), partial(_wrong, session)
    session.nothing_left(waiting, "benchmarks of every node that can have one", MEASURED_WITHIN)
    session.nothing_left(wrong, "nodes that carry what was measured", MEASURED_WITHIN)
    _pause(session, 0)
    session.say("every node that can be was measured; GB/s of bus bandwidth (BUSBW: all_reduce, all_gather,")
    print("    reduce_scatter at 1 GiB) and the evidence for its interconnect are labels now:")
    steps.show(session)
    _tell_contradiction(session)
    _tell_seven(session)


def preempt(session: Session) -> None:
    """A job that wants the GPUs of a benchmark gets them at once, and the node keeps its labels."""
    before = _bandwidth_labels(session)
    number = _runs(session)
    session.say(
        f"{BUSY_NODE} is measured again, as slowly as NCCL would be; a job wants all eight GPUs meanwhile"
    )
    session.testbed.hardware(BUSY_NODE).fault("nccl-in-real-time")
    _pause(session, AT_A_TIME)
    session.ask([BUSY_NODE])
    hardware = session.testbed.hardware(BUSY_NODE)
    session.until(lambda: at_work(hardware), f"a benchmark at work on {BUSY_NODE}", PREEMPTED_WITHIN)
    asked = time.monotonic()
    session.api.create(PODS, _job())
    session.until(lambda: _phase(session) == "Running", f"{JOB} on {BUSY_NODE}", PREEMPTED_WITHIN)
    took = time.monotonic() - asked
    if took > AT_ONCE:
        raise TestbedError(
            f"{JOB} waited {took:.1f} s for the GPUs of a benchmark, expected at most {AT_ONCE:g}"
        )
    session.until(
        lambda: _runs(session) > number, f"the end of the benchmark on {BUSY_NODE}", PREEMPTED_WITHIN
    )
    _pause(session, 0)
    run = probe_of(session.report(BUSY_NODE), "nccl")["lastRun"]
    if (run["outcome"], run["reason"]) != ("skipped", "Preempted"):
        raise TestbedError(
            f"the benchmark on {BUSY_NODE} ended {run['outcome']}, {run['reason']}: expected Preempted"
        )
    if (after := _bandwidth_labels(session)) != before:
        raise TestbedError(f"{BUSY_NODE} carried {before} and carries {after}")
    gbps = before[PREFIX + "busbw-allreduce"]
    session.say(f"kube-scheduler preempted the benchmark: {JOB} ran {took:.1f} s after it was asked for")
    print(f"    the run counts as skipped ({run['reason']}), and the node still has its labels, {gbps} GB/s")
    session.api.delete(f"{PODS}/{JOB}", {"gracePeriodSeconds": 0})
    session.testbed.hardware(BUSY_NODE).heal("nccl-in-real-time")


def _pause(session: Session, places: int) -> None:
    session.api.patch(POLICY, {"spec": {"budget": {"concurrentNcclProbes": places}}})


def _waiting(session: Session) -> list[str]:
    """Nodes that can be measured and have not been."""
    able = [name for name, machine in FLEET.items() if machine.busbw]
    return [name for name in able if not probe_of(session.report(name), "nccl").get("readAt")]


def _wrong(session: Session) -> list[str]:
    """What differs from what the hardware demands, in words."""
    found = []
    for name, machine in FLEET.items():
        wanted, seen = machine.measured, session.carried(name)
        if wanted != seen:
            found.append(f"{name} carries {seen}, expected {wanted}")
        labels = session.node(name)["metadata"].get("labels", {})
        told = labels.get(PREFIX + "busbw-allreduce", "")
        if not _about(told, machine):
            found.append(
                f"{name} has {told or 'no'} GB/s of all_reduce, expected about {machine.busbw or 'none'}"
            )
    return found


def _about(told: str, machine: Machine) -> bool:
    if not machine.busbw:
        return told == ""
    return told != "" and abs(int(told) + 0.5 - machine.busbw) <= max(1.0, NOISE * machine.busbw)


def _tell_contradiction(session: Session) -> None:
    """What the report says of the interconnect that bandwidth contradicts, and what came of it."""
    said = session.report(BROKEN_LINKS)["interconnect"]
    if (said.get("reported"), said.get("reason")) != ("nvlink", "Contradicted"):
        raise TestbedError(f"{BROKEN_LINKS}: NVLink is not contradicted: {said}")
    session.say(f"{BROKEN_LINKS}: {said['reason']}: {said['message']}")
    print("    it lost interconnect=nvlink by that, and its second run below the floor tainted it")


def _tell_seven(session: Session) -> None:
    """The node that was measured on what its device plugin gives out."""
    report = session.report(SEVEN_NODE)
    measured = report["bandwidth"]
    codes = {f["code"]: f["message"] for f in probe_of(report, "nccl").get("findings") or ()}
    if (measured["gpus"], measured["of"]) != (7, 8) or "fewer-gpus" not in codes:
        raise TestbedError(f"{SEVEN_NODE} was not measured on 7 of 8 GPUs: {measured}, {codes}")
    session.say(f"{SEVEN_NODE}: {codes['fewer-gpus']}")


def _bandwidth_labels(session: Session) -> dict[str, str]:
    """Labels of the busy node that a benchmark decides."""
    labels = session.node(BUSY_NODE)["metadata"].get("labels", {})
    ours = {key: value for key, value in labels.items() if key.startswith(PREFIX) or key == "interconnect"}
    return {key: value for key, value in ours.items() if key != PREFIX + "validated-at"}


def _runs(session: Session) -> int:
    return int((probe_of(session.report(BUSY_NODE), "nccl").get("lastRun") or {"number": 0})["number"])


def _phase(session: Session) -> str:
    return str(session.api.get(f"{PODS}/{JOB}")["status"].get("phase", ""))


def _job() -> Object:
    """A job on all GPUs of the busy node, of the priority that every pod has."""
    container = {
        "name": "train",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": BUSY_NODE},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return {"metadata": {"name": JOB}, "spec": spec}
