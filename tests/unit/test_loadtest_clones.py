"""The load test's copies of nodes: every text that is a node's own is another's, and no length changes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fleet.load import clones, documents, objects
from fleet.load.writes import Write, by_whom
from nodegauge_contract import decode
from nodegauge_operator import names
from nodegauge_operator.api.policy import parse
from nodegauge_operator.core.evidence import noted
from nodegauge_operator.core.model import node_view
from nodegauge_operator.core.watch_pod import SHORT_ID
from testbed.errors import TestbedError
from testbed.etcd import TRANSACTION_BYTES, TRANSACTION_KEYS, batches, transaction

Object = dict[str, Any]

NOW = 1_800_000_000.0
AT = "2026-11-21T10:00:00Z"
NAMESPACE = "nodegauge"
UIDS = [f"0000000{number}-aaaa-4bbb-8ccc-dddddddddddd" for number in range(4)]
POD = "nodegauge-watch-loadtest-bcd24"


def four(name: str = "gpu-00001") -> list[Object]:
    """Node, watch pod, report and evidence after one report, as the API server shows them."""
    node = objects.node_body(name, labels=objects.SELECTED)
    node["metadata"]["uid"] = UIDS[0]
    message = documents.message(documents.h100(), run=UIDS[1], node=name)
    (after,) = objects.statuses(
        node_view(node), [decode(message)], policy=parse(objects.policy_body()), now=NOW
    )
    assert after.evidence is not None
    end = objects.end_of(message, pod=UIDS[1], restarts=0, started=AT, at=AT)
    owner = {"kind": "DaemonSet", "name": "watch", "uid": "set-1", "controller": True}
    pod = {
        "metadata": {
            "name": POD,
            "uid": UIDS[1],
            "labels": {names.POD_PROBE: names.PROBE_WATCH},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": name},
        "status": objects.running(AT, restarts=1, before=end),
    }
    status = noted(after.status, names.PROBE_HEALTH, after.evidence, node=name, now=NOW)
    report = {"metadata": {"name": name, "uid": UIDS[2]}, "status": msgspec.to_builtins(status)}
    run = report["status"]["probes"][0]["lastRun"]
    run.update(podName=POD, podUID=f"{UIDS[1]}/{end['containerID'][-SHORT_ID:]}")
    proof = {
        "metadata": {"name": name, "uid": UIDS[3]},
        "probes": {names.PROBE_HEALTH: msgspec.to_builtins(after.evidence)},
    }
    return [node, pod, report, proof]


def stored(bodies: list[Object]) -> list[bytes]:
    """As etcd has them; here all as JSON, without what is compressed in the pod's last message."""
    bodies[1]["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] = ""
    return [json.dumps(body).encode() for body in bodies]


def test_a_copy_is_a_node_of_its_own_that_the_operator_has_judged() -> None:
    """Nothing of the original is left, all lengths are kept, and report, pod and evidence belong together."""
    bodies = four()
    seed = clones.identity_of(*bodies)
    values = stored(bodies)
    original = clones.Original(seed, values, namespace=NAMESPACE)
    pairs = dict(original.copy("gpu-00777", 777))
    assert [len(value) for value in pairs.values()] == [len(value) for value in values]
    left = [text for text in seed.texts for value in pairs.values() if text.encode() in value]
    assert left == []
    copied = [clones.json_of(value) for value in pairs.values()]
    other = clones.identity_of(*copied)
    assert [key.decode() for key in pairs] == list(other.keys(NAMESPACE))
    assert other.node == copied[1]["spec"]["nodeName"] == "gpu-00777"
    assert copied[0]["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu-00777"
    boards = [gpu.uuid for gpu in documents.boards(documents.h100(), "gpu-00777")]
    assert [gpu["uuid"] for gpu in copied[2]["status"]["gpus"]["items"]] == boards
    assert str(boards[0]).split("-")[1] in copied[2]["status"]["probes"][0]["history"]
    assert other.digest != seed.digest


def test_no_two_copies_share_a_name_or_a_uid() -> None:
    """Also not with another original."""
    seed = clones.identity_of(*four())
    copies = [clones.copy_of(seed, f"gpu-{number:05d}", number) for number in range(100, 300)]
    texts = [text for copy in copies for text in (copy.node, copy.pod, *copy.uids, copy.ended)]
    assert len(set(texts)) == len(texts)


def test_a_name_of_another_length_is_refused() -> None:
    """It would break every length that is stored before it."""
    bodies = four()
    original = clones.Original(clones.identity_of(*bodies), stored(bodies), namespace=NAMESPACE)
    with pytest.raises(ValueError, match="'gpu-100000' is not as long as 'gpu-00001'"):
        list(original.copy("gpu-100000", 1))


def test_only_nodes_at_rest_are_copied() -> None:
    """The report is of the container's last end, and of the evidence beside it."""
    node, pod, report, proof = four()
    pod["status"] = objects.running(AT)
    with pytest.raises(TestbedError, match="gpu-00001 has no judged report"):
        clones.identity_of(node, pod, report, proof)
    node, pod, report, proof = four()
    report["status"]["probes"][0]["lastRun"]["podUID"] = "another"
    with pytest.raises(TestbedError, match="is not of its watch container's last end"):
        clones.identity_of(node, pod, report, proof)
    node, pod, report, proof = four()
    proof["probes"][names.PROBE_HEALTH]["driver"] = "999.1"
    with pytest.raises(TestbedError, match="is not of its evidence"):
        clones.identity_of(node, pod, report, proof)


def test_transactions_stay_within_etcds_limits_and_write_only_new_keys() -> None:
    """Every pair once, in order; one that is too large for any goes alone."""
    small = [(f"k{number}".encode(), b"v") for number in range(2 * TRANSACTION_KEYS + 1)]
    large = [(b"l1", b"x" * TRANSACTION_BYTES), (b"l2", b"x" * 2 * TRANSACTION_BYTES), (b"l3", b"")]
    made = list(batches([*small, *large]))
    assert [pair for batch in made for pair in batch] == [*small, *large]
    assert max(map(len, made)) == TRANSACTION_KEYS
    assert [batch[0][0] for batch in made[-3:]] == [b"l1", b"l2", b"l3"]
    request = transaction([(b"key", b"value")])
    assert request["compare"] == [
        {"key": "a2V5", "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    ]
    assert request["success"] == [{"request_put": {"key": "a2V5", "value": "dmFsdWU="}}]


def test_writes_are_counted_by_who_made_them() -> None:
    """Each known user by name, all others together, and nobody is left out who made none."""

    def one(user: str) -> Write:
        return Write(user=user, verb="patch", resource="nodes", name="n", code=200, received=0, at=0)

    writes = [one("a"), one("b"), one("a"), one("c")]
    counted = by_whom(writes, {"a": "operator", "d": "kubelets"}, others="controllers")
    assert {who: len(of) for who, of in counted.items()} == {"operator": 2, "kubelets": 0, "controllers": 2}
