"""`make demo`: the main job, on a real control plane of its own, with four simulated GPU nodes.

It says what it does, checks what it sees, and exits with 0 only if everything was seen: the labels that the
hardware demands, jobs placed by them, and nothing left after `helm uninstall`.  Everything it starts ends
with it, also on Ctrl-C; its files stay only when something went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from testbed.binaries import find_or_build
from testbed.cluster import Testbed
from testbed.errors import ApiError, TestbedError
from testbed.rest import Rest
from testbed.table import table

Object = dict[str, Any]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHECKOUT = Path(__file__).resolve().parents[2]
NAMESPACE = "nodegauge"
PREFIX = "nodegauge.dev/"
LABELS_WITHIN = 60.0
LAST_WORDS = 10
"""Lines of the operator's log that an error quotes, LINE_LIMIT characters of each."""
LINE_LIMIT = 240

GPU_NODES: Mapping[str, str] = {
    "gpu-h100": "h100-sxm-8",
    "gpu-dgx1": "dgx1-v100-8",
    "gpu-titan": "titan-rtx-nv2",
    "gpu-phb": "pcie-phb-2",
}
EXPECTED: Mapping[str, tuple[str, str, str]] = {
    "gpu-h100": ("nvlink", "450", "pass"),
    "gpu-dgx1": ("nvlink", "150", "pass"),
    "gpu-titan": ("nvlink", "50", "pass"),
    "gpu-phb": ("pcie", "", "pass"),
}
"""Node to interconnect, nvlink-gbps and health: what the hardware of each profile demands."""

VALUES = """\
operator: {sweepInterval: 1s, nodeSelector: {kubernetes.io/hostname: system-1}}
crds: {keep: false}
policy:
  spec:
    probes: {health: {interval: 20s, deadline: 15s, window: 1s}}
    budget: {concurrentProbes: "100%"}
"""
"""Short intervals, so that a person can watch; everything else is the chart's default."""


