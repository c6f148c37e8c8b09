"""When the kubelet itself goes, its containers go, and the API learns of it."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from testbed.cluster import find_processes, start_host
from testbed.controlplane import ControlPlane
from testbed.kubelet.desired import DesiredFile, NodeSpec
from testbed.kubelet.process import alive
from testbed.pod_runner import FOREVER, GRANDCHILD, PODS, PodRunner, all_dead, end, say, wait_for

pytestmark = pytest.mark.cluster


async def test_a_restarted_kubelet_says_what_was_lost(runner: PodRunner) -> None:
    """Containers die with their kubelet: then Never is Failed with an unknown end, Always runs again."""
    once = await runner.run(FOREVER)
    always = await runner.run(FOREVER, restartPolicy="Always")
    await runner.running(once)
    await runner.running(always)
    pids = runner.pids(once) + runner.pids(always)
    await runner.kubelet.stop()
    await all_dead(pids)
    await runner.kubelet.start()
    status = await runner.ended(once)
    assert (end(status)["reason"], end(status)["exitCode"]) == ("ContainerStatusUnknown", 137)
    pod = await runner.until(always, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)
    await runner.running(always)
    assert (
        pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    )


async def test_no_process_outlives_a_killed_kubelet(runner: PodRunner, tmp_path: Path) -> None:
    """SIGKILL to the process of the kubelets leaves none of the pods' processes, whatever their session."""
    name, home = f"node-{uuid.uuid4().hex[:8]}", tmp_path / "host"
    home.mkdir()
    with DesiredFile(home).change() as nodes:
        nodes[name] = NodeSpec()
    with (tmp_path / "host.log").open("wb") as log:
        host = start_host(kubeconfig=runner.kubeconfig, directory=home, log=log)
    try:
        script = (
            f"import os, subprocess, sys, time\n{GRANDCHILD}print(child.pid, flush=True)\ntime.sleep(600)"
        )
        pod = await runner.run(script, nodeName=name)
        log_file = await wait_for(lambda: asyncio.to_thread(_log_of, home, pod))
        main = find_processes(home / "nodes", namespace="default", pod=pod)[0].pid
        pids = [main, int(log_file.read_text())]
        assert all(alive(pid) for pid in pids)
        host.kill()
        await all_dead(pids)
    finally:
        host.kill()
        host.communicate()
        await runner.api.delete(f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
        await runner.api.delete(f"/api/v1/nodes/{name}")


def _log_of(home: Path, pod: str) -> Path | None:
    """The pod's log, once something is in it."""
    result = list(home.glob(f"nodes/*/pods/default_{pod}_*/main/0.log"))
    return result[0] if result and result[0].read_text() else None


async def test_a_pods_end_outlasts_the_api_server(
    runner: PodRunner, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """What ends while the API server is away is reported when it is back, and new pods are seen again."""
    go = tmp_path / "go"
    script = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{say('done')}"
    name = await runner.run(script)
    await runner.running(name)
    await asyncio.to_thread(control_plane.stop_apiserver)
    go.touch()
    await all_dead(runner.pids(name))
    await asyncio.to_thread(control_plane.start_apiserver)
    assert end(await runner.ended(name))["message"] == "done"
    assert end(await runner.ended(await runner.run(say("seen"))))["message"] == "seen"
