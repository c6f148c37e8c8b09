"""`nodegauge why POD`: why a pending pod gets no node.

Which of nodegauge's taints and labels keep it away, by which cause, and what is not nodegauge's doing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import click
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_cli.cluster import Cluster, NotThere, context_option
from nodegauge_cli.fleet import Fleet, has_gpus, read_fleet
from nodegauge_cli.output import GOOD, WORTH_A_LOOK, dump, entry, output_option, table
from nodegauge_cli.pod_fit import Barrier, Candidate, Kind, Wish, barriers, wish_of
from nodegauge_cli.standing import Standing
from nodegauge_operator import names
from nodegauge_operator.api.report import Report, whole
from nodegauge_operator.core import gates
from nodegauge_operator.core.model import NodeView, Taint

NAMED = 3
"""Nodes that a row names; the others are a number."""
OF_BANDWIDTH = ("busbw", "h2d", "d2h")
"""How labels begin that only a measurement gives."""


class Row(Struct, frozen=True, rename="camel", kw_only=True):
    """One thing that keeps the pod from nodes."""

    what: str
    """The taint, or the label that it asks for, as kubectl writes it."""
    why: str = ""
    """The cause; why a label is missing."""
    example: str = ""
    """What is known of the first of the nodes."""
    nodes: list[str]


class Answer(Struct, frozen=True, rename="camel", kw_only=True):
    """Why a pod gets no node, as far as taints, labels and counts of GPUs say."""

    pod: str
    namespace: str
    node: str = ""
    """The node that it is on; empty while it is on none."""
    phase: str = ""
    gpus: int = 0
    """Whole GPUs that it asks for."""
    claims: list[str] = []
    """Its claims of devices: not judged."""
    scheduler: str = ""
    """The scheduler's own words."""
    would_do: list[str] = []
    """Nodes that nothing of all this keeps it from."""
    ours_alone: list[str] = []
    """Nodes that only nodegauge's taints and labels keep it from."""
    taints: list[Row] = []
    labels: list[Row] = []
    others: list[Row] = []
    """What is not nodegauge's."""
    looked_at: int = 0
    """Nodes that were looked at."""
    not_seen: str = ""


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", default="", help="The pod's namespace (default: the context's).")
@output_option("json", "yaml")
@context_option
def why(pod: str, namespace: str, form: str | None, context: str) -> None:
    """Why the pending POD does not get a node.

    Needs the ClusterRoles view and nodegauge-view; with the right to list nodes it also sees what is not
    nodegauge's. Exit codes: 0, 1 if the cluster cannot be asked or has no such pod, 2 for wrong usage.
    """
    cluster = Cluster(context=context)
    namespace = namespace or cluster.namespace()
    body = cluster.find(f"/api/v1/namespaces/{quote(namespace)}/pods", pod)
    if body is None:
        raise NotThere(f"there is no pod {pod} in namespace {namespace}: `kubectl get pods -A`")
    placed = (body.get("spec") or {}).get("nodeName") or _is_over(body)
    answer = answer_of(body, None if placed else read_fleet(cluster, now=time.time()))
    click.echo(dump(answer, form) if form else "\n".join(lines(answer)))


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def answer_of(pod: Mapping[str, Any], fleet: Fleet | None) -> Answer:
    """The answer; `fleet`: None for a pod that needs no node."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {known.get("type"): known for known in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    wish = wish_of(pod)
    about = Answer(
        pod=metadata["name"],
        namespace=metadata.get("namespace", ""),
        node=spec.get("nodeName") or "",
        phase=status.get("phase", ""),
        gpus=wish.gpus,
        claims=wish.claims,
        scheduler=f"{scheduled.get('reason', '')}: {scheduled.get('message', '')}".strip(": "),
    )
    return about if fleet is None else _judged(about, wish, fleet)


def _judged(about: Answer, wish: Wish, fleet: Fleet) -> Answer:
    standings = {known.node: known for known in fleet.standings}
    short_keys = {_short_key(policy) for policy in fleet.policies} - {""}
    rows: dict[tuple[str, str, str], Row] = {}
    would_do, ours_alone = [], []
    candidates = _candidates(fleet, wish)
    for node in candidates:
        barriers_of_node = barriers(wish, node, short_keys=short_keys)
        if not barriers_of_node:
            would_do.append(node.name)
        elif all(barrier.ours for barrier in barriers_of_node):
            ours_alone.append(node.name)
        for barrier in barriers_of_node:
            group, row = _row(barrier, standings.get(node.name), fleet.reports.get(node.name))
            known = rows.setdefault((group, row.what, row.why), row)
            known.nodes.append(node.name)
    grouped = {name: [row for key, row in rows.items() if key[0] == name] for name in GROUPS}
    return replace(
        about,
        would_do=would_do,
        ours_alone=ours_alone,
        looked_at=len(candidates),
        not_seen=fleet.not_seen,
        **grouped,
    )


GROUPS = ("taints", "labels", "others")


def _short_key(policy: Mapping[str, Any]) -> str:
    labels = (policy.get("spec") or {}).get("labels") or {}
    return str(labels.get("interconnectKey", "interconnect"))


def _candidates(fleet: Fleet, wish: Wish) -> list[Candidate]:
    """Nodes with GPUs, or all if the pod asks for none and has no claim, which may be of GPUs; without the
    right to read nodes, what the reports say that nodes should carry."""
    if fleet.nodes is not None:
        return [
            Candidate(
                name=node.name,
                labels=node.labels,
                taints=node.taints,
                whole=True,
                unschedulable=node.unschedulable,
                gpus=None if _by_claim(node) else whole(node.gpu_allocatable) or 0,
            )
            for node in sorted(fleet.nodes.values(), key=lambda node: node.name)
            if not (wish.gpus or wish.claims) or has_gpus(node) or node.name in fleet.reports
        ]
    return [
        Candidate(
            name=name,
            labels=report.status.desired.labels,
            taints=[
                Taint(key=taint.key, value=taint.value, effect=taint.effect)
                for taint in report.status.desired.taints
            ],
            whole=False,
        )
        for name, report in sorted(fleet.reports.items())
    ]


def _by_claim(node: NodeView) -> bool:
    """DRA hands out its GPUs, `nvidia.com/gpu` of a DeviceClass too, and no field of the node counts them."""
    return not node.gpu_capacity and node.labels.get(names.LABEL_DRIVER_ACCESS) == names.BY_CLAIM


def _row(barrier: Barrier, standing: Standing | None, report: Report | None) -> tuple[str, Row]:
    if not barrier.ours:
        what = f"{barrier.kind} {barrier.text}" if barrier.kind in (Kind.TAINT, Kind.LABEL) else barrier.text
        return "others", Row(what=what, nodes=[])
    if barrier.kind is Kind.TAINT:
        return "taints", Row(what=barrier.text, example=_evidence(barrier, report), nodes=[])
    reason, detail = _missing(barrier, standing, report)
    return "labels", Row(what=barrier.text, why=reason, example=detail, nodes=[])


def _evidence(barrier: Barrier, report: Report | None) -> str:
    """What the taint's fault is, and where on the node."""
    for gate in report.status.gates if report is not None else ():
        known = gates.GATES.get(gate.code)
        if known is not None and gate.state.entered and f"={known.cause.value}:" in barrier.text:
            return f"{gates.TITLES[gate.code]}, {gate.subject}" if gate.subject else gates.TITLES[gate.code]
    return ""