class Demo:
    """The steps, each printed with its time, each checked."""

    def __init__(self, testbed: Testbed, directory: Path) -> None:
        self.testbed = testbed
        self.directory = directory
        self.started = time.monotonic()

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{time.monotonic() - self.started:5.1f} s] {text}", flush=True)

    @property
    def api(self) -> Rest:
        """Plain calls as the administrator."""
        plane = self.testbed.control_plane
        return Rest(plane.server, ca_file=plane.ca_file, token=plane.admin_token)

    def install(self) -> None:
        """`helm install`, exactly as on a real cluster but for shorter intervals."""
        values = self.directory / "values.yaml"
        values.write_text(VALUES)
        self.say("helm install nodegauge charts/nodegauge (the operator runs under its own account and RBAC)")
        chart = str(CHECKOUT / "charts" / "nodegauge")
        command = ["install", "nodegauge", chart, "--namespace", NAMESPACE, "--create-namespace"]
        self.testbed.helm(*command, "--values", str(values), "--wait", "--timeout", "60s")
        self.say("the operator is running and ready")

    def plug(self) -> None:
        """The GPU nodes join the cluster; their drivers answer as the recorded machines did."""
        self.say("plugging in four GPU nodes: " + ", ".join(f"{n} ({p})" for n, p in GPU_NODES.items()))
        self.testbed.nodes.add_all(GPU_NODES)

    def labels(self) -> None:
        """Wait for the labels and show them; each must be what the hardware demands."""
        self.say("waiting for probes to measure and the operator to label (at most a minute)")
        until = time.monotonic() + LABELS_WITHIN
        while (seen := self._seen()) != EXPECTED:
            if time.monotonic() > until:
                raise TestbedError(f"after {LABELS_WITHIN:.0f} s: {_differences(seen)}")
            time.sleep(0.1)
        self.say("every node carries what was measured on it:")
        head = ["NODE", "GPUS", "INTERCONNECT", "NVLINK-GBPS", "HEALTH", "GPUVALIDATED", "WHY"]
        print("\n" + table([head, *self._rows()]) + "\n")
        self._show_report("gpu-titan")

    def _seen(self) -> dict[str, tuple[str, str, str]]:
        found = {}
        for name in GPU_NODES:
            labels = self._node(name)["metadata"].get("labels", {})
            short, full = labels.get("interconnect", ""), labels.get(PREFIX + "interconnect", "")
            agreed = full if short == full else f"{short} / {full}"
            found[name] = (agreed, labels.get(PREFIX + "nvlink-gbps", ""), labels.get(PREFIX + "health", ""))
        return found

    def _rows(self) -> list[list[str]]:
        rows = []
        for name, (interconnect, gbps, health) in self._seen().items():
            report = self.api.get(f"/apis/nodegauge.dev/v1alpha1/nodereports/{name}")["status"]
            condition = self._condition(name)
            gpus = f"{report['gpus']['count']}x {report['gpus']['product']}"
            why = report["interconnect"]["message"]
            rows.append([name, gpus, interconnect, gbps or "-", health, condition.get("status", "-"), why])
        return rows

    def _show_report(self, name: str) -> None:
        report = self.api.get(f"/apis/nodegauge.dev/v1alpha1/nodereports/{name}")["status"]
        print(f"NodeReport {name}: {report['summary']}\n\n{report['matrix'].rstrip()}\n")

    def place(self) -> None:
        """A ZeRO job that asks for NVLink, and one that asks for more than 400 GB/s of it."""
        nvlink = {name for name, (kind, _, _) in EXPECTED.items() if kind == "nvlink"}
        any_link = {"nodeSelector": {"interconnect": "nvlink"}}
        self.say("job zero-any-nvlink asks for nodeSelector interconnect=nvlink")
        self._run_job("zero-any-nvlink", any_link, allowed=nvlink)
        fast = {"key": PREFIX + "nvlink-gbps", "operator": "Gt", "values": ["400"]}
        term = {"nodeSelectorTerms": [{"matchExpressions": [fast]}]}
        over_400 = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}
        self.say("job zero-over-400 asks for nodeAffinity nodegauge.dev/nvlink-gbps Gt 400")
        self._run_job("zero-over-400", over_400, allowed={"gpu-h100"})

    def _run_job(self, name: str, asks: Object, *, allowed: set[str]) -> None:
        """A job whose pod `asks` for its node in a nodeSelector or an affinity."""
        self.api.create("/apis/batch/v1/namespaces/default/jobs", _job(name, asks))
        until = time.monotonic() + 30
        while (pod := self._job_pod(name)) is None or pod["status"].get("phase") != "Succeeded":
            if time.monotonic() > until:
                raise TestbedError(f"job {name} did not finish within 30 s: {pod and pod.get('status')}")
            time.sleep(0.1)
        node = pod["spec"]["nodeName"]
        if node not in allowed:
            raise TestbedError(f"job {name} ran on {node}, expected one of {sorted(allowed)}")
        self.say(f"job {name}: kube-scheduler placed it on {node}, it ran there and ended well")

    def _job_pod(self, name: str) -> Object | None:
        path = f"/api/v1/namespaces/default/pods?labelSelector=job-name={name}"
        items: list[Object] = self.api.get(path)["items"]
        return items[0] if items else None

    def uninstall(self) -> None:
        """`helm uninstall` must leave no label, condition, report or pod of ours."""
        self.say("helm uninstall nodegauge")
        self.testbed.helm("uninstall", "nodegauge", "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
        until = time.monotonic() + 20
        while left := self._left():
            if time.monotonic() > until:
                raise TestbedError("helm uninstall left behind: " + "; ".join(left))
            time.sleep(0.1)
        self.say("no label, condition, report or pod of nodegauge is left on the cluster")

    def _left(self) -> list[str]:
        left = []
        for name in GPU_NODES:
            labels = self._node(name)["metadata"].get("labels", {})
            left += [
                f"{name}: label {key}" for key in labels if key.startswith(PREFIX) or key == "interconnect"
            ]
            if self._condition(name):
                left.append(f"{name}: condition GPUValidated")
        pods = self.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        left += [f"pod {pod['metadata']['name']}" for pod in pods]
        try:
            reports = self.api.get("/apis/nodegauge.dev/v1alpha1/nodereports")["items"]
        except ApiError as error:
            if error.status != 404:
                raise
            return left
        return left + [f"report {report['metadata']['name']}" for report in reports]

    def _node(self, name: str) -> Object:
        return self.api.get(f"/api/v1/nodes/{name}")

    def _condition(self, name: str) -> Object:
        conditions = self._node(name)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "GPUValidated"), {})

    def last_words(self) -> str:
        """The end of the operator's log, for an error; empty when it never said anything."""
        lines = self.testbed.logs(NAMESPACE, "nodegauge-").splitlines()[-LAST_WORDS:]
        return "".join(["\nThe operator's last words:"] * bool(lines) + [_log_line(line) for line in lines])


