"""Pieces of labels and taints that the API server refused lately: they are not tried again each minute."""

from __future__ import annotations

from collections.abc import Callable, Hashable

PIECES_SECONDS = 600.0
"""When the pieces of a refused patch are tried again.  Chosen by this project: a policy that denies them all
then costs a node one write a minute, as if it were one piece."""


class RefusedPieces:
    """Pieces of patches that the API server refused lately, by node."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, dict[Hashable, str]]] = {}

    def messages_by_key(self, node: str) -> dict[Hashable, str]:
        """By `Write.key`: the API server's message."""
        until, pieces = self._known.get(node, (0.0, {}))
        if pieces and until <= self._monotonic():
            del self._known[node]
            return {}
        return dict(pieces)

    def forget(self, node: str) -> None:
        """It is gone."""
        self._known.pop(node, None)

    def add(self, node: str, key: Hashable, message: str) -> None:
        """One was refused; all of the node's are tried again in `PIECES_SECONDS`."""
        until, pieces = self._known.get(node, (self._monotonic() + PIECES_SECONDS, {}))
        self._known[node] = until, pieces | {key: message}
