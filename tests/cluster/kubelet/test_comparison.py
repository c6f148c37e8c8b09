"""The simulated kubelet beside what a real one showed of the same pods, and what else pods find there where a
mistake could hide a defect of nodegauge.

Readiness, liveness, tokens and volumes are seen on a real one by tests/e2e.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.kubelet_comparison import facts
from testbed.kubelet_comparison.perform import compared
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"


class PodRunner:
    """One simulated node, and calls as administrator."""

    def __init__(self, testbed: Testbed, node: str) -> None:
        self.api, self.node, self.testbed = testbed.control_plane.rest(), node, testbed

    def run(self, script: str, *, container: Object | None = None, **spec: Any) -> str:
        name = f"pod-{uuid.uuid4().hex[:8]}"
        main = {"name": "main", "image": "registry.example/python:3", "command": ["python", "-c", script]}
        usual = {"nodeName": self.node, "restartPolicy": "Never", "containers": [main | (container or {})]}
        self.api.create(PODS, {"metadata": {"name": name}, "spec": usual | spec})
        return name

    def until(self, name: str, reached: Callable[[Object], Any]) -> Object:
        def look() -> Object | None:
            pod = self.api.get(f"{PODS}/{name}")
            return pod if reached(pod) else None

        return wait_for(look, what=f"pod {name}") or {}

    def last_words(self, name: str) -> str:
        pod = self.until(name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
        return str(pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"])

    def files(self, name: str) -> Path:
        [result] = self.testbed.nodes.pods.glob(f"{self.node}/pods/default_{name}_*")
        return result


@contextmanager
def pod_runner(plane: ControlPlane, directory: Path, *, profile: str | None = None) -> Iterator[PodRunner]:
    name = f"node-{uuid.uuid4().hex[:8]}"
    with Testbed(directory, nodes={name: profile}, control_plane=plane) as testbed:
        runner = PodRunner(testbed, name)
        yield runner
        testbed.nodes.remove(name)
    for pod in runner.api.get(f"{PODS}?fieldSelector=spec.nodeName={name}")["items"]:
        with suppress(ApiError):  # the controllers may have been faster
            runner.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})


DECLARED = {("no-such-program", "last words")}
"""Pod and aspect of every difference; tests/testbed/README.md says why."""
OTHER_COURSE = {("no-room", ""), ("root-refused", "")}
"""Pods that differ in any aspect."""


def test_pods_show_what_they_show_on_a_real_kubelet(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Every difference is declared, and every declared difference is one."""
    known = DECLARED | OTHER_COURSE
    with pod_runner(control_plane, tmp_path) as runner:
        seen, _ = compared(control_plane, node=runner.node, but=known)
    changed = facts.differences(facts.read(), seen)
    assert {(pod, "") if (pod, "") in OTHER_COURSE else (pod, aspect) for pod, aspect in changed} == known, (
        changed
    )


SAY = "open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write"


@pytest.fixture(scope="module")
def runner(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodRunner]:
    """A node with GPUs, and with a variable in its kubelet's environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAK", "from the shell")
        with pod_runner(control_plane, tmp_path_factory.mktemp("node"), profile="titan-rtx-nv2") as runner:
            yield runner


def test_only_the_pods_own_environment_gets_in(runner: PodRunner) -> None:
    """Variables of the kubelet do not leak; downward fields and $(NAME) arrive; no token where none is
    mounted."""
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "JOINED", "value": "$(POD)@$(NODE) $$(POD) $(UNKNOWN)"},
    ]
    script = (
        "import os, sys\n"
        "leaked = [name for name in ('LEAK', 'KUBECONFIG') if name in os.environ]\n"
        f"{SAY}('|'.join([*leaked, os.environ['JOINED'], sys.argv[1]]))"
    )
    name = runner.run(script, container={"env": env, "args": ["$(NODE)"]}, automountServiceAccountToken=False)
    expected = f"{name}@{runner.node} $(POD) $(UNKNOWN)|{runner.node}"
    assert runner.last_words(name) == expected
    assert not list(runner.files(name).rglob("token"))


def test_an_unsupported_volume_is_refused_aloud(runner: PodRunner) -> None:
    """A hostPath that would silently not be mounted keeps the container from starting, with the reason."""
    name = runner.run(
        "",
        container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]},
        volumes=[{"name": "host", "hostPath": {"path": "/"}}],
    )

    def refusal(pod: Any) -> str:
        state = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
        return str(state.get("waiting", {}).get("message", ""))

    pod = runner.until(name, refusal)
    assert "mounts nothing (hostPath)" in refusal(pod)


ASK_NVML = f"""
import os
import pynvml
try:
    pynvml.nvmlInit()
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    words = f'{{pynvml.nvmlDeviceGetCount()}} {{name}}'
except pynvml.NVMLError as error:
    words = type(error).__name__
{SAY}(words + ' ' + os.environ['NODEGAUGE_SYSFS'])
"""


def test_plugged_hardware_reaches_the_real_pynvml(runner: PodRunner) -> None:
    """A pod that asks for the driver finds the profile's GPUs, one that asks for some, as many; one that does
    neither, or says void, none."""
    sysfs = runner.testbed.hardware(runner.node).env()["NODEGAUGE_SYSFS"]
    everything = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    none = f"NVMLError_LibraryNotFound {sysfs}"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"env": [everything]}, f"2 TITAN RTX {sysfs}"),
        ({"resources": {"limits": {"nvidia.com/gpu": "1"}}}, f"1 TITAN RTX {sysfs}"),
        ({"env": []}, none),
        ({"env": [{**everything, "value": "void"}]}, none),
    ]
    pods = [(runner.run(ASK_NVML, container=container), message) for container, message in cases]
    for name, message in pods:
        assert runner.last_words(name) == message
