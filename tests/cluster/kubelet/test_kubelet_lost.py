"""When the kubelet itself goes, its containers go, and the API learns of it."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest

from testbed.cluster import find_processes, start_host
from testbed.controlplane import ControlPlane
from testbed.kubelet.desired import DesiredFile, NodeSpec
from testbed.kubelet.process import alive
from testbed.kubelet.shim import parents
from testbed.podtests import FOREVER, GRANDCHILD, PODS, Lab, all_dead, end, say, wait_for

pytestmark = pytest.mark.cluster


async def test_a_restarted_kubelet_says_what_was_lost(lab: Lab) -> None:
    """Containers die with their kubelet: then Never is Failed with an unknown end, Always runs again."""
    once = await lab.run(FOREVER)
    always = await lab.run(FOREVER, restartPolicy="Always")
    await lab.running(once)
    await lab.running(always)
    pids = lab.pids(once) + lab.pids(always)
    await lab.kubelet.stop()
    await all_dead(pids)
    await lab.kubelet.start()
    status = await lab.ended(once)
    assert (end(status)["reason"], end(status)["exitCode"]) == ("ContainerStatusUnknown", 137)
    pod = await lab.until(always, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)
    await lab.running(always)
    assert (
        pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    )


async def test_no_process_outlives_a_killed_kubelet(lab: Lab, tmp_path: Path) -> None:
    """SIGKILL to the process of the kubelets leaves none of the pods' processes, whatever their session."""
    name, home = f"node-{uuid.uuid4().hex[:8]}", tmp_path / "host"
    home.mkdir()
    with DesiredFile(home).change() as nodes:
        nodes[name] = NodeSpec()
    with (tmp_path / "host.log").open("wb") as log:
        host = start_host(kubeconfig=lab.kubeconfig, directory=home, log=log)
    try:
        script = (
            f"import os, subprocess, sys, time\n{GRANDCHILD}print(child.pid, flush=True)\ntime.sleep(600)"
        )
        pod = await lab.run(script, nodeName=name)
        log_file = await wait_for(lambda: asyncio.to_thread(_log_of, home, pod), seconds=30)
        main = find_processes(home / "nodes", namespace="default", pod=pod)[0].pid
        pids = [main, int(log_file.read_text())]
        assert all(alive(pid) for pid in pids)
        host.kill()
        await all_dead(pids)
    finally:
        host.kill()
        host.communicate()
        await lab.api.delete(f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
        await lab.api.delete(f"/api/v1/nodes/{name}")


def _log_of(home: Path, pod: str) -> Path | None:
    """The pod's log, once something is in it."""
    found = list(home.glob(f"nodes/*/pods/default_{pod}_*/main/0.log"))
    return found[0] if found and found[0].read_text() else None


async def test_the_host_ends_with_its_holder(lab: Lab, tmp_path: Path) -> None:
    """When the other end of its standard input is closed, the host of the kubelets exits by itself."""
    home = tmp_path / "host"
    home.mkdir()
    with (tmp_path / "host.log").open("wb") as log:
        host = start_host(kubeconfig=lab.kubeconfig, directory=home, log=log)
    assert host.stdin is not None
    host.stdin.close()
    assert await asyncio.to_thread(host.wait, 20) == 0


async def test_a_pods_end_outlasts_the_api_server(
    lab: Lab, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """What ends while the API server is away is reported when it is back, and new pods are seen again."""
    go = tmp_path / "go"
    script = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{say('done')}"
    name = await lab.run(script)
    await lab.running(name)
    await asyncio.to_thread(control_plane.stop_apiserver)
    go.touch()
    await all_dead(lab.pids(name))
    await asyncio.to_thread(control_plane.start_apiserver)
    assert end(await lab.ended(name, seconds=60))["message"] == "done"
    assert end(await lab.ended(await lab.run(say("seen")), seconds=60))["message"] == "seen"


async def test_a_container_goes_with_its_shim(lab: Lab) -> None:
    """SIGKILL to the process between kubelet and container ends the container, as 137."""
    name = await lab.run(FOREVER)
    await lab.running(name)
    [pid] = lab.pids(name)
    os.kill(parents()[pid], signal.SIGKILL)
    assert end(await lab.ended(name))["exitCode"] == 137
    await all_dead([pid])
