"""What pods find on the simulated kubelet, where a mistake could hide a defect of nodegauge.

How ordinary pods end is compared with a real kubelet in test_comparison.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testbed.controlplane import ControlPlane
from testbed.pod_runner import PODS, PodRunner, pod_runner
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

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


SERVER = """
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if os.path.exists('sick-' + self.path.strip('/')) else 200)
        self.end_headers()
where = os.environ['NODEGAUGE_HTTP_HOST'], int(os.environ['NODEGAUGE_HTTP_PORT'])
http.server.HTTPServer(where, Answer).serve_forever()
"""


def check(path: str, **more: Any) -> dict[str, Any]:
    """A probe that asks for this path every second; a file `sick-PATH` makes the server answer 500."""
    return {
        "httpGet": {"path": f"/{path}", "port": "http"},
        "periodSeconds": 1,
        "failureThreshold": 1,
        **more,
    }


def test_readiness_and_liveness_follow_their_answers(runner: PodRunner) -> None:
    """A failing readiness check takes Ready away; a failing liveness check restarts the container."""
    container = {
        "env": [{"name": "NODEGAUGE_HTTP_PORT", "value": "8080"}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": check("ready"),
        "livenessProbe": check("live", initialDelaySeconds=2),
    }
    name = runner.run(SERVER, container=container, restartPolicy="Always", terminationGracePeriodSeconds=1)

    def ready(pod: Any) -> str:
        return next((c["status"] for c in pod["status"].get("conditions", []) if c["type"] == "Ready"), "")

    runner.until(name, lambda pod: ready(pod) == "True")
    (runner.files(name) / "sick-ready").touch()
    runner.until(name, lambda pod: ready(pod) == "False")
    (runner.files(name) / "sick-live").touch()
    runner.until(name, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1)


def test_an_empty_directory_outlives_the_container(runner: PodRunner) -> None:
    """What one life of a container wrote there, the next one reads; another pod does not."""
    script = (
        "import os, pathlib, sys, time\n"
        "file = pathlib.Path(sys.argv[1].partition('=')[2])\n"
        "if file.exists(): time.sleep(60)\n"
        f"file.touch(); {SAY}(str(file))"
    )
    name = runner.run(
        script,
        container={
            "args": ["--state=/run/scratch/seen"],
            "volumeMounts": [{"name": "state", "mountPath": "/run/scratch"}],
        },
        volumes=[{"name": "state", "emptyDir": {}}],
        restartPolicy="Always",
        terminationGracePeriodSeconds=1,
    )

    def ended(pod: Any) -> Any:
        return (pod["status"].get("containerStatuses") or [{}])[0].get("lastState")

    (container,) = (runner.until(name, ended))["status"]["containerStatuses"]
    where = container["lastState"]["terminated"]["message"]
    assert where.startswith(str(runner.files(name)))
    assert container["restartCount"] == 1


def test_logs_are_served_by_the_kubelet(runner: PodRunner, api: Rest) -> None:
    """`kubectl logs` finds the output of this life and the last, can end it, and follows it."""
    script = (
        "import pathlib, sys, time\n"
        "first = not pathlib.Path('seen').exists(); pathlib.Path('seen').touch()\n"
        "print('one', 'first' if first else 'second', sep='\\n', flush=True)\n"
        "while not (first or pathlib.Path('go').exists()): time.sleep(0.05)\n"
        "print('last', flush=True)\n"
        "while not first: time.sleep(60)"
    )
    name = runner.run(script, restartPolicy="Always", terminationGracePeriodSeconds=1)

    def log(options: str = "") -> str:
        return str(api.get(f"{PODS}/{name}/log?{options}")["message"])

    def second_life(pod: Any) -> bool:
        status = (pod["status"].get("containerStatuses") or [{"restartCount": 0}])[0]
        return status["restartCount"] == 1 and "running" in status["state"]

    runner.until(name, second_life)
    wait_for(lambda: "second" in log(), what="the output of the second life")
    assert log("previous=true") == "one\nfirst\nlast"
    assert log("tailLines=1") == "second"
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(log, "follow=true")
        (runner.files(name) / "go").touch()
        wait_for(lambda: "last" in log(), what="what was printed while one follows")
        assert not following.done()
        api.delete(f"{PODS}/{name}")
        assert following.result() == "one\nsecond\nlast"


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
