"""A few calls to etcd's JSON gateway (`/v3/kv`), for what is quicker below the API server than through it.

Keys and values are bytes as the API server stores them.  Only while no API server runs: its watch caches and
its resource versions must not meet writes that are not its own.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any

import urllib3

from testbed.errors import ControlPlaneError

Pair = tuple[bytes, bytes]

TRANSACTION_KEYS, TRANSACTION_BYTES = 60, 1_000_000
"""At most in one request: etcd takes 128 operations (here two for a key) and 1.5 MiB by default
(--max-txn-ops, --max-request-bytes)."""
TIMEOUT_SECONDS = 60.0


class Etcd:
    """The member at `url`, such as `http://127.0.0.1:2379`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(timeout=TIMEOUT_SECONDS)

    def get(self, key: str) -> bytes:
        """The value; ControlPlaneError without one."""
        answer = self._call("range", {"key": _coded(key.encode())})
        if not answer.get("kvs"):
            raise ControlPlaneError(f"etcd has no key {key}")
        return b64decode(answer["kvs"][0]["value"])

    def create(self, pairs: Iterable[Pair]) -> int:
        """Put all of these; how many.  ControlPlaneError if a key is there already: nothing of its
        transaction is written then."""
        count = 0
        for batch in batches(pairs):
            answer = self._call("txn", transaction(batch))
            if not answer.get("succeeded"):
                names = ", ".join(key.decode() for key, _ in batch[:3])
                raise ControlPlaneError(f"etcd has one of these keys already: {names}, ...")
            count += len(batch)
        return count

    def _call(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = self._pool.request(
                "POST", f"{self._url}/v3/kv/{what}", body=json.dumps(body).encode(), retries=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise ControlPlaneError(f"etcd gave no answer to {what}: {error}") from error
        if response.status != 200:
            text = response.data.decode("utf-8", errors="replace")[:300]
            raise ControlPlaneError(f"etcd refused {what} with {response.status}: {text}")
        answer: dict[str, Any] = json.loads(response.data)
        return answer


def batches(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """In their order, as many as fit into one transaction each; one that is too large goes alone."""
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        more = len(pair[0]) + len(pair[1])
        if batch and (len(batch) == TRANSACTION_KEYS or size + more > TRANSACTION_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(pair)
        size += more
    if batch:
        yield batch


def transaction(batch: Iterable[Pair]) -> dict[str, Any]:
    """The request that puts these if none of the keys exists."""
    coded = [(_coded(key), _coded(value)) for key, value in batch]
    return {
        "compare": [
            {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"} for key, _ in coded
        ],
        "success": [{"request_put": {"key": key, "value": value}} for key, value in coded],
    }


def _coded(data: bytes) -> str:
    return b64encode(data).decode("ascii")
