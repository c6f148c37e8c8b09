"""Deleted pods: SIGTERM, grace, SIGKILL, and gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed.kubelet.process import alive
from testbed.podtests import (
    FOREVER,
    GRANDCHILD,
    PODS,
    Lab,
    all_dead,
    armed,
    end,
    state,
)

pytestmark = pytest.mark.cluster


async def test_deletion_sends_sigterm_and_removes_the_pod(lab: Lab, tmp_path: Path) -> None:
    """A deleted pod's process gets SIGTERM and the pod leaves the API once it has ended."""
    mark = tmp_path / "terminated"
    script = (
        "import pathlib, signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(mark)!r}).touch(), sys.exit(0)))\n"
        "print('armed', flush=True)\n"
        "signal.pause()"
    )
    name = await lab.run(script)
    await armed(lab, name)
    await lab.api.delete(f"{PODS}/{name}")
    await lab.gone(name)
    assert mark.exists()


async def test_a_deaf_process_is_killed_after_the_grace_period(lab: Lab) -> None:
    """SIGTERM without a handler is dropped, as for PID 1; SIGKILL ends all processes of the container."""
    script = (
        f"import subprocess, sys, time\n{GRANDCHILD}print('armed', child.pid, flush=True)\ntime.sleep(600)"
    )
    name = await lab.run(script, terminationGracePeriodSeconds=1)
    await armed(lab, name)
    child = int((lab.files(name) / "main" / "0.log").read_text().split()[1])
    pids = [*lab.pids(name), child]
    assert all(alive(pid) for pid in pids)
    codes: list[int] = []

    async def watch() -> None:
        async for _, pod in lab.api.watch(PODS, version="0", fieldSelector=f"metadata.name={name}"):
            if "terminated" in state(pod):
                codes.append(state(pod)["terminated"]["exitCode"])
                return

    watching = asyncio.ensure_future(watch())
    await lab.api.delete(f"{PODS}/{name}")
    await lab.gone(name)
    await asyncio.wait_for(watching, 5)
    assert codes == [137]
    assert not any(alive(pid) for pid in pids)


async def test_a_forced_deletion_kills_at_once(lab: Lab) -> None:
    """A pod that vanishes from the API leaves no process behind."""
    name = await lab.run(FOREVER)
    await lab.running(name)
    pids = lab.pids(name)
    await lab.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    await all_dead(pids)


async def test_a_background_process_ends_with_its_container(lab: Lab, tmp_path: Path) -> None:
    """What a container leaves running dies when its first process ends."""
    script = (
        "import os, subprocess, sys\n"
        f"{GRANDCHILD}"
        "open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(str(child.pid))"
    )
    status = await lab.ended(await lab.run(script))
    assert not alive(int(end(status)["message"]))
