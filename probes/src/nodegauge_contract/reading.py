"""The object in which a node's probes leave what they read: one `NodeReading` a node, one part a probe.

Only a probe pod on the node can write it (an admission policy compares the pod's token with the object's
name).  A part says who wrote it, when and why, and holds the document as text, so that a reader needs no
schema of the document and the API server has nothing to manage in it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from nodegauge_contract.values import Str

API_VERSION, KIND, PLURAL = "nodegauge.dev/v1alpha1", "NodeReading", "nodereadings"
PART_BYTES = {
    "health": 32 * 1024,
    "nccl": 14 * 1024,
    "load": 16 * 1024,
    "pull": 2 * 1024,
    "feed": 12 * 1024,
}
"""The most that a part's document may have, by part: 76 KiB together.  The CRD says the same.  Chosen by this
project: twice what eight GPUs need, and what a DGX-2 needs with every number at its longest."""

Word = Annotated[str, Meta(max_length=253)]


class Part(Struct, frozen=True, rename="camel", kw_only=True):
    """What one probe read last."""

    sequence: Annotated[int, Meta(ge=1, le=2**53)]
    """Grows with each reading that this pod writes; those in between were overwritten before anybody saw
    them."""
    at: Word
    """When the reading ended, by the node's clock: RFC 3339, to the millisecond."""
    reason: Str = ""
    """Why it was taken: `first`, `due`, `changed: WHAT`, `confirmed: 1 of 3`, `hung: CALL`,
    `late: CALL`, `crashed: CALL`, `run`."""
    pod: Word
    """Name of the pod that wrote it."""
    pod_uid: Word = field(name="podUID")
    """UID of that pod."""
    node_uid: Word = field(name="nodeUID")
    """UID of the Node object that the pod ran on."""
    boot_id: Word = field(default="", name="bootID")
    """Boot id of the node; empty if it could not be read."""
    probe_version: Word = ""
    """Version of the probe's package."""
    reading: str
    """The document as `document.text` writes it."""
