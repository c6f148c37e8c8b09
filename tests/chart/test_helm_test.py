"""`helm test` that fails: the command of its pod, with the rights of the operator's account.

tests/cluster/slice shows one that passes.

There is no kubelet: `chart_pods` runs the pod's command and gives the operator's pod an address, at which the
operator's HTTP server listens.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nodegauge_operator.http_server import HttpServer
from nodegauge_operator.metrics import Metrics
from support.chart import LOOPBACK, NAMESPACE, PODS, RELEASE, ChartPods, Helm, HelmFailed, install
from testbed.rest import Rest

pytestmark = pytest.mark.cluster


@contextmanager
def unready_operator() -> Iterator[int]:
    """The operator's HTTP server in a thread; its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = HttpServer(
        host=LOOPBACK,
        port=0,
        metrics=Metrics(),
        live=lambda: True,
        unready=lambda: "the first full list is not complete",
    )
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def helm_test_pods(rest: Rest) -> list[str]:
    """Names of the test's pods in the release's namespace."""
    return [p["metadata"]["name"] for p in rest.get(PODS)["items"] if "-test" in p["metadata"]["name"]]


def test_helm_test_fails_until_the_operator_is_ready(
    cluster: Helm, rest: Rest, chart_pods: ChartPods
) -> None:
    """With an operator that is not ready the test fails and keeps its pod for the log."""
    with unready_operator() as port:
        install(cluster, {"operator": {"httpPort": port}, "test": {"timeout": "2s"}})
        with pytest.raises(HelmFailed):
            cluster.run("test", RELEASE, "--namespace", NAMESPACE)
    assert "answers /readyz with 503: the first full list is not complete" in chart_pods.output["test"]
    assert helm_test_pods(rest) == ["ng-nodegauge-test"]
    rest.delete(f"{PODS}/ng-nodegauge-test", {"gracePeriodSeconds": 0})
