"""The demo's first and last steps: install, plug, compare what nodes carry with their hardware, uninstall."""

from __future__ import annotations

from testbed.demo.fleet import BUSY_NODE, FLEET, PREFIX, VALUES, Expected
from testbed.demo.session import CHECKOUT, NAMESPACE, REPORTS, Session, condition, our_taints, probe_of
from testbed.errors import ApiError, TestbedError
from testbed.table import table

LABELS_WITHIN = 120.0
GONE_WITHIN = 20.0
HEAD = [
    "NODE",
    "GPUS",
    "INTERCONNECT",
    "GB/S",
    "EVIDENCE",
    "BUSBW",
    "HEALTH",
    "THROTTLED",
    "PSU",
    "VALIDATED",
]
HEAD += ["TAINT"]
COLLECTIVES = ("allreduce", "allgather", "reducescatter")
MODEL_LIMIT = 28
"""Characters of a GPU's model in the table: a line fits a wide terminal."""


def install(session: Session) -> None:
    """`helm install`, exactly as on a real cluster but for shorter times, which it prints."""
    values = session.directory / "values.yaml"
    values.write_text(VALUES)
    session.say("helm install nodegauge charts/nodegauge (the operator runs under its own account and RBAC)")
    session.say("with these values, shorter than the defaults so that a person can watch:")
    print("\n" + "".join(f"    {line}\n" for line in VALUES.splitlines()), flush=True)
    chart = str(CHECKOUT / "charts" / "nodegauge")
    command = ["install", "nodegauge", chart, "--namespace", NAMESPACE, "--create-namespace"]
    session.testbed.helm(*command, "--values", str(values), "--wait", "--timeout", "60s")
    session.say("the operator is running and ready")


def plug(session: Session) -> None:
    """The GPU nodes join the cluster; their drivers answer as the recorded machines did."""
    session.say(f"plugging in {len(FLEET)} GPU nodes:")
    for name, machine in FLEET.items():
        broken = f", with the fault {machine.fault}" if machine.fault else ""
        print(f"    {name}: {machine.profile}{broken}", flush=True)
    session.testbed.nodes.add_all({name: machine.profile for name, machine in FLEET.items()})
    for name, machine in FLEET.items():
        if machine.fault:
            session.testbed.hardware(name).fault(machine.fault, **machine.parameters)
    session.testbed.hardware(BUSY_NODE).load(90)


def labels(session: Session) -> None:
    """Wait for labels and taints and show them; each must be what the hardware demands."""
    session.say("waiting for probes to measure and the operator to label (at most two minutes)")
    session.until(
        lambda: all(_reported(session, name) for name in FLEET), "a report of every node", LABELS_WITHIN
    )
    session.say("every node has been read once; a second run tells growth, and what takes two runs to gate")
    session.measure(FLEET)
    _compare(session)
    session.say("every node carries what was measured on it:")
    show(session)
    report = session.report("gpu-titan")
    print(f"NodeReport gpu-titan: {report['summary']}\n\n{report['matrix'].rstrip()}\n", flush=True)


def show(session: Session) -> None:
    """The table of all nodes."""
    print("\n" + table([HEAD, *(_row(session, name) for name in FLEET)]) + "\n", flush=True)


def uninstall(session: Session) -> None:
    """`helm uninstall` must leave no label, taint, condition, report or pod of ours."""
    session.say("helm uninstall nodegauge")
    session.testbed.helm("uninstall", "nodegauge", "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
    session.until(lambda: not _left(session), "an empty cluster", GONE_WITHIN)
    session.say("no label, taint, condition, report or pod of nodegauge is left on the cluster")


def _reported(session: Session, name: str) -> bool:
    return bool(probe_of(session.report(name), "health").get("lastRun"))


def _compare(session: Session) -> None:
    """Raise `TestbedError` naming every node that does not carry what its hardware demands."""
    seen = {name: session.carried(name) for name in FLEET}
    wrong = [
        f"{name} has {kind} {getattr(seen[name], kind) or 'absent'}, expected "
        f"{getattr(machine.expected, kind) or 'absent'}"
        for name, machine in FLEET.items()
        for kind in Expected.__dataclass_fields__
        if getattr(seen[name], kind) != getattr(machine.expected, kind)
    ]
    if wrong:
        raise TestbedError("; ".join(wrong))


def _row(session: Session, name: str) -> list[str]:
    report, carried = session.report(name), session.carried(name)
    found = report.get("gpus") or {"count": 0, "product": "(not all are shown)"}  # nothing was judged there
    count = f"{found['count']}x " if found["count"] else ""
    gpus = found["product"].removeprefix("NVIDIA ")[:MODEL_LIMIT]
    labels = session.node(name)["metadata"].get("labels", {})
    busbw = "/".join(labels.get(f"{PREFIX}busbw-{collective}", "") for collective in COLLECTIVES).strip("/")
    cells = [carried.interconnect, carried.gbps, carried.evidence, busbw]
    cells += [carried.health, carried.throttled, carried.psu]
    taints = ", ".join(taint.removeprefix(PREFIX) for taint in carried.taints)
    last = [condition(session.node(name)), taints]
    return [name, count + gpus, *(cell or "-" for cell in (*cells, *last))]


def _left(session: Session) -> list[str]:
    left = []
    for name in FLEET:
        node = session.node(name)
        for key in node["metadata"].get("labels", {}):
            if key.startswith(PREFIX) or key == "interconnect":
                left.append(f"{name}: label {key}")
        left += [f"{name}: taint {taint}" for taint in our_taints(node)]
        if condition(node) != "-":
            left.append(f"{name}: condition GPUValidated")
    pods = session.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    left += [f"pod {pod['metadata']['name']}" for pod in pods]
    try:
        reports = session.api.get(REPORTS)["items"]
    except ApiError as error:
        if error.status != 404:
            raise
        return left
    return left + [f"report {report['metadata']['name']}" for report in reports]
