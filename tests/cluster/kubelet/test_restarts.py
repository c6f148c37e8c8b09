"""Restart policies, probes, init containers and sidecars."""

from __future__ import annotations

import os
import signal
import uuid

import pytest

from testbed.cluster import find_processes
from testbed.pod_runner import (
    Object,
    PodRunner,
    condition,
    end,
    say,
    state,
    wait_for,
)

pytestmark = pytest.mark.cluster


SERVER = """
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if os.path.exists('sick-' + self.path.strip('/')) else 200)
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', int(os.environ['NODEGAUGE_HTTP_PORT'])), Answer).serve_forever()
"""


def served(**probes: Object) -> Object:
    """A container that serves on its NODEGAUGE_HTTP_PORT; a file `sick-PATH` makes PATH answer 500."""
    return {
        "command": ["python", "-c", SERVER],
        "env": [{"name": "NODEGAUGE_HTTP_PORT", "value": "8080"}],
        "ports": [{"name": "http", "containerPort": 8080}],
        **{
            kind: {
                "httpGet": {"path": f"/{kind}", "port": "http"},
                "periodSeconds": 1,
                "failureThreshold": 1,
                **more,
            }
            for kind, more in probes.items()
        },
    }


async def test_a_killed_deployments_container_is_restarted(runner: PodRunner) -> None:
    """A Deployment's container that is killed runs again in the same pod, which says so and is Ready."""
    app = f"app-{uuid.uuid4().hex[:8]}"
    container = {"name": "main", "image": "python:3", **served(readinessProbe={})}
    template = {
        "metadata": {"labels": {"app": app}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": runner.node}, "containers": [container]},
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    await runner.api.create(
        path,
        {
            "metadata": {"name": app},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": app}}, "template": template},
        },
    )
    try:

        async def available() -> bool:
            result = await runner.api.get(f"{path}/{app}")
            return bool(result["status"].get("readyReplicas") == 2)

        await wait_for(available)
        victim = find_processes(runner.directory, namespace="default", pod=app)[0]
        os.kill(victim.pid, signal.SIGKILL)
        pod = await runner.until(
            victim.pod, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1
        )
        assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
        await runner.until(victim.pod, lambda pod: condition(pod) == "True")
        await wait_for(available)
    finally:
        await runner.api.delete(f"{path}/{app}", {"propagationPolicy": "Foreground"})


async def test_readiness_and_liveness_follow_their_answers(runner: PodRunner) -> None:
    """A failing readiness check takes Ready away; a failing liveness check restarts the container."""
    container = served(readinessProbe={}, livenessProbe={"initialDelaySeconds": 2})
    name = await runner.run("", container=container, restartPolicy="Always", terminationGracePeriodSeconds=1)
    await runner.until(name, lambda pod: condition(pod) == "True")
    (runner.files(name) / "sick-readinessProbe").touch()
    await runner.until(name, lambda pod: condition(pod) == "False")
    (runner.files(name) / "sick-livenessProbe").touch()
    await runner.until(name, lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1)


async def test_a_crashing_container_backs_off(runner: PodRunner) -> None:
    """A container that fails again and again is shown in CrashLoopBackOff and keeps its last end."""
    name = await runner.run("raise SystemExit(5)", restartPolicy="Always")
    reason = "CrashLoopBackOff"
    pod = await runner.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == reason)
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 5


async def test_init_containers_run_first_and_sidecars_beside(runner: PodRunner) -> None:
    """Init containers end before the main one starts; a sidecar runs meanwhile and ends after it."""
    python = {"image": "python:3"}
    first = {"name": "first", **python, "command": ["python", "-c", "open('one', 'w').close()"]}
    script = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); open('beside', 'w'); signal.pause()"
    )
    side = {"name": "side", **python, "restartPolicy": "Always", "command": ["python", "-c", script]}
    main = (
        "import os, time\n"
        "while not os.path.exists('beside'): time.sleep(0.01)\n"
        "open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(str(os.path.exists('one')))"
    )
    status = await runner.ended(await runner.run(main, initContainers=[first, side]))
    assert status["phase"] == "Succeeded"
    assert end(status)["message"] == "True"
    ends = [item["state"]["terminated"]["exitCode"] for item in status["initContainerStatuses"]]
    assert ends == [0, 0]


async def test_a_failed_init_container_fails_the_pod(runner: PodRunner) -> None:
    """With restartPolicy Never a failing init container keeps the main one from ever starting."""
    first = {"name": "first", "image": "python:3", "command": ["python", "-c", "raise SystemExit(9)"]}
    status = await runner.ended(await runner.run(say("never"), initContainers=[first]))
    assert status["phase"] == "Failed"
    assert "never" not in str(status)
