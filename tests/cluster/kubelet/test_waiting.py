"""Pods that cannot start say why, and start when they can."""

from __future__ import annotations

import uuid

import pytest

from testbed.kubelet import python_image
from testbed.podtests import (
    PODS,
    Lab,
    end,
    say,
    state,
)

pytestmark = pytest.mark.cluster


async def test_an_unknown_image_is_never_running(lab: Lab) -> None:
    """A pod whose image is not there waits in ImagePullBackOff and Pending, and starts once it is there."""
    name = await lab.run(say("late"), container={"image": "registry.example/late:1"})
    pod = await lab.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == "ImagePullBackOff")
    assert pod["status"]["phase"] == "Pending"
    assert not lab.pids(name)
    lab.kubelet.images["late"] = python_image()
    assert end(await lab.ended(name))["message"] == "late"


async def test_never_pull_says_so(lab: Lab) -> None:
    """imagePullPolicy Never with a missing image shows ErrImageNeverPull, and the pod can be deleted."""
    container = {"image": "registry.example/absent:1", "imagePullPolicy": "Never"}
    name = await lab.run("", container=container)
    await lab.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == "ErrImageNeverPull")
    await lab.api.delete(f"{PODS}/{name}")
    await lab.gone(name)


async def test_missing_configuration_waits_for_it(lab: Lab) -> None:
    """A container that needs an absent ConfigMap waits in CreateContainerConfigError and then starts."""
    key = f"config-{uuid.uuid4().hex[:8]}"
    reference = {"configMapKeyRef": {"name": key, "key": "word"}}
    script = "import os; open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(os.environ['WORD'])"
    name = await lab.run(script, container={"env": [{"name": "WORD", "valueFrom": reference}]})
    reason = "CreateContainerConfigError"
    await lab.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == reason)
    body = {"metadata": {"name": key}, "data": {"word": "found"}}
    await lab.api.create("/api/v1/namespaces/default/configmaps", body)
    assert end(await lab.ended(name))["message"] == "found"


async def test_an_unsupported_volume_is_refused_aloud(lab: Lab) -> None:
    """A hostPath that would silently not be mounted keeps the container from starting, with the reason."""
    name = await lab.run(
        "",
        container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]},
        volumes=[{"name": "host", "hostPath": {"path": "/"}}],
    )
    pod = await lab.until(name, lambda pod: "message" in state(pod).get("waiting", {}))
    assert "mounts nothing (hostPath)" in state(pod)["waiting"]["message"]
