"""The demo's node whose GPUs come by DRA: one of them fails, and jobs use the other seven."""

from __future__ import annotations

from testbed import placing
from testbed.demo import steps
from testbed.demo.fleet import BUSY_NODE, FLEET, PREFIX
from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.hardware.dra import API
from testbed.marks import probe_of, shown_taint, taints_of
from testbed.nodes import Offer
from testbed.rest import Object

NODE, BAD = "gpu-dra", 3
JOBS = 8


def gate(session: Session) -> None:
    """A rule keeps jobs from the device of a bad GPU, and only from that."""
    session.say(f"{NODE} joins; NVIDIA's DRA driver alone offers its eight GPUs: probes read them by claims")
    session.testbed.nodes.add({NODE: FLEET[BUSY_NODE].profile}, offers=Offer.DRA)
    session.until(lambda: bool(probe_of(session.report(NODE)).get("lastRun")), f"a report of {NODE}")
    session.testbed.hardware(NODE).fault("gpu-lost", gpu=BAD)
    session.say(f"{NODE}: GPU {BAD} falls off the bus")
    session.until(lambda: bool(_rules(session)), f"a DeviceTaintRule for {NODE}")
    [rule] = _rules(session)
    _show(session, rule)
    session.say(f"{JOBS} jobs on {NODE} claim one GPU each")
    placing.claims(session.api, "default")
    for number in range(JOBS):
        session.api.create(placing.PODS, placing.claiming(f"dra-job-{number}", NODE))
    session.until(lambda: len(_used(session)) == JOBS - 1 and bool(_refused(session)), "seven jobs of eight")
    used, bad = _used(session), rule["spec"]["deviceSelector"]["device"]
    if (tainted := taints_of(session.node(NODE))) or bad in used:
        raise TestbedError(f"{bad} of {NODE} is bad; jobs use {used}, taints {tainted}")
    session.say(f"seven run, on {', '.join(used)}; one waits: {_refused(session)[0]}")
    session.say(f"kubectl nodegauge explain {NODE}")
    print(steps.nodegauge(session, "explain", NODE), flush=True)


def heal(session: Session) -> None:
    """The rule goes once the GPU is well, and the job that waited has it."""
    session.testbed.hardware(NODE).heal("gpu-lost")
    session.say(f"{NODE}: GPU {BAD} answers again; runs are asked for, to see that sooner")

    def gone() -> bool:
        session.measure([NODE])
        return not _rules(session)

    session.until(gone, f"no DeviceTaintRule for {NODE}")
    session.until(lambda: len(_used(session)) == JOBS, "the eighth job")
    session.say(f"the rule is gone after three good runs, and jobs use all {JOBS} devices")
    for pod in _jobs(session):
        session.api.delete(f"{placing.PODS}/{pod['metadata']['name']}", placing.NOW)


def _show(session: Session, rule: Object) -> None:
    spec, notes = rule["spec"], rule["metadata"]["annotations"]
    node, uuid, finding = (notes[PREFIX + key] for key in ("node", "gpu-uuid", "finding"))
    session.say(f"DeviceTaintRule {rule['metadata']['name']} stands:")
    print(f"    device {spec['deviceSelector']['device']} of {node}, {uuid}")
    print(f"    taint {shown_taint(spec['taint'])}, for the finding {finding}", flush=True)


def _rules(session: Session) -> list[Object]:
    rules: list[Object] = session.api.get(session.rules_path)["items"]
    return rules


def _jobs(session: Session) -> list[Object]:
    return [pod for pod in session.api.get(placing.PODS)["items"] if pod["spec"].get("resourceClaims")]


def _refused(session: Session) -> list[str]:
    return placing.refusals(_jobs(session))


def _used(session: Session) -> list[str]:
    """Devices whose claims running pods hold."""
    running = {pod["metadata"]["uid"] for pod in _jobs(session) if pod["status"].get("phase") == "Running"}
    claims = session.api.get(f"{API}/namespaces/default/resourceclaims")["items"]
    return sorted(
        result["device"]
        for claim in claims
        if running & {user["uid"] for user in claim.get("status", {}).get("reservedFor", ())}
        for result in claim["status"]["allocation"]["devices"]["results"]
    )
