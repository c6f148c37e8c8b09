"""The demo's frame: install, add nodes, compare labels with the hardware, list what is broken, uninstall."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from textwrap import indent

from nodegauge_contract import decode, render_matrix
from testbed import playground
from testbed.demo.fleet import FLEET, HOT_NODE, PREFIX, STARVED_NODE, VALUES, Marks
from testbed.demo.session import CHECKOUT, Session
from testbed.errors import TestbedError
from testbed.marks import condition_of, labels_of, probe_of, taints_of
from testbed.playground import NAMESPACE, REPORTS
from testbed.processes import output_of
from testbed.rest import Object
from testbed.table import table

HEAD = ["NODE", "GPUS", "INTERCONNECT", "GB/S", "EVIDENCE", "BUSBW", "HEALTH", "THROTTLED", "PSU"]
HEAD += ["VALIDATED", "TAINT"]
COLLECTIVES = ("allreduce", "allgather", "reducescatter")
REPAIR = "nodegauge_repair"
ANSIBLE_INVENTORY = Path(sys.executable).with_name("ansible-inventory")
PAGE = CHECKOUT / "dist" / "demo" / "fleet.html"
MODEL_LIMIT = 28
"""Characters of a GPU's model in the table: a line fits a wide terminal."""


def install(session: Session) -> None:
    session.say("helm install nodegauge charts/nodegauge (the operator runs under its own account and RBAC)")
    session.say("with these values; intervals are shorter than the defaults, to keep the demo short:")
    print("\n" + "".join(f"    {line}\n" for line in VALUES.splitlines()), flush=True)
    playground.make_namespace(session.api)
    playground.install(session.testbed, VALUES)
    session.say("the operator is running and ready")


def plug(session: Session) -> None:
    """The GPU nodes join the cluster; their drivers answer as the recorded machines did."""
    session.say(f"adding {len(FLEET)} GPU nodes:")
    for name, machine in FLEET.items():
        broken = f", with the fault {machine.fault}" if machine.fault else ""
        print(f"    {name}: {machine.profile}{broken}", flush=True)
    session.testbed.nodes.add({name: machine.profile for name, machine in FLEET.items()})
    machines = {name: session.testbed.hardware(name) for name in FLEET}
    session.whole.enter_context(playground.working(machines))


def labels(session: Session) -> None:
    """Wait for labels and taints and show them; each must be what the hardware calls for."""
    session.say("waiting for the container on each node to report and for the operator to set labels")
    session.until(
        lambda: all(probe_of(session.report(name), "health").get("lastRun") for name in FLEET),
        "a report of every node",
    )
    session.say("every node is read; now a run is asked for, by a pod: some taints need two bad readings")
    session.measure(FLEET)
    _compare(session)
    session.say("every node has the labels and taints that its hardware calls for:")
    show(session)
    report, reading = session.report("gpu-titan"), session.reading("gpu-titan")
    print(f"NodeReport gpu-titan: {report['summary']}\n", flush=True)
    print(f"NodeReading gpu-titan:\n{render_matrix(decode(reading['health']['reading']))}\n", flush=True)


def show(session: Session) -> None:
    nodes, reports = session.nodes(), playground.reports(session.api)
    rows = (_row(name, session.marks_of(nodes[name]), nodes[name], reports.get(name) or {}) for name in FLEET)
    print("\n" + table([HEAD, *rows]) + "\n", flush=True)


def explain(session: Session) -> None:
    """A node whose GPU waits for an old disk, which is no fault of it; the report says why it waits."""
    session.until(lambda: bool(_findings(session)), f"a finding about the feeding of {STARVED_NODE}")
    [finding] = _findings(session)
    if finding["evidence"].get("cause") != "storage":
        raise TestbedError(f"{STARVED_NODE} waits for its disk, and the report says {finding}")
    if taints := taints_of(session.node(STARVED_NODE)):
        raise TestbedError(f"{STARVED_NODE} is tainted for what its job does: {taints}")
    session.say(f"{STARVED_NODE}: its job reads from an old disk; the GPU is busy for a third of the time")
    why = f"{finding['subject']}: {finding['message']}"
    session.say(f"{STARVED_NODE} has no taint, and its report says why the GPU waits: {why}")


def _findings(session: Session) -> list[Object]:
    return list(probe_of(session.report(STARVED_NODE), "feed").get("findings") or [])


def decide(session: Session) -> None:
    """The largest model of each class; and a model for which nobody measured enough."""
    session.say("nodegauge zero, on this cluster: which models its nodes hold, and a 70B one")
    for arguments in ((), ("--model", "70B", "--compare", "HBM3, nvlink", "GB200")):
        print(nodegauge(session, "zero", *arguments), flush=True)


def nodegauge(session: Session, *arguments: str) -> str:
    """What the command prints for people."""
    command = [sys.executable, "-P", "-m", "nodegauge_cli", *arguments]
    own = {"KUBECONFIG": str(session.testbed.control_plane.kubeconfig), "COLUMNS": "80"}
    return "\n" + indent(output_of(command, env=os.environ | own), "    ")


