"""What a full list costs when nothing was missed: the operator's own code, a second time on the same cache.

Bytes are the API server's own count of its answers (`apiserver_response_sizes`).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping

from fleet.load.figures import Relist
from nodegauge_operator.kube.client import connect
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.resync import list_all
from nodegauge_operator.reconcile.watch_sets import WatchPods
from testbed.controlplane import ControlPlane

_SIZES = re.compile(r"^apiserver_response_sizes_sum\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_RESOURCE = re.compile(r'(?:^|,)resource="(?P<resource>[^"]+)"')


async def measure(plane: ControlPlane, *, namespace: str) -> Relist:
    """One list of the cluster as it is, while nobody else lists."""
    client = await connect(environ={"KUBECONFIG": str(plane.kubelet_kubeconfig)})
    cache = Cache()
    watch_pods = WatchPods(cache)
    try:
        await list_all(client, cache, namespace=namespace, node_selector="", watch_pods=watch_pods)
        before = _sizes(plane)
        started, cpu = time.monotonic(), time.process_time()
        await list_all(client, cache, namespace=namespace, node_selector="", watch_pods=watch_pods)
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    finally:
        await client.close()
    sizes = {resource: count - before[resource] for resource, count in _sizes(plane).items()}
    listed = {resource: count for resource, count in sizes.items() if resource in LISTED}
    return Relist(bytes=dict(sorted(listed.items(), key=lambda item: -item[1])), seconds=seconds, cpu=cpu)


LISTED = ("nodes", "pods", "nodereports", "gpuvalidationpolicies")


def _sizes(plane: ControlPlane) -> Mapping[str, int]:
    """Bytes of answers so far, by resource."""
    text = str(plane.rest().get("/metrics")["message"])
    result: Counter[str] = Counter()
    for match in _SIZES.finditer(text):
        resource = _RESOURCE.search(match["labels"])
        if resource is not None:
            result[resource["resource"]] += int(float(match["value"]))
    return result
