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


def ready(pod: Any) -> str:
    """The status of the pod's condition Ready; empty where it has none."""
    return next((c["status"] for c in pod["status"].get("conditions", []) if c["type"] == "Ready"), "")


def test_readiness_and_liveness_follow_their_answers(runner: PodRunner) -> None:
    """A failing readiness check takes Ready away; a failing liveness check restarts the container."""
    container = {
        "env": [{"name": "NODEGAUGE_HTTP_PORT", "value": "8080"}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": check("ready"),
        "livenessProbe": check("live", initialDelaySeconds=2),
    }
    name = runner.run(SERVER, container=container, restartPolicy="Always", terminationGracePeriodSeconds=1)
    runner.until(name, lambda pod: ready(pod) == "True")
    (runner.files(name) / "sick-ready").touch()
    runner.until(name, lambda pod: ready(pod) == "False")
    (runner.files(name) / "sick-live").touch()
    runner.until(name, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1)


ASK = """
import os, pathlib, sys, time
told = pathlib.Path(sys.argv[1])
if told.exists() and told.read_text() == 'hang': time.sleep(600)
sys.exit(told.exists() or os.environ['WORD'] != 'own')
"""


def ask(file: str) -> dict[str, Any]:
    """A command every second that fails once the file is there, or hangs if it says so."""
    command = ["python", "-c", ASK, f"/run/scratch/{file}"]
    return {"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1}


def test_commands_ask_inside_the_container(runner: PodRunner) -> None:
    """They find its variables and its volumes; one that does not end in time takes Ready away, and one that
    fails restarts the container."""
    container = {
        "env": [{"name": "WORD", "value": "own"}],
        "volumeMounts": [{"name": "state", "mountPath": "/run/scratch"}],
        "readinessProbe": ask("ready"),
        "livenessProbe": ask("live") | {"failureThreshold": 3},
    }
    volumes = [{"name": "state", "emptyDir": {}}]
    idle = "import time; time.sleep(600)"
    always = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1}
    name = runner.run(idle, container=container, volumes=volumes, **always)
    runner.until(name, lambda pod: ready(pod) == "True")
    state = runner.files(name) / "volumes" / "state"
    (state / "ready").write_text("hang")
    pod = runner.until(name, lambda pod: ready(pod) == "False")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    (state / "live").touch()
    runner.until(name, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1)


WHOSE = f"""
import base64, json, os, pathlib
folder = pathlib.Path(os.environ['FOLDER'])
part = (folder / 'token').read_text().split('.')[1]
claims = json.loads(base64.urlsafe_b64decode(part + '=' * (-len(part) % 4)))
own, authority = claims['kubernetes.io'], (folder / 'ca.crt').read_text()
words = [own['node']['name'], own['pod']['uid'], str(claims['exp'] - claims['iat']), authority[:27]]
{SAY}('|'.join(words))
"""


def test_a_projected_token_is_bound_to_pod_and_node(runner: PodRunner) -> None:
    """A variable that names the mount's path leads to the pod's own token, for the time that was asked for,
    and to the authority of the API server."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 1200}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    container = {
        "env": [{"name": "FOLDER", "value": "/var/run/secrets/some"}],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/some", "readOnly": True}],
    }
    name = runner.run(
        WHOSE,
        container=container,
        volumes=[{"name": "token", "projected": {"sources": sources}}],
        automountServiceAccountToken=False,
    )
    message = runner.last_words(name)
    uid = runner.api.get(f"{PODS}/{name}")["metadata"]["uid"]
    assert message == f"{runner.node}|{uid}|1200|-----BEGIN CERTIFICATE-----"


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
