"""`python -m nodegauge_operator` of this checkout, to be started, killed and read by tests."""

import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from testbed.errors import TestbedError
from testbed.processes import Process, Running
from testbed.wait import DEADLINE_SECONDS, wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 60.0
LAST_PASS = "nodegauge_last_pass_timestamp_seconds"
_PORT = re.compile(r"listening on port (\d+)")


class OperatorProcess(Running):
    def __init__(
        self,
        *,
        kubeconfig: Path,
        namespace: str,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "operator.log"
        self._environment = {
            "POD_NAMESPACE": namespace,
            "NODEGAUGE_PROBE_IMAGE": "localhost/nodegauge/probe:test",
            "NODEGAUGE_HTTP_PORT": "0",
            "NODEGAUGE_HTTP_HOST": "127.0.0.1",
            "NODEGAUGE_SWEEP_INTERVAL": "500ms",
            "NODEGAUGE_RELEASE_GRACE": "1s",
            "NODEGAUGE_MAX_GATED_NODES": "100%",
            "NODEGAUGE_MAX_GATED_NODES_PER_HOUR": "100%",
            "NODEGAUGE_LOG_FORMAT": "text",
            "NODEGAUGE_LOG_LEVEL": "debug",
            **(environment or {}),
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "operator/src"), str(CHECKOUT / "probes/src")]),
        }
        self._process: Process | None = None
        self._read_from = 0

    def leave(self) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def _started(self) -> Process:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NODEGAUGE_", "KUBE"))}
        command = [sys.executable, "-m", "nodegauge_operator"]
        environ = {**inherited, **self._environment}
        self._process = Process("the operator", command, log=self.log, environ=environ)
        self._process.start()

    def running(self) -> bool:
        return self._process is not None and self._process.running

    def alive(self) -> None:
        if not self.running():
            raise TestbedError(f"the operator ended:\n{self.output()[-2000:]}")

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        if not self._started.wait(seconds):
            raise TestbedError(f"it lives on for {seconds:g} s:\n{self.output()[-3000:]}")
        return self._started.exit_code or 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.stop(grace=0)

    def stop(self, *, within: float = DEADLINE_SECONDS) -> int:
        self._started.send(signal.SIGTERM)
        return self.wait(within)

    def output(self) -> str:
        return self.log.read_bytes()[self._read_from :].decode(errors="replace") if self.log.exists() else ""

    def port(self) -> int:
        def listens() -> re.Match[str] | None:
            self.alive()
            return _PORT.search(self.output())

        result = wait_for(listens, what="the operator's port")
        assert result is not None
        return int(result[1])

    def http(self, path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{self.port()}{path}"
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_ready(self) -> None:
        wait_for(lambda: self.http("/readyz")[0] == 200, what=f"readiness, see {self.log}")

    def wait_passes(self, count: int) -> None:
        for _ in range(count):
            last = self.metric(LAST_PASS)
            wait_for(lambda last=last: self.metric(LAST_PASS) > last, what="another pass")  # type: ignore[misc]

    def metric(self, name: str) -> float:
        lines = self.http("/metrics")[1].splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if re.match(rf"{re.escape(name)}(\{{| )", line)]
        return sum(float(value) for value in values)