def _missing(barrier: Barrier, standing: Standing | None, report: Report | None) -> tuple[str, str]:
    """Why a node has no label of ours as the pod asks for it: a few words, and what is known of the node."""
    if standing is None:
        return "no policy selects it", "`kubectl get gpuvalidationpolicies`"
    if value := standing.labels.get(barrier.key):
        return f"it is {value}", ""
    if standing.why_unread or report is None:
        return "not read lately", standing.why_unread
    if standing.mode == "Observe":
        return "mode Observe writes no labels", f"policy {standing.policy}"
    status = report.status
    if barrier.key in status.desired.conflicts:
        return "somebody else has set it", ""
    if barrier.key.removeprefix(names.PREFIX).startswith(OF_BANDWIDTH):
        return (status.bandwidth.reason or "not measured"), status.bandwidth.detail
    if status.interconnect.klass:
        return "its reading is stale", f"Last read {standing.read_at}."
    return (status.interconnect.reason or "unknown"), status.interconnect.message


def lines(answer: Answer) -> Iterator[str]:
    """The answer as text."""
    name = f"{answer.namespace}/{answer.pod}"
    if answer.node:
        yield entry("pod", f"{name} is on node {answer.node} ({answer.phase}): it has a node")
        yield entry("", f"nodegauge explain {answer.node}")
        return
    if answer.phase != "Pending":
        yield entry("pod", f"{name} is {answer.phase or 'in an unknown phase'}: it waits for no node")
        return
    yield entry("pod", f"{name} is Pending and asks for {answer.gpus or 'no'} GPUs ({names.GPU_RESOURCE})")
    if answer.claims:
        text = f"asks for devices by claim ({', '.join(answer.claims)}): not judged"
        yield entry("claims", text, style=WORTH_A_LOOK)
        yield entry("", "only nodes with GPUs are looked at; which devices they have free is not")
    if answer.scheduler:
        yield entry("scheduler", answer.scheduler)
    yield ""
    yield from _verdict(answer)
    for title, rows in (
        ("TAINT OF NODEGAUGE", answer.taints),
        ("LABEL OF NODEGAUGE", answer.labels),
        ("NOT NODEGAUGE'S", answer.others),
    ):
        if rows:
            yield ""
            rows = sorted(rows, key=lambda row: -len(row.nodes))
            yield from _table(title, rows)
    if answer.not_seen:
        yield ""
        yield entry("not seen", f"{answer.not_seen}. Taints and labels are those that reports ask for.")


def _verdict(answer: Answer) -> Iterator[str]:
    looked = f"{answer.looked_at} nodes looked at" if answer.looked_at else "no node to look at"
    if answer.would_do:
        yield entry("would do", f"{_named(answer.would_do)}, if their resources are free", style=GOOD)
    else:
        yield entry("would do", f"none of the nodes ({looked})", style=WORTH_A_LOOK)
    if answer.ours_alone:
        text = f"alone keeps it from {_named(answer.ours_alone)}"
        yield entry("nodegauge", text, style=WORTH_A_LOOK)
        yield entry("", f"nodegauge explain {answer.ours_alone[0]} says why, and what would lift it")
    elif answer.taints or answer.labels:
        yield entry("nodegauge", "keeps it from no node that would do without nodegauge")
    else:
        yield entry("nodegauge", "keeps it from no node")


def _table(title: str, rows: list[Row]) -> Iterator[str]:
    with_why = any(row.why for row in rows)
    columns = (title, "NODES", *(("WHY",) if with_why else ()), "WHERE")
    cells = [
        [
            row.what.removeprefix(names.PREFIX),
            str(len(row.nodes)),
            *((row.why,) if with_why else ()),
            ", ".join(row.nodes[:NAMED]) + (", ..." if len(row.nodes) > NAMED else ""),
        ]
        for row in rows
    ]
    yield table(columns, cells)
    for row in rows:
        if row.example:
            yield entry("", f"{row.nodes[0]}: {row.example}", indent=2)


def _named(nodes: list[str]) -> str:
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}: {', '.join(nodes[:NAMED])}{more}"
