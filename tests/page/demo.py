"""A made fleet for the page: reports as the operator decides them, readings, BMCs and histories; and the
report of the Ansible role about hosts.

`python -m page.demo FILE [NODES|hosts]` (in tests/) writes the page, to look at it in a browser.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.json import encode
from msgspec.structs import replace

import support.results as made
from nodegauge_cli.page.fleet import Fleet
from nodegauge_cli.page.hosts import answered
from nodegauge_cli.page.html import page
from nodegauge_cli.page.model import FleetData, NodeData
from nodegauge_contract import LinkErrors, Power, Result, Span, Window, text
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from support import feed_windows, nccl_results
from support.objects import AReport, make_node, make_report, read
from support.validated import judged

NOW = datetime(2026, 11, 28, 8, 0, tzinfo=UTC).timestamp()
INCIDENT = {"id": "nvlink-1", "cause": "nvlink", "since": "2026-11-28T07:45:00Z", "nodes": 1}
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def _alive(result: Result, *, hottest: int = 61) -> Result:
    """With temperatures, power, serial numbers and quiet links."""
    whole = made.instrumented(result)
    gpus = [
        replace(
            gpu,
            serial=f"16549220012{gpu.index:02}",
            window=Window(
                seconds=3.0,
                samples=12,
                temperature=Span(min=40, median=hottest - 3, max=hottest - gpu.index % 4),
            ),
            power=Power(usage_mw=310_000 + 4_000 * gpu.index, enforced_limit_mw=700_000),
        )
        for gpu in whole.gpus
    ]
    return replace(whole, gpus=gpus)


H100 = _alive(made.h100())
MACHINES: dict[str, tuple[Result, Result | None]] = {
    "gpu-h100-1": (H100, nccl_results.h100()),
    "gpu-h100-2": (H100, nccl_results.h100()),
    "gpu-h100-slow": (made.without_links(H100, 2, count=12), nccl_results.h100(310)),
    "gpu-h100-p2p": (made.with_pair(made.with_pair(H100, 0, 1, read=5), 1, 0, read=5), None),
    "gpu-dgx1": (_alive(made.dgx1(), hottest=88), None),
    "gpu-titan": (_alive(made.titan()), nccl_results.titan()),
    "gpu-phb": (_alive(made.phb()), nccl_results.phb()),
}
"""By node its health reading, and its NCCL run."""


CHASSIS = {
    "supplies": [
        {
            "name": f"PSU {n}",
            "health": "OK" if n < 3 else "Critical",
            "outputWatts": 812,
            "capacityWatts": 3000,
        }
        for n in range(4)
    ]
}


def bodies() -> Iterator[dict[str, Any]]:
    """All objects of the fleet."""
    for name, (health, nccl) in MACHINES.items():
        report = _report(name, health, nccl)
        if name == "gpu-h100-2":  # a GPU is lost after the first reading
            health = made.with_gpu(_alive(made.h100(7)), 3, link_errors=LinkErrors(replay=14, recovery=0))
            for at in (NOW - 120, NOW - 60):
                report = report.after(read(health), node=make_node(name), at=at)
        yield _body(names.REPORT_KIND, name, status=to_builtins(report.status))
        feed = feed_windows.STARVED_BY_A_DISK if name == "gpu-titan" else None
        yield _reading(name, health=health, feed=feed)
    yield _body(names.REPORT_KIND, "gpu-new", status={})
    conditions = [{"type": "Ready", "status": "False", "reason": "LabelRefused", "message": "say so"}]
    spec = {"nodeSelector": {}, "mode": "Observe"}
    yield _body(
        names.POLICY_KIND, "default", spec=spec, status={"conditions": conditions, "incidents": [INCIDENT]}
    )
    silent = make_report().status
    hostile = {"verdict": "fail", "summary": HOSTILE, "gpus": {"product": HOSTILE, "count": 1}}
    yield _body(names.REPORT_KIND, "gpu-hostile", status=to_builtins(silent) | hostile)
    yield _body(names.CHASSIS_KIND, "gpu-h100-slow", status={"source": "redfish", "reading": CHASSIS})
    yield _body(names.HISTORY_KIND, "gpu-h100-slow", status={"days": dict(_days(slow=True))})
    yield _body(names.HISTORY_KIND, "gpu-h100-1", status={"days": dict(_days(slow=False))})


def data(nodes: int = 0) -> FleetData:
    """What the page shows of the fleet; with `nodes` so many of them, the same ones again and again."""
    fleet = Fleet()
    for body in bodies():
        fleet.add(body)
    shown = fleet.data(title="GPU nodes", made_at=stamp(NOW), source="a made fleet")
    few = itertools.cycle(shown.nodes)
    many = [_renamed(next(few), number) for number in range(nodes)]
    return replace(shown, nodes=many or shown.nodes)


def hosts() -> dict[str, Any]:
    """A report.json: the machines above as hosts, one that gave no answer, and one of an earlier run."""
    rows = [_row(f"host-{name}", *results) for name, results in MACHINES.items()]
    rows[0] |= {"this_run": False, "measured_at": stamp(NOW - 864_000)}
    reason = {"probe": "", "code": "no-answer", "severity": "unknown", "message": "An earlier task failed."}
    rows.append({"host": "host-new", "verdict": "unknown", "reasons": [reason | {"what_to_do": ["Run it."]}]})
    rows[-2]["page"]["load"] = "of another version"
    return {"title": "GPU hosts", "report": {"hosts": rows, "measured_at": stamp(NOW)}}


def _row(host: str, health: Result, nccl: Result | None) -> dict[str, Any]:
    documents = {"health": health, "nccl": nccl, "bmc": CHASSIS if "slow" in host else None}
    judgements = {probe: judged(each, name=host) for probe, each in documents.items() if each is not None}
    reasons = [
        {key: finding[key] for key in ("code", "severity", "message")}
        | {"probe": probe, "what_to_do": finding["steps"]}
        for probe, each in judgements.items()
        for finding in each["findings"]
        if finding["severity"] != "info"
    ]
    not_run = {"probe": "load", "code": "not-run", "severity": "pass", "message": "Not run: nobody asked"}
    verdicts = [each["verdict"] for each in judgements.values()]
    return {
        "host": host,
        "verdict": min(verdicts, key=("fail", "unknown", "warn", "pass").index),
        "summary": judgements["health"]["summary"],
        "reasons": [*reasons, not_run],
        "probes": {probe: each["verdict"] for probe, each in judgements.items()},
        "page": {probe: each["page"] for probe, each in judgements.items()},
        "measured_at": stamp(NOW - 60),
    }


def html_of_hosts() -> str:
    """Their page."""
    answer, _ = answered(encode(hosts()), version="0.1.0")
    return str(answer["html"])


def _renamed(node: NodeData, number: int) -> NodeData:
    gpus = [
        replace(gpu, uuid=f"{gpu.uuid[:-6]}{number:06}", serial=f"{gpu.serial}{number}") for gpu in node.gpus
    ]
    return replace(node, name=f"gpu-{number}", gpus=gpus)


def _report(name: str, health: Result, nccl: Result | None) -> AReport:
    node = make_node(name)
    report = make_report(node).after(read(health), node=node, at=NOW - 900)
    report = report.after(read(health), node=node, at=NOW - 300)
    if nccl is not None:
        report = report.after(read(nccl), node=node, probe=names.PROBE_NCCL, at=NOW - 200)
        report = report.after(read(nccl), node=node, probe=names.PROBE_NCCL, at=NOW - 100)
    return report


def _reading(name: str, **results: Result | None) -> dict[str, Any]:
    header = {"sequence": 1, "at": stamp(NOW - 300), "pod": "p", "podUID": "1", "nodeUID": "2"}
    parts = {
        probe: header | {"reading": text(result)} for probe, result in results.items() if result is not None
    }
    return _body(names.READING_KIND, name, **parts)


def _days(*, slow: bool) -> Iterator[tuple[str, str]]:
    """Forty days with a gap; on the last six a slow node is slow, hot and failing."""
    first = date(2026, 10, 20)
    for number in range(40):
        bad = slow and number >= 34
        if number in (12, 13):
            continue
        parts = [
            f"allReduce={(417 if bad else 463) - number % 3}",
            f"hottest={(88 if bad else 71) + number % 4}",
        ]
        parts += [f"throttled={number * 3 if bad else 0}", f"tflops={610 + number % 5}", "gpus=8/8"]
        parts += [f"verdict={'fail' if bad else 'pass'}"]
        parts += [f"driver={'560.35.03' if number else '550.90.07'}"] if number in (0, 33) else []
        yield (first + timedelta(number)).isoformat(), " ".join(parts)


def _body(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, **more}


if __name__ == "__main__":
    made_page = html_of_hosts() if "hosts" in sys.argv else page(data(*map(int, sys.argv[2:])))
    Path(sys.argv[1]).write_text(made_page, encoding="utf-8")