def overview(session: Session) -> None:
    """The whole fleet, the node that was hot, and the page, which stays."""
    session.say("kubectl nodegauge status")
    status = nodegauge(session, "status")
    print(status, flush=True)
    tainted = [name for name in FLEET if taints_of(session.node(name))]
    if lost := [name for name in tainted if not session.report(name).get("cause")]:
        raise TestbedError(f"tainted without a cause in the report: {', '.join(lost)}")
    session.say(f"kubectl nodegauge explain {HOT_NODE}, which was hot")
    print(nodegauge(session, "explain", HOT_NODE), flush=True)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    nodegauge(session, "report", "--html", str(PAGE))
    session.say(f"the fleet as a page for your browser, which stays: {PAGE.relative_to(CHECKOUT)}")


def graph(session: Session) -> None:
    """The cluster as an Ansible inventory: its group of broken nodes is that of the tainted ones."""
    session.say("the same cluster as an Ansible inventory (plugin nodegauge.gpu.nodereports):")
    shown = _ansible_graph(session)
    print(shown, flush=True)
    group = set(re.findall(r"--([\w-]+)", shown.partition(f"@{REPAIR}:")[2].partition("@")[0]))
    tainted = {name for name in session.testbed.nodes.specs() if taints_of(session.node(name))}
    if group != tainted:
        raise TestbedError(f"group {REPAIR} is {sorted(group)}, and tainted are {sorted(tainted)}")


def uninstall(session: Session) -> None:
    """`helm uninstall` must leave no label, taint, condition, report or pod of nodegauge."""
    session.say("helm uninstall nodegauge")
    session.testbed.helm("uninstall", "nodegauge", "--namespace", NAMESPACE, "--wait", "--timeout", "300s")
    session.until(lambda: not _left(session), "an empty cluster")
    session.say("no label, taint, condition, report, rule or pod of nodegauge is left on the cluster")


def _compare(session: Session) -> None:
    nodes = session.nodes()
    seen = {name: session.marks_of(nodes[name]) for name in FLEET}
    wrong = [
        f"{name} has {kind} {getattr(seen[name], kind) or 'absent'}, expected "
        f"{getattr(machine.expected, kind) or 'absent'}"
        for name, machine in FLEET.items()
        for kind in Marks.__dataclass_fields__
        if getattr(seen[name], kind) != getattr(machine.expected, kind)
    ]
    if wrong:
        raise TestbedError("; ".join(wrong))


def _row(name: str, marks: Marks, node: Object, report: Object) -> list[str]:
    result = report.get("gpus") or {"count": 0, "product": "(not all visible)"}  # no result was judged
    count = f"{result['count']}x " if result["count"] else ""
    gpus = result["product"].removeprefix("NVIDIA ")[:MODEL_LIMIT]
    labels = node["metadata"].get("labels", {})
    busbw = "/".join(labels.get(f"{PREFIX}busbw-{collective}", "") for collective in COLLECTIVES).strip("/")
    cells = [marks.interconnect, marks.gbps, marks.evidence, busbw]
    cells += [marks.health, marks.throttled, marks.psu]
    taints = ", ".join(taint.removeprefix(PREFIX) for taint in marks.taints)
    last = [condition_of(node).get("status"), taints]
    return [name, count + gpus, *(cell or "-" for cell in (*cells, *last))]


def _left(session: Session) -> list[str]:
    left = []
    for name in session.testbed.nodes.specs():
        node = session.node(name)
        left += [f"{name}: label {key}" for key in labels_of(node["metadata"].get("labels", {}))]
        left += [f"{name}: taint {taint}" for taint in taints_of(node)]
        left += [f"{name}: condition GPUValidated"] * bool(condition_of(node))
    for path in (f"/api/v1/namespaces/{NAMESPACE}/pods", REPORTS, session.rules_path):
        left += [f"{path}/{one['metadata']['name']}" for one in session.api.find(path).get("items", ())]
    return left


def _ansible_graph(session: Session) -> str:
    folder = session.directory / "ansible"
    collection = folder / "ansible_collections" / "nodegauge" / "gpu"
    collection.parent.mkdir(parents=True)
    collection.symlink_to(CHECKOUT / "ansible")
    kubeconfig = session.testbed.control_plane.kubeconfig
    text = f"plugin: nodegauge.gpu.nodereports\nkubeconfig: {kubeconfig}\n"
    (folder / "fleet.nodereports.yml").write_text(text, encoding="utf-8")
    own = {"HOME": str(folder), "ANSIBLE_HOME": str(folder), "ANSIBLE_COLLECTIONS_PATH": str(folder)}
    own |= {"ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}
    command = [str(ANSIBLE_INVENTORY), "-i", "fleet.nodereports.yml", "--graph"]
    return output_of(command, cwd=folder, env=os.environ | own)
