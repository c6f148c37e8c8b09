"""Where the operator says what it knows: one refused write holds back no other."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.core import actions as steps
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.kube.errors import KubeError, Refused
from support.api_server import NODES
from support.objects import MINUTE, AReport, make_node, make_report, make_snapshot, read, taint
from support.operator import one_node

NODE = make_node()
REPORT = make_report().after(read(made.titan()), node=NODE)
TAINTED = replace(NODE, taints=(taint("nodegauge.dev/throttled=thermal:NoSchedule"),))


def written(refused: Callable[[steps.Step], bool]) -> tuple[NodeView, AReport, list[str]]:
    """The node and its report once nothing is left to write, and what was written, by name.

    `refused`: what the API server refuses.
    """
    known: dict[str, Any] = {"node": TAINTED, "report": REPORT, "granted": frozenset()}
    declined: dict[Hashable, str] = {}
    log = []
    while step := next_step(make_snapshot(**known, declined=declined)):
        if refused(step):
            assert step.key not in declined, "it was refused, and is made again at once"
            declined |= {step.key: "denied"}
            continue
        log.append(type(step).__name__)
        match step:
            case steps.PatchNode(node, labels, taints):
                known["node"] = node.patched(labels, taints)
            case steps.SetCondition(_, condition):
                known["node"] = replace(known["node"], condition=condition)
            case steps.PatchReport(_, status):
                known["report"] = replace(known["report"], status=status)
            case steps.PostEvent(_, change):
                known["posted"] = (change.run, change.reason)
    return known["node"], known["report"], log


def test_a_refused_label_holds_back_neither_taints_nor_other_labels() -> None:
    key = names.PREFIX + "nvlink-gbps"
    node, report, log = written(lambda step: isinstance(step, steps.PatchNode) and key in step.labels)
    assert not node.taints
    assert report.status.desired.labels.keys() - node.labels.keys() == {key}
    assert node.condition is not None
    assert report.status.desired.refusal == "denied"
    assert {"SetCondition", "PostEvent"} <= {*log}


def test_refused_taints_hold_back_no_label() -> None:
    node, report, _ = written(lambda step: isinstance(step, steps.PatchNode) and step.taints is not None)
    assert node.taints == TAINTED.taints
    assert report.status.desired.labels.items() <= node.labels.items()
    assert report.status.desired.refusal == "denied"


def test_a_patch_that_is_not_refused_is_one_write() -> None:
    node, report, log = written(lambda step: False)
    assert log.count("PatchNode") == 1
    assert log.index("PatchNode") < log.index("SetCondition")
    assert not node.taints
    assert report.status.desired.refusal == ""


def test_once_everything_was_refused_single_labels_come_last() -> None:
    """A webhook that takes ten seconds for each refusal delays neither taints nor condition."""
    whole = written(lambda step: isinstance(step, steps.PatchNode) and not step.piece)
    assert whole[2][:4] == ["PatchNode", "SetCondition", "PatchNode", "PatchNode"]
    assert not whole[0].taints
    assert whole[1].status.desired.labels.items() <= whole[0].labels.items()
    assert whole[1].status.desired.refusal == ""


def test_a_refused_condition_holds_back_no_event() -> None:
    node, report, log = written(lambda step: isinstance(step, steps.SetCondition))
    assert node.condition is None
    assert {"PatchNode", "PostEvent"} <= {*log}
    assert report.status.desired.refusal == "denied"


def deny(denied: list[str], verb: str, path: str) -> KubeError | None:
    """Refuses patches of the node, and notes them."""
    if (verb, path) != ("PATCH", f"{NODES}/node-1"):
        return None
    denied.append(path)
    return Refused("denied")


def test_a_policy_that_denies_every_piece_costs_a_write_a_minute() -> None:
    operator, denied = one_node(), list[str]()
    operator.client.refuse = partial(deny, denied)
    operator.run()
    pieces = len(denied) - 1
    assert pieces > 1
    counts = []
    for _ in range(10):
        operator.cluster.pass_time(MINUTE)
        denied.clear()
        operator.catch_up(granted=False)
        counts.append(len(denied))
    assert counts == [1] * 9 + [1 + pieces]
    assert operator.status["desired"]["refusal"] == "denied"


def test_a_label_that_is_refused_alone_is_one_write() -> None:
    """It is no piece of anything that may have been refused for another reason."""
    operator, denied = one_node(), list[str]()
    operator.run()
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    operator.client.refuse = partial(deny, denied)
    operator.catch_up(granted=False)
    assert len(denied) == 1
    state = operator.reconciler.obstacles.state("default")
    assert state[2].startswith(
        f"the label {names.LABEL_HEALTH} cannot be written on 1 node (node-1): denied. "
    )
