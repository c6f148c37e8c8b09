"""Prometheus rules in tests: series as promtool reads them, and promtool itself."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.chart import CHART
from testbed.binaries import PROMTOOL, build

RECORDED = Path(__file__).resolve().parents[1] / "chart" / "demo-series.yaml"
LENGTH = 13 * 60
"""Minutes of every series: longer than the slowest alert needs."""
FINE, COARSE = 2 * 60, 5
"""Until when rules are evaluated every minute, and every how many minutes where an alert is asked for later:
by then nothing changes any more, and thirteen hours by the minute cost three seconds of CPU time."""
SCRAPED = {
    "instance": "10.0.0.1:8080",
    "pod": "nodegauge-0",
    "namespace": "nodegauge",
    "job": "nodegauge-metrics",
    "service": "nodegauge-metrics",
    "endpoint": "http",
    "container": "operator",
}
"""Labels that the Prometheus operator's scrape adds."""
BMC = {
    'nodegauge_bmc_bmcs{state="read"}': "16",
    'nodegauge_bmc_bmcs{state="timeout"}': "1",
    "nodegauge_bmc_oldest_reading_age_seconds": "240",
    "nodegauge_bmc_unwritten_total": "2",
}
"""Of a BMC reader that works; the demo runs one and records only the operator."""

Series = dict[str, list[str]]
"""The samples of each series, one a minute; `_` is none."""


@cache
def healthy() -> Series:
    recorded = yaml.safe_load(RECORDED.read_text("utf-8"))
    series = {name: values.split() for name, values in recorded["series"].items()}
    for values in series.values():
        values += values[-1:] * (LENGTH - len(values))
    # Time begins at 0 here. The last pass was a moment before each sample.
    series["nodegauge_last_pass_timestamp_seconds"] = [str(60 * minute) for minute in range(LENGTH)]
    # The demo ends with no slot for NCCL runs, and five nodes that wait for one.
    series['nodegauge_waiting_nodes{probe="nccl"}'] = ["0"] * LENGTH
    return series | {name: [value] * LENGTH for name, value in BMC.items()}


def scraped(series: Series, *, labels: dict[str, str] | None = None) -> list[dict[str, str]]:
    added = ",".join(f'{k}="{v}"' for k, v in (SCRAPED if labels is None else labels).items())
    result = []
    for name, values in series.items():
        metric, _, rest = name.rstrip("}").partition("{")
        joined = ",".join(part for part in (rest, added) if part)
        result.append({"series": f"{metric}{{{joined}}}", "values": " ".join(_with_stale(values))})
    return result


def _with_stale(values: list[str]) -> list[str]:
    """As Prometheus stores them: the first scrape without the series says that it has ended."""
    padded = [*values, *["_"] * (LENGTH - len(values))]
    before = ["_", *padded]
    return ["stale" if now == "_" != last else now for last, now in zip(before, padded, strict=False)]


@dataclass(frozen=True)
class Promtool:
    directory: Path
    groups: list[dict[str, Any]] = field(default_factory=list)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        (self.directory / "rules.json").write_text(json.dumps({"groups": self.groups}))
        command = [*build(PROMTOOL, progress=lambda _: None), *arguments]
        environ = {"GOGC": "400", **os.environ}  # memory is cheaper here than CPU time
        return subprocess.run(
            command, cwd=self.directory, env=environ, capture_output=True, text=True, timeout=100
        )

    def query(
        self,
        input_series: list[dict[str, str]],
        expected: dict[tuple[str, int], dict[str, float]],
        *,
        every: int = 1,
    ) -> str:
        """What promtool finds wrong; it evaluates rules every so many minutes."""
        tests = [
            {"expr": expr, "eval_time": f"{minute}m"}
            | {"exp_samples": [{"labels": name, "value": value} for name, value in samples.items()]}
            for (expr, minute), samples in expected.items()
        ]
        asked = max(minute for _, minute in expected) + 1
        cut = [one | {"values": " ".join(one["values"].split(" ", asked)[:asked])} for one in input_series]
        return self._tested({"interval": "1m", "input_series": cut, "promql_expr_test": tests}, every=every)

    def says(
        self,
        input_series: list[dict[str, str]],
        alert: str,
        minute: int,
        labels: dict[str, str],
        annotations: dict[str, str],
    ) -> str:
        """The one alert of this name that fires then."""
        fires = {"exp_labels": labels, "exp_annotations": annotations}
        asked = {"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": [fires]}
        return self._tested({"interval": "1m", "input_series": input_series, "alert_rule_test": [asked]})

    def _tested(self, test: dict[str, Any], *, every: int = 1) -> str:
        body = {"rule_files": ["rules.json"], "evaluation_interval": f"{every}m", "tests": [test]}
        (self.directory / "test.json").write_text(json.dumps(body))
        done = self.run("test", "rules", "test.json")
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def firing(self, input_series: list[dict[str, str]], expected: dict[int, set[str]]) -> str:
        """Alerts asked for after `FINE` are evaluated every `COARSE` minutes."""
        expr = 'count by (alertname) (ALERTS{alertstate="firing"})'
        wanted = {
            (f"{expr} > bool 0", minute): {f'{{alertname="{name}"}}': 1.0 for name in names}
            for minute, names in expected.items()
        }
        early = {asked: values for asked, values in wanted.items() if asked[1] <= FINE}
        late = {asked: values for asked, values in wanted.items() if asked not in early}
        return "".join(
            self.query(input_series, part, every=every)
            for part, every in ((early, 1), (late, COARSE))
            if part
        )


def dashboard() -> dict[str, Any]:
    body: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text("utf-8"))
    return body


def panel_queries() -> dict[tuple[str, str], str]:
    return {
        (panel["title"], target["refId"]): target["expr"]
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    }


def selectors(query: str) -> list[tuple[str, dict[str, str]]]:
    return [
        (name, dict(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers)))
        for name, matchers in re.findall(r"\b(nodegauge_[a-z_]+)(\{[^}]*\})?", query)
    ]
