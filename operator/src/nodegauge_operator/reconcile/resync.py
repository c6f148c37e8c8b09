"""Full lists: how the store is filled at the start, and mended after a gap.

A watch never reports what was deleted while it was away, so lists are the truth and watches the speed.
"""

from __future__ import annotations

from collections.abc import Callable

from nodegauge_operator.api.policy import PolicyInvalid, parse
from nodegauge_operator.kube import nodes, pods, policies, reports
from nodegauge_operator.kube.client import Client
from nodegauge_operator.reconcile.cache import PolicyError, Store, version_of


def take_policy(store: Store, body: dict[str, object]) -> bool:
    """Keep one policy unless a newer one is known; a bad one is remembered as such while the last good one
    stays in force.

    Returns whether the set of policies in force changed.
    """
    metadata: dict[str, object] = body["metadata"]  # type: ignore[assignment]
    name, version = str(metadata["name"]), version_of(str(metadata.get("resourceVersion", "")))
    if version and version <= store.policy_versions.get(name, 0):
        return False
    store.policy_versions[name] = version
    store.policy_status[name] = body.get("status") or {}  # type: ignore[assignment]
    try:
        policy = parse(body)
    except PolicyInvalid as error:
        generation = int(str(metadata.get("generation", 0)))
        store.policy_errors[name] = PolicyError(generation=generation, message=str(error))
        return False
    store.policy_errors.pop(name, None)
    changed = store.policies.get(name) != policy
    store.policies[name] = policy
    if changed:
        store.policies_changed()
    return changed


def drop_policy(store: Store, name: str, *, version: str) -> bool:
    """Forget a policy that was deleted at that resourceVersion; whether it was in force.

    One that was made under the same name since is kept.
    """
    if version_of(version) < store.policy_versions.get(name, 0):
        return False
    store.policy_versions.pop(name, None)
    store.policy_errors.pop(name, None)
    store.policy_status.pop(name, None)
    known = store.policies.pop(name, None) is not None
    store.policies_changed()
    return known


async def list_all(
    client: Client,
    store: Store,
    *,
    namespace: str,
    node_selector: str,
    beat: Callable[[], None] = lambda: None,
    wake: Callable[[str], None] = lambda name: None,
) -> None:
    """List everything into the store.  Raises `KubeError`; what came in until then is kept.

    `beat` is called as objects come in: a slow list of a large cluster is progress all the same.  `wake` is
    called at once with each node about which something changed: nobody will hear of that again.  Watches and
    workers go on meanwhile, and a page shows the cluster as it was at the list's begin.
    """
    store.gone = set()
    try:
        since = await _current_version(client)
        beat()
        await _policies(client, store, since=since, wake=wake)
        beat()
        seen_reports = await _reports(client, store, beat=beat, wake=wake)
        beat()
        seen_nodes, seen_pods = set(), set()
        async for pod in pods.each(client, namespace=namespace):
            if not store.buried(pod.uid) and store.put_pod(pod):
                wake(pod.node)
            seen_pods.add(pod.uid)
            beat()
        beat()
        async for node in nodes.each(client, label_selector=node_selector):
            beat()
            if store.buried(node.uid):
                continue  # one that came since under its name is asked after like any that no list shows
            if store.see_node(node):
                wake(node.name)
            seen_nodes.add(node.name)
        touched = store.keep_only(nodes=seen_nodes, reports=seen_reports, pods=seen_pods, since=since)
    finally:
        store.gone = None
    # A report or a pod of a node that no list holds: the node is gone, or left the server-side selection.
    strays = store.known_names() - seen_nodes
    store.suspects |= strays
    for name in touched | strays:
        wake(name)


async def _policies(client: Client, store: Store, *, since: int, wake: Callable[[str], None]) -> None:
    """List the policies; another set of them is news to every node."""
    epoch = store.epoch
    listed = set()
    async for body in policies.each(client):
        take_policy(store, body)
        listed.add(str(body["metadata"]["name"]))
    for name in [n for n in store.policy_versions if n not in listed]:
        drop_policy(store, name, version=str(since))
    if store.epoch != epoch:
        for name in store.known_names():
            wake(name)


async def _reports(
    client: Client, store: Store, *, beat: Callable[[], None], wake: Callable[[str], None]
) -> set[str]:
    """List the reports; the names of all that the pages show."""
    seen = set()
    async for report in reports.each(client):
        if not store.buried(report.uid) and store.put_report(report):
            wake(report.name)
        seen.add(report.name)
        beat()
    return seen


async def _current_version(client: Client) -> int:
    """The resourceVersion before the lists: what is newer came after them and is not gone."""
    page = await client.call("GET", policies.PATH, query={"limit": 1})
    version = (page.get("metadata") or {}).get("resourceVersion", "")
    return int(version) if version.isdigit() else 0
