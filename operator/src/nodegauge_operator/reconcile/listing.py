"""Full lists: how the store is filled at the start, and mended after a gap.

A watch never reports what was deleted while it was away, so lists are the truth and watches the speed.
"""

from __future__ import annotations

from collections.abc import Callable

from nodegauge_operator.api.policy import PolicyInvalid, parse
from nodegauge_operator.kube import nodes, pods, policies, reports
from nodegauge_operator.kube.client import Client
from nodegauge_operator.reconcile.store import PolicyError, Store, version_of


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
) -> set[str]:
    """List everything into the store; the names of nodes that need a look.  Raises `KubeError`.

    `beat` is called as objects come in: a slow list of a large cluster is progress all the same.
    """
    since = await _current_version(client)
    listed = set()
    async for body in policies.each(client):
        take_policy(store, body)
        listed.add(str(body["metadata"]["name"]))
    beat()
    for name in [n for n in store.policy_versions if n not in listed]:
        drop_policy(store, name, version=str(since))
    seen_nodes, seen_reports, seen_pods = set(), set(), set()
    async for report in reports.each(client):
        store.put_report(report)
        seen_reports.add(report.name)
        beat()
    beat()
    async for pod in pods.each(client, namespace=namespace):
        store.put_pod(pod)
        seen_pods.add(pod.uid)
        beat()
    beat()
    async for node in nodes.each(client, label_selector=node_selector):
        store.see_node(node)
        seen_nodes.add(node.name)
        beat()
    store.keep_only(nodes=seen_nodes, reports=seen_reports, pods=seen_pods, since=since)
    # A report or a pod of a node that no list holds: the node is gone, or left the server-side selection.
    store.suspects |= store.known_names() - seen_nodes
    return store.known_names()


async def _current_version(client: Client) -> int:
    """The resourceVersion before the lists: what is newer came after them and is not gone."""
    page = await client.call("GET", policies.PATH, query={"limit": 1})
    version = (page.get("metadata") or {}).get("resourceVersion", "")
    return int(version) if version.isdigit() else 0