def _differences(seen: Mapping[str, tuple[str, str, str]]) -> str:
    """What is not as the hardware demands, node by node."""
    kinds = ("interconnect", "nvlink-gbps", "health")
    return "; ".join(
        f"{node} has {kind} {have or 'absent'}, expected {wanted or 'absent'}"
        for node, expected in EXPECTED.items()
        for kind, have, wanted in zip(kinds, seen[node], expected, strict=True)
        if have != wanted
    )


def _log_line(line: str) -> str:
    """Level and message of a JSON log line; any other line as it is."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        entry = json.loads(line)
        line = f"{entry['level']}: {entry['message']}"
    return f"\n  | {line[:LINE_LIMIT]}"


def _job(name: str, asks: Object) -> Object:
    """A training job of one pod; what it computes does not matter here, where it runs does."""
    container = {
        "name": "train",
        "image": "python:3",
        "command": ["python", "-c", "print('ZeRO step done')"],
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container], **asks}},
        },
    }


def run(directory: Path) -> None:
    """The whole demonstration below `directory`.  Raises `TestbedError` at the first thing not seen."""
    print("nodegauge demo: a real kube-apiserver, scheduler and controller-manager; simulated GPU hardware.")
    print(f"Everything lives in {directory} and ends with this program.\n", flush=True)
    find_or_build(progress=lambda line: print(line, flush=True))
    testbed = Testbed(directory, nodes={"system-1": None})
    demo = Demo(testbed, directory)
    demo.say("starting the control plane, and one node without GPUs for the operator")
    with testbed:
        try:
            for step in (demo.install, demo.plug, demo.labels, demo.place, demo.uninstall):
                step()
        except TestbedError as error:
            raise TestbedError(f"{error}{demo.last_words()}") from error
    demo.say("done: all of it was seen. `make testbed` keeps such a cluster to play with.")


def _interrupted(signum: int, _: FrameType | None) -> None:
    """Leave by way of the context managers; say so at once, and let no second signal interrupt them."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(sys.stderr.fileno(), b"\ninterrupted: ending everything that was started\n")
    raise KeyboardInterrupt(signal.Signals(signum).name)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 only if everything was seen, 1 with the reason if not, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="make demo", description="See nodegauge at work on simulated nodes."
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that went well")
    options = parser.parse_args(arguments)
    for number in SIGNALS:  # SIGINT too: a shell's background job inherits it as ignored
        signal.signal(number, _interrupted)
    directory = Path(tempfile.mkdtemp(prefix="nodegauge-demo-"))
    keep = True
    try:
        run(directory)
        keep = options.keep
    except (TestbedError, OSError) as error:
        keep = any(directory.iterdir())
        print(f"\ndemo failed: {error}" + f"\nIts logs are in {directory}" * keep, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        keep = False
        return 130
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
