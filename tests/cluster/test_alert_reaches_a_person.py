"""From a fault on a node to what a person gets: a real Prometheus with the chart's rules, and a real
Alertmanager with the recipe of docs/monitoring.md, on loopback.  Slack and PagerDuty are a server here."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import support.results as made
from nodegauge_contract.gpu import Repair
from support.chart import ROOT, Helm, only
from support.cluster_under_test import ClusterUnderTest, Machines
from testbed.binaries import ALERTING_TOOLS, build, find_or_build
from testbed.loopback import LOOPBACK, reserve_port
from testbed.processes import Process
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

SERIAL = "0323418047531"
FAILED = Repair(rows_pending=0, rows_failed=1, unrepairable=0, action=0)
BROKEN = made.with_gpu(made.h100(), 3, serial=SERIAL, repair=FAILED)
RECIPE = re.search(r"```yaml\n(route:.*?)```", (ROOT / "docs" / "monitoring.md").read_text("utf-8"), re.S)


@contextmanager
def receiver() -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of a server, and by path the last body that was sent there."""
    bodies: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies[self.path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = b"ok" if self.path == "/slack" else b'{"status":"success"}'
            self.send_response(200 if self.path == "/slack" else 202)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_address[1]}", bodies
        server.shutdown()
        thread.join()


def alertmanager_config(folder: Path, url: str) -> Path:
    """The recipe, with secrets of ours, and without waiting for more alerts of the same node."""
    assert RECIPE is not None
    text = RECIPE[1].replace("/etc/alertmanager/secrets", str(folder))
    (folder / "slack").write_text(f"{url}/slack")
    (folder / "pagerduty").write_text("key")
    config = yaml.safe_load(re.sub(r"group_wait: \w+", "group_wait: 1s", text))
    path = folder / "alertmanager.yml"
    path.write_text(json.dumps({"global": {"pagerduty_url": f"{url}/pagerduty"}} | config))
    return path


def prometheus_config(folder: Path, *, operator: int, alertmanager: int) -> Path:
    helm = Helm(program=find_or_build().helm, home=folder)
    rules = only(helm.objects({"metrics": {"prometheusRule": {"enabled": True}}}), "PrometheusRule")["spec"]
    (folder / "rules.json").write_text(json.dumps(rules))
    target = [{"targets": [f"{LOOPBACK}:{operator}"]}]
    body = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.json")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{LOOPBACK}:{alertmanager}"]}]}]},
        "scrape_configs": [{"job_name": "nodegauge", "honor_labels": True, "static_configs": target}],
    }
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(body))
    return path


@contextmanager
def alerting(folder: Path, *, operator: int, url: str) -> Iterator[None]:
    """Prometheus, which reads the operator, and Alertmanager, which tells this server."""
    (prometheus, alertmanager), ports = build(*ALERTING_TOOLS), [reserve_port(), reserve_port()]
    config = prometheus_config(folder, operator=operator, alertmanager=ports[1])
    data, notify = folder / "data", alertmanager_config(folder, url)
    commands: list[list[str | Path]] = [
        [prometheus, f"--config.file={config}", f"--storage.tsdb.path={data}"],
        [alertmanager, f"--config.file={notify}", f"--storage.path={data}", "--cluster.listen-address="],
    ]
    with ExitStack() as stack:
        for command, port in zip(commands, ports, strict=True):
            name = Path(command[0]).name
            listening = f"--web.listen-address={LOOPBACK}:{port}"
            process = Process(name, [*command, listening], log=folder / f"{name}.log", cwd=folder)
            process.start()
            stack.callback(process.stop, grace=30.0)
        yield


def test_a_fault_reaches_slack_and_pagerduty(rig: ClusterUnderTest, tmp_path: Path) -> None:
    """With all that a person needs at night: node, cause, GPU, serial number, next step, runbook."""
    node = rig.add_node()
    rig.add_policy(hysteresis={"enterRuns": 1})
    with rig.kubelet(Machines(BROKEN)), rig.operator() as operator, receiver() as (url, bodies):
        operator.wait_ready()
        with alerting(tmp_path, operator=operator.port(), url=url):
            wait_for(lambda: {"/slack", "/pagerduty"} <= bodies.keys(), what="Slack and PagerDuty told")
    incident, [message] = bodies["/pagerduty"], bodies["/slack"]["attachments"]
    details, payload = incident["payload"]["custom_details"], incident["payload"]
    assert payload["summary"] == f"Node {node} may compute wrong results (memory). Drain it now."
    assert (payload["component"], payload["class"]) == (node, "memory")
    assert (details["board"], payload["severity"]) == (f"GPU 3, serial number {SERIAL}", "critical")
    assert incident["links"] == [{"href": "docs/runbook.md#nodegaugenodecorruption", "text": "runbook"}]
    assert message["title"] == f"{node} memory (firing)"
    for text in (message["text"], details["text"]):
        parts = [
            f"{node}: memory (row-remap), GPU 3, ",
            f"serial number {SERIAL}. Measured: ",
            " First seen 20",
        ]
        assert [part for part in [*parts, " Next step: "] if part not in text] == []
