"""Promises 1 and 10: whatever a probe brings home that is not its result ends in unknown, decides nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import encode, encode_message
from nodegauge_contract.wire import codec
from support.cluster_under_test import answering, run_of
from support.results import h100, phb
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def packed(data: bytes) -> str:
    """As a probe packs a large document."""
    return codec.wrap(data)


def honest(pod: Any) -> dict[str, Any]:
    """The document that the probe would have written."""
    document: dict[str, Any] = json.loads(_plain(pod))
    return document


def _plain(pod: Any) -> bytes:
    run, node = run_of(pod)
    return encode(replace(phb(), run=run, node=node))


def changed(pod: Any, **fields: Any) -> str:
    """The honest document with these fields instead."""
    return packed(json.dumps(honest(pod) | fields).encode())


HOSTILE: dict[str, Callable[[Any], str]] = {
    "garbage": lambda pod: "\x00\x01 not a result \U0001f4a5",
    "empty": lambda pod: "",
    "cut off": lambda pod: packed(_plain(pod))[:-40],
    "decompression bomb": lambda pod: packed(b" " * 3_000_000 + _plain(pod)),
    "wrong run": lambda pod: encode_message(replace(phb(), run="0" * 20, node=run_of(pod)[1])),
    "another node's": lambda pod: encode_message(replace(phb(), run=run_of(pod)[0], node="someone-else")),
    "deep nesting": lambda pod: packed(b'{"schema":"nodegauge.dev/probe-result","x":' + b"[" * 100_000),
    "wrong types": lambda pod: changed(pod, gpus=[{"index": "zero"}]),
    "too many gpus": lambda pod: changed(pod, gpus=[{"index": i} for i in range(4000)]),
    "another schema": lambda pod: changed(pod, schema="example.com/other"),
    "unknown major version": lambda pod: changed(pod, version="2.0"),
}


def test_a_hostile_result_is_unknown_and_changes_nothing(rig: Any) -> None:
    """After a good run, a bad result leaves labels, condition and verdict as they were, and says why.

    Each kind on a node of its own, under one operator.
    """
    nodes = {rig.add_node(): kind for kind in HOSTILE}
    rig.add_policy()
    hostile = False

    def answer(pod: Any) -> str:
        return HOSTILE[nodes[run_of(pod)[1]]](pod) if hostile else answering(h100())(pod)

    with rig.kubelet(answer), rig.operator() as operator:
        before = {node: rig.wait_up_to_date(node, 1) for node in nodes}
        hostile = True
        for node in nodes:
            rig.ask_for_run(node)
        for node, kind in nodes.items():
            run = rig.wait_run(node, 2)
            assert run["outcome"] == "unknown", kind
            assert run["reason"] in {"ResultUnreadable", "WrongRun", "NoResult"}, kind
            assert len(run["message"]) > 20, kind
        assert operator.running()
    for node, kind in nodes.items():
        after = rig.state(node)
        assert after["labels"] == before[node]["labels"], kind
        assert after["condition"] == before[node]["condition"], kind
        probe = rig.report(node)["status"]["probes"][0]
        assert (probe["verdict"], probe["unread"]) == ("pass", probe["lastRun"]["number"] - 1), kind


def test_a_first_run_without_a_result_labels_nothing(rig: Any) -> None:
    """Nothing was ever read: no label, condition Unknown with the reason."""
    node = rig.add_node()
    rig.add_policy()
    with rig.kubelet(lambda pod: "garbage"), rig.operator():
        rig.wait_run(node, 1)
        wait_for(lambda: rig.condition(node), what="the condition")
    assert rig.ours(node) == {}
    assert rig.condition(node)["status"] == "Unknown"
    assert "ResultUnreadable" in rig.condition(node)["message"]
