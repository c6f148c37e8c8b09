"""Training jobs of the demo: where kube-scheduler places what asks for NVLink."""

from __future__ import annotations

from testbed import placing
from testbed.demo.fleet import FLEET, PREFIX
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.rest import Object

ANY_NVLINK: Object = {"nodeSelector": {"interconnect": "nvlink"}}


def nvlink_nodes() -> set[str]:
    expected = {name: machine.measured for name, machine in FLEET.items()}
    return {name for name, marks in expected.items() if marks.interconnect == "nvlink" and not marks.taints}


def run_by_labels(session: Session) -> None:
    session.say("job zero-any-nvlink asks for nodeSelector interconnect=nvlink")
    run_job(session, "zero-any-nvlink", ANY_NVLINK, allowed=nvlink_nodes())
    session.say("job zero-over-400 asks for nodeAffinity nodegauge.dev/nvlink-gbps Gt 400")
    fast = [name for name in nvlink_nodes() if int(FLEET[name].expected.gbps) > 400]
    over_400 = required({"key": PREFIX + "nvlink-gbps", "operator": "Gt", "values": ["400"]})
    run_job(session, "zero-over-400", over_400, allowed=set(fast))


def required(expression: Object) -> Object:
    term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}


def run_job(session: Session, name: str, asks: Object, *, allowed: set[str]) -> None:
    session.api.create("/apis/batch/v1/namespaces/default/jobs", _job(name, asks))
    node = ends(session, name)
    if node not in allowed:
        raise TestbedError(f"job {name} ran on {node}, expected one of {', '.join(sorted(allowed))}")
    session.say(f"job {name}: kube-scheduler placed it on {node}, it ran there and succeeded")


def waits_for_a_node(session: Session, name: str, asks: Object) -> str:
    session.api.create("/apis/batch/v1/namespaces/default/jobs", _job(name, asks))
    session.until(lambda: bool(_refusal(session, name)), f"the scheduler's message about {name}")
    return _refusal(session, name)


def ends(session: Session, name: str) -> str:
    """Wait until the job has succeeded; the node it ran on."""
    session.until(
        lambda: bool(_pod(session, name)["status"].get("phase") == "Succeeded"), f"job {name} to end"
    )
    return str(_pod(session, name)["spec"]["nodeName"])


def _refusal(session: Session, name: str) -> str:
    return next(iter(placing.refusals([_pod(session, name)])), "")


def _pod(session: Session, name: str) -> Object:
    path = f"/api/v1/namespaces/default/pods?labelSelector=job-name={name}"
    items: list[Object] = session.api.get(path)["items"]
    return items[0] if items else {"status": {}}


def _job(name: str, asks: Object) -> Object:
    command = ["python", "-c", "print('ZeRO step done')"]
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    container = {"name": "train", "image": "python:3", "command": command, "resources": resources}
    template = {"spec": {"restartPolicy": "Never", "containers": [container], **asks}}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template}}
