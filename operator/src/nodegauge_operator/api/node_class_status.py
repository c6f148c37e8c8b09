"""The class of a node as the report keeps it; `core.probes.node_class` says what moves it."""

from __future__ import annotations

from msgspec import Struct


class NodeClassStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The class of the node for schedulers, and what would change it."""

    value: str = ""
    """The class that was measured; empty before the first."""
    since: str = ""
    """When it became this one (RFC 3339)."""
    next: str = ""
    """Another class that the last NCCL run measured; empty for none."""
    runs: int = 0
    """NCCL runs in a row that measured it."""
    doubts: int = 0
    """Runs in a row by which the node is not what its class says; enough of them withdraw it."""
    withdrawn: bool = False
    """Withdrawn until an NCCL run measures a class again."""
