"""Nodes that were filled in the real way, copied below the API server: thousands in minutes, not in hours.

What etcd holds of a node (itself, its watch pod, its report, its evidence) is copied with other names, UIDs,
boards and container ids, each as long as before.  Core objects are stored as protobuf, where a text stands
behind its length, so a copy of the same lengths is valid.  The last message in the pod's status stays that of
the original (it is compressed): the operator has judged it, and does not read it again.  Pure.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fleet.load import documents, objects
from nodegauge_operator import names
from nodegauge_operator.api.evidence import ProbeEvidence
from nodegauge_operator.core import evidence
from nodegauge_operator.core.watch_pod import SHORT_ID, watch_view
from testbed.errors import TestbedError
from testbed.etcd import Pair

Object = dict[str, Any]

SEEDS = 100
"""Nodes that are filled in the real way."""


class Identity(Struct, frozen=True, kw_only=True):
    """What tells a node's four objects from those of other nodes.

    `uids`: of node, pod, report, evidence; `ended`: id of the last end of the watch container; `digest`: of
    the health probe's evidence, as the report has it.
    """

    node: str
    pod: str
    uids: tuple[str, str, str, str]
    ended: str
    digest: str

    @property
    def texts(self) -> list[str]:
        """All texts that are this node's alone, always in the same order."""
        boards = [(str(gpu.uuid), str(gpu.serial)) for gpu in documents.boards(documents.h100(), self.node)]
        return [
            self.node,
            self.pod,
            *self.uids,
            *objects.machine_ids(self.node),
            self.ended,
            self.ended[-SHORT_ID:],
            self.digest,
            *(text for of_board, serial in boards for text in (of_board, of_board.split("-")[1], serial)),
        ]

    def keys(self, namespace: str) -> tuple[str, str, str, str]:
        """Where etcd has node, pod, report and evidence."""
        own = f"/registry/{names.GROUP}"
        return (
            f"/registry/minions/{self.node}",
            f"/registry/pods/{namespace}/{self.pod}",
            f"{own}/{names.REPORT_PLURAL}/{self.node}",
            f"{own}/{names.EVIDENCE_PLURAL}/{self.node}",
        )


def identity_of(node: Object, pod: Object, report: Object, proof: Object) -> Identity:
    """By the objects as the API server shows them.

    `TestbedError` if they are not those of one node at rest: the report is of the last end of the container,
    and of this evidence.
    """
    view = watch_view(pod)
    probe = next((one for one in report["status"]["probes"] if one["name"] == names.PROBE_HEALTH), None)
    if view is None or view.ended is None or probe is None:
        raise TestbedError(f"node {node['metadata']['name']} has no judged report of a watch container")
    container = next(iter(pod["status"]["containerStatuses"]))
    result = Identity(
        node=node["metadata"]["name"],
        pod=view.name,
        uids=tuple(one["metadata"]["uid"] for one in (node, pod, report, proof)),
        ended=container["lastState"]["terminated"]["containerID"].removeprefix("containerd://"),
        digest=_digest(proof),
    )
    if (view.node, probe["lastRun"]["podUID"]) != (result.node, view.identity):
        raise TestbedError(f"the report of node {result.node} is not of its watch container's last end")
    if probe["evidenceDigest"] != result.digest:
        raise TestbedError(f"the report of node {result.node} is not of its evidence")
    return result


def copy_of(seed: Identity, node: str, number: int) -> Identity:
    """Another node with this name and number; its digest is not known yet.

    The pod's name ends in `a` and four hexadecimal digits: names that the API server makes have no vowel.
    """
    uids = tuple(str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} of {node}")) for kind in range(len(seed.uids)))
    return replace(
        seed,
        node=node,
        pod=f"{seed.pod[:-5]}a{number:04x}",
        uids=uids,
        ended=objects.container_id(uids[1], restarts=0),
    )


class Original:
    """A node as etcd has it, from which others are copied.  `stored`: node, pod, report and evidence."""

    def __init__(self, identity: Identity, stored: Iterable[bytes], *, namespace: str) -> None:
        self._identity = identity
        self._texts = [text.encode() for text in identity.texts]
        self._namespace = namespace
        longest_first = sorted(self._texts, key=len, reverse=True)
        own = re.compile(b"(" + b"|".join(map(re.escape, longest_first)) + b")")
        self._pieces = [own.split(value) for value in stored]
        """Of each object: what all nodes have, and a text of its own, in turn."""

    def copy(self, node: str, number: int) -> Iterator[Pair]:
        """Keys and values of another node.  `ValueError` for a name of another length."""
        new = copy_of(self._identity, node, number)
        proof = self._renamed(self._pieces[3], self._table(new))
        new = replace(new, digest=_digest(json_of(proof)))
        table = self._table(new)
        for key, pieces in zip(new.keys(self._namespace), self._pieces, strict=True):
            yield key.encode(), self._renamed(pieces, table)

    def _table(self, new: Identity) -> Mapping[bytes, bytes]:
        """From each text of this node to that of the other."""
        texts = [text.encode() for text in new.texts]
        for old, other in zip(self._texts, texts, strict=True):
            if len(old) != len(other):
                raise ValueError(f"{other.decode()!r} is not as long as {old.decode()!r}: lengths are stored")
        return dict(zip(self._texts, texts, strict=True))

    @staticmethod
    def _renamed(pieces: list[bytes], table: Mapping[bytes, bytes]) -> bytes:
        return b"".join(table[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def json_of(value: bytes) -> Object:
    """A custom resource as etcd has it."""
    body: Object = msgspec.json.decode(value)
    return body


def _digest(proof: Object) -> str:
    return evidence.digest(msgspec.convert(proof["probes"][names.PROBE_HEALTH], ProbeEvidence))
