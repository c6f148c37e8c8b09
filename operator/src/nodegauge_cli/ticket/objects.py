"""The objects that a ticket is made of, from a cluster or from a file: the same for both.

Only the node's own report has to be there, or the history of a node that is gone.  Whatever else cannot be
read is said in the ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from nodegauge_cli.cluster import NODES, OF_OURS, POLICIES, READINGS, REPORTS, Cluster, NoCluster, NotThere
from nodegauge_cli.judging import Criteria
from nodegauge_cli.reported import EVIDENCE_KIND, Reported, Unusable, reported
from nodegauge_cli.ticket.collect import Sources, collect
from nodegauge_cli.ticket.facts import TicketFacts
from nodegauge_cli.ticket.raw import Object, name_of
from nodegauge_cli.ticket.record import recorded
from nodegauge_operator import names
from nodegauge_operator.api.chassis import parse_chassis
from nodegauge_operator.api.node_history import NodeHistory, parse_node_history
from nodegauge_operator.api.policy import Policy, PolicyInvalid, PolicySpec, parse

HISTORIES = f"{OF_OURS}/{names.HISTORY_PLURAL}"
CHASSIS = f"{OF_OURS}/{names.CHASSIS_PLURAL}"


class Nothing(Exception):
    """Nothing is known of the node; the message says what was looked for."""


def from_cluster(cluster: Cluster, node: str, *, chosen: str = "", gone: bool = False) -> TicketFacts:
    """The facts of a node of a cluster; `chosen`, `gone`: as in `from_objects`.  Raises `NoCluster`,
    `Nothing`, `Unusable`."""
    unread: list[str] = []

    def asked(find: Callable[[], Iterable[Object | None]], what: str) -> list[Object]:
        """What there is of it; a kind that is not served is none, a refusal is a gap."""
        try:
            return [each for each in find() if each is not None]
        except NotThere:
            return []
        except NoCluster as error:
            unread.append(f"{what} not read: {error.message.splitlines()[0]}")
            return []

    bodies: list[Object] = [each for each in (cluster.find(REPORTS, node),) if each is not None]
    for path, what in (
        (READINGS, names.READING_KIND),
        (NODES, "Node"),
        (CHASSIS, names.CHASSIS_KIND),
        (HISTORIES, names.HISTORY_KIND),
    ):
        bodies += asked(partial(_one, cluster, path, node), what)
    bodies += asked(partial(cluster.each, POLICIES), names.POLICY_KIND)
    known = len(unread)
    others = asked(partial(cluster.each, REPORTS), f"{names.REPORT_KIND}s of other nodes")
    listed = len(unread) == known
    bodies += [each for each in others if name_of(each) != node]
    return from_objects(bodies, node, chosen=chosen, unread=unread, listed=listed, gone=gone)


def _one(cluster: Cluster, path: str, node: str) -> list[Object | None]:
    return [cluster.find(path, node)]


def from_objects(
    bodies: Iterable[Object],
    node: str,
    *,
    chosen: str = "",
    unread: Iterable[str] = (),
    listed: bool = False,
    gone: bool = False,
) -> TicketFacts:
    """The facts of the node among these objects.  `chosen`: the finding that the ticket is about; `unread`:
    what is missing and why; `listed`: the reports of all nodes are among them; `gone`: it is about what the
    history recorded, whoever has the name now.  Raises `Nothing`, `Unusable`."""
    bodies = list(bodies)
    own = {kind: _of(bodies, kind, node) for kind in (names.CHASSIS_KIND, names.HISTORY_KIND, "Node")}
    kinds = (names.REPORT_KIND, names.READING_KIND, EVIDENCE_KIND)
    mine = [body for kind in kinds for body in bodies if body.get("kind") == kind and name_of(body) == node]
    others = [body for body in bodies if body.get("kind") == names.REPORT_KIND and name_of(body) != node]
    kept = own[names.HISTORY_KIND]
    history = parse_node_history(kept) if kept is not None else None
    documents = [] if gone else reported(mine)
    if not documents:
        return _of_gone(node, history, others if others or listed else None, chosen=chosen)
    document = documents[0]
    policy, criteria, wrong = _policy(bodies, document)
    chassis = own[names.CHASSIS_KIND]
    same = history is not None and history.node_uid in ("", document.report.node_uid)
    return collect(
        Sources(
            node=node,
            reported=document,
            body=own["Node"],
            chassis=parse_chassis(chassis) if chassis is not None else None,
            history=history if same else None,
            policy=policy,
            criteria=criteria,
            others=others if others or listed else None,
            unread=(*unread, *wrong),
            chosen=chosen,
        )
    )


def _of_gone(
    node: str, history: NodeHistory | None, others: list[Object] | None, *, chosen: str
) -> TicketFacts:
    if history is None:
        raise Nothing(
            f"there is no NodeReport of {node}, and no NodeHistory: nodegauge has never read a node of this "
            "name. `kubectl get nodereports,nodehistories` lists those that it knows."
        )
    if history.record is None:
        raise Nothing(f"the NodeHistory of {node} records no fault.")
    return recorded(history, chosen=chosen, others=others)


def _policy(bodies: Iterable[Object], document: Reported) -> tuple[Policy, Criteria, list[str]]:
    """The node's policy and what it judges by; the defaults, and why, where it is missing or unreadable."""
    name = document.report.status.policy
    body = _of(bodies, names.POLICY_KIND, name)
    default = Policy(name=name, uid="", generation=0, spec=msgspec.convert({"nodeSelector": {}}, PolicySpec))
    if body is None:
        return default, Criteria.from_spec({}), []
    try:
        return parse(dict(body)), Criteria.from_spec(body.get("spec") or {}), []
    except (PolicyInvalid, Unusable) as error:
        return default, Criteria.from_spec({}), [f"policy {name}: judged by the defaults: {error}"]


def _of(bodies: Iterable[Object], kind: str, name: str) -> dict[str, Any] | None:
    return next((dict(body) for body in bodies if body.get("kind") == kind and name_of(body) == name), None)
