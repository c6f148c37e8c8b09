"""Fills the rest of a cluster with copies of its nodes, and checks through the API server that it shows them.

Scheduler and controllers stay stopped afterwards: at these sizes they would take the machine for themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fleet.load import clones, documents, loops
from fleet.load.population import Population, pods_path
from nodegauge_operator import names
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.etcd import Etcd, Pair

Object = dict[str, Any]

OF_WATCH = f"{names.POD_PROBE}={names.PROBE_WATCH}"
LISTED_SECONDS = 120.0
"""The longest that an API server may take after its start to read custom resources into its caches."""


async def fill(
    plane: ControlPlane,
    population: Population,
    *,
    seeds: Sequence[str],
    wanted: Sequence[str],
    count: int,
    namespace: str,
) -> float:
    """Copy the nodes `seeds`, whose containers have each reported, in turn under the names `wanted`; the
    seconds until the API server shows them all.  `TestbedError` if it does not show `count` of each kind."""
    began = time.monotonic()
    pods = await _watch_pods(population, namespace)
    identities = [await _identity(population, seed, pods[seed]) for seed in seeds]
    with plane.only_etcd() as url:
        made = await asyncio.to_thread(_copy, Etcd(url), identities, wanted=wanted, namespace=namespace)
    if made != 4 * len(wanted):
        raise TestbedError(f"{made} objects were copied for {len(wanted)} nodes")
    await _shown(plane, count=count, namespace=namespace)
    for number in sorted({0, len(wanted) // 2, len(wanted) - 1}):
        copy = clones.copy_of(identities[number % len(identities)], wanted[number], number)
        await _check(population, copy, namespace=namespace)
    return time.monotonic() - began


async def _watch_pods(population: Population, namespace: str) -> dict[str, Object]:
    """By node."""
    pages = await population.pages(pods_path(namespace), label_selector=OF_WATCH)
    return {pod["spec"]["nodeName"]: pod for page in pages for pod in page.get("items") or ()}


async def _identity(population: Population, node: str, pod: Object) -> clones.Identity:
    paths = (f"{loops.NODES}/{node}", f"{loops.REPORTS}/{node}", f"{loops.EVIDENCE}/{node}")
    body, report, proof = [await population.call("GET", path) for path in paths]
    return clones.identity_of(body, pod, report, proof)


def _copy(etcd: Etcd, seeds: Sequence[clones.Identity], *, wanted: Sequence[str], namespace: str) -> int:
    originals = [
        clones.Original(seed, [etcd.get(key) for key in seed.keys(namespace)], namespace=namespace)
        for seed in seeds
    ]

    def pairs() -> Iterator[Pair]:
        for number, node in enumerate(wanted):
            yield from originals[number % len(originals)].copy(node, number)

    return etcd.create(pairs())


async def _shown(plane: ControlPlane, *, count: int, namespace: str) -> None:
    """Wait until the API server shows `count` objects of each of the four kinds."""
    until = time.monotonic() + LISTED_SECONDS
    for path in (loops.NODES, pods_path(namespace), loops.REPORTS, loops.EVIDENCE):
        while (shown := await asyncio.to_thread(_count, plane, path)) != count:
            if time.monotonic() > until:
                raise TestbedError(f"{path} shows {shown} objects instead of {count}")
            await asyncio.sleep(1.0)


async def _check(population: Population, copy: clones.Identity, *, namespace: str) -> None:
    """It is a node of its own, and its four objects belong together."""
    pod = await population.call("GET", pods_path(namespace, copy.pod))
    identity = await _identity(population, copy.node, pod)
    report = await population.call("GET", f"{loops.REPORTS}/{copy.node}")
    boards = [str(gpu.uuid) for gpu in documents.boards(documents.h100(), copy.node)]
    shown_boards = [gpu["uuid"] for gpu in report["status"]["gpus"]["items"]]
    (owner,) = report["metadata"]["ownerReferences"]
    wanted = (copy.node, copy.uids, copy.uids[0], boards)
    if (identity.node, identity.uids, owner["uid"], shown_boards) != wanted:
        raise TestbedError(f"the copy {copy.node} is not a node of its own: {identity}, {shown_boards}")


def _count(plane: ControlPlane, path: str) -> int:
    """Objects in a collection, as the API server counts them; 0 while it cannot say."""
    try:
        page = plane.rest().get(f"{path}?limit=1")
    except (ApiError, ConnectionError):
        return 0
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)
