"""Pods on the simulated kubelet: placed, waiting, ended, deleted.

How ordinary pods end is compared with a real kubelet in test_comparison.py; here is what that leaves out.
"""

from __future__ import annotations

import signal
import sys
import time
import uuid
from pathlib import Path

import pytest

from testbed.kubelet import python_image
from testbed.kubelet.process import ContainerProcess, ProcessSpec, alive
from testbed.pod_runner import (
    FOREVER,
    GRANDCHILD,
    PODS,
    Object,
    PodRunner,
    all_dead,
    end,
    say,
    state,
    wait_for,
)

pytestmark = pytest.mark.cluster


def boot_id() -> str:
    """The boot id of this machine, which a node without hardware has too."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_a_node_registers_and_is_schedulable(runner: PodRunner) -> None:
    """A started kubelet's node is Ready, carries a kubelet's labels, and loses the not-ready taint."""

    async def schedulable() -> Object | None:
        node = await runner.api.get(f"/api/v1/nodes/{runner.node}")
        return None if node["spec"].get("taints") else node

    node = await wait_for(schedulable)
    conditions = {item["type"]: item["status"] for item in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == runner.node
    assert node["status"]["nodeInfo"]["bootID"] == boot_id()
    assert "nvidia.com/gpu" not in node["status"]["capacity"]


async def test_the_real_scheduler_places_pods_on_it(runner: PodRunner) -> None:
    """A pod without nodeName that selects the node is bound by the scheduler and runs."""
    selector = {"kubernetes.io/hostname": runner.node}
    name = await runner.run(say("placed"), nodeName=None, nodeSelector=selector)
    assert end(await runner.ended(name))["message"] == "placed"


async def test_an_unknown_image_is_never_running(runner: PodRunner) -> None:
    """A pod whose image is not there waits in ImagePullBackOff and Pending, and starts once it is there."""
    name = await runner.run(say("late"), container={"image": "registry.example/late:1"})
    pod = await runner.until(
        name, lambda pod: state(pod).get("waiting", {}).get("reason") == "ImagePullBackOff"
    )
    assert pod["status"]["phase"] == "Pending"
    assert not runner.pids(name)
    runner.kubelet.images["late"] = python_image()
    assert end(await runner.ended(name))["message"] == "late"


async def test_missing_configuration_waits_for_it(runner: PodRunner) -> None:
    """A container that needs an absent ConfigMap waits in CreateContainerConfigError and then starts."""
    key = f"config-{uuid.uuid4().hex[:8]}"
    reference = {"configMapKeyRef": {"name": key, "key": "word"}}
    script = "import os; open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(os.environ['WORD'])"
    name = await runner.run(script, container={"env": [{"name": "WORD", "valueFrom": reference}]})
    reason = "CreateContainerConfigError"
    await runner.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == reason)
    body = {"metadata": {"name": key}, "data": {"word": "found"}}
    await runner.api.create("/api/v1/namespaces/default/configmaps", body)
    assert end(await runner.ended(name))["message"] == "found"


async def test_an_unsupported_volume_is_refused_aloud(runner: PodRunner) -> None:
    """A hostPath that would silently not be mounted keeps the container from starting, with the reason."""
    name = await runner.run(
        "",
        container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]},
        volumes=[{"name": "host", "hostPath": {"path": "/"}}],
    )
    pod = await runner.until(name, lambda pod: "message" in state(pod).get("waiting", {}))
    assert "mounts nothing (hostPath)" in state(pod)["waiting"]["message"]


async def test_an_old_event_starts_nothing_again(runner: PodRunner, tmp_path: Path) -> None:
    """An event from before a pod's final status, read after it, does not run the pod a second time."""
    runs = tmp_path / "runs"
    name = await runner.run(f"open({str(runs)!r}, 'a').write('x')")
    await runner.ended(name)
    pod = await runner.pod(name)
    assert pod is not None
    pod["status"] = {"phase": "Running"}
    runner.kubelet._observe("MODIFIED", pod)
    again = await runner.run(say("later"))
    await runner.ended(again)
    assert runs.read_text() == "x"
    assert (await runner.pod(name) or {})["status"]["phase"] == "Succeeded"


async def test_a_signal_does_not_swallow_the_exit_code(tmp_path: Path) -> None:
    """A container that ends while it is being signalled keeps its own exit code."""
    spec = ProcessSpec(
        argv=[sys.executable, "-c", "raise SystemExit(5)"], env={}, cwd=tmp_path, log=tmp_path / "log"
    )
    process = await ContainerProcess.launch(spec)
    block_until_ended(process)
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGKILL)
    assert await process.wait() == 5


def block_until_ended(process: ContainerProcess) -> None:
    """Wait while the event loop stands still, so that the container's exit code is not read yet."""
    while process._shim.poll() is None:
        time.sleep(0.005)


async def test_a_forced_deletion_kills_at_once(runner: PodRunner) -> None:
    """A pod that vanishes from the API leaves no process behind."""
    name = await runner.run(FOREVER)
    await runner.running(name)
    pids = runner.pids(name)
    await runner.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    await all_dead(pids)


async def test_a_background_process_ends_with_its_container(runner: PodRunner, tmp_path: Path) -> None:
    """What a container leaves running dies when its first process ends."""
    script = (
        "import os, subprocess, sys\n"
        f"{GRANDCHILD}"
        "open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(str(child.pid))"
    )
    status = await runner.ended(await runner.run(script))
    assert not alive(int(end(status)["message"]))
