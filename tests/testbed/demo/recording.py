"""Records the operator's metrics in the demo: make demo ARGS="--record tests/chart/demo-series.yaml"."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

import yaml

from testbed.demo.session import Session
from testbed.errors import TestbedError
from testbed.playground import NAMESPACE

HEAD = """\
# The operator's metrics after each step of `make demo`, as it served them. Recorded by the demo itself:
#   make demo ARGS="--record tests/chart/demo-series.yaml"
# `at`: when each step ended, epoch seconds. `series`: a value for each step; `_` where the series was absent.
"""
SAMPLE = re.compile(r"^(nodegauge_[^ ]+) (\S+)$", re.MULTILINE)
OPERATOR = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=operator"
LEFT_OUT = re.compile(r"_(bucket|created)(\{|$)")


class Recording:
    def __init__(self) -> None:
        self._steps: list[str] = []
        self._at: list[float] = []
        self._series: defaultdict[str, dict[int, str]] = defaultdict(dict)

    def take(self, step: str, session: Session) -> None:
        pods = session.testbed.control_plane.rest().get(OPERATOR)["items"]
        addresses = [pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")]
        if not addresses:
            raise TestbedError("no pod of the operator has an address to read its metrics from")
        with urllib.request.urlopen(f"http://{addresses[-1]}:8080/metrics", timeout=10) as answer:
            text = answer.read().decode()
        number = len(self._steps)
        self._steps.append(step)
        self._at.append(round(time.time(), 1))
        for series, value in SAMPLE.findall(text):
            if not LEFT_OUT.search(series):
                self._series[series][number] = f"{float(value):.10g}"

    def write(self, path: Path) -> None:
        values = {
            series: " ".join(samples.get(number, "_") for number in range(len(self._steps)))
            for series, samples in sorted(self._series.items())
        }
        body = {"steps": self._steps, "at": self._at, "series": values}
        path.write_text(HEAD + yaml.safe_dump(body, sort_keys=False, width=200))
