"""What `nodegauge zero` reads from a cluster, and how tests call it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import nodegauge_operator.api.report as api
from nodegauge_cli.__main__ import main
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.api.report import Report
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube.errors import Forbidden
from support.judge_command import flat
from support.objects import NOW


def zero(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["zero", *map(str, arguments)], input=stdin)


def shown(*arguments: str | Path) -> str:
    """What a person reads, on one line; every line of it fits 80 columns."""
    outcome = zero(*arguments)
    assert max(map(len, outcome.output.splitlines())) <= 80, outcome.output
    return flat(outcome)


def report(name: str, *, product: str = "NVIDIA H100 80GB HBM3", gather: int = 360, **of: Any) -> Report:
    """Of eight GPUs that NCCL measured a minute ago; `of`: other members of the status."""
    busbw = {"all_reduce": 480, "all_gather": gather, "reduce_scatter": gather, "p2p_off": 9.5}
    offload = {"h2d_gbps": 55.0, "h2d_all_gbps": 25.0, "host_memory_gib": 230.0, "nvme_read_gbps": 12.0}
    status: dict[str, Any] = {
        "verdict": Verdict.PASS,
        "gpus": api.GpusStatus(count=8, product=product),
        "interconnect": api.InterconnectStatus(klass="nvlink", reason="NvlinkRing"),
        "bandwidth": api.BandwidthStatus(**busbw, gpus=8, of=8),
        "probes": [health(60.0)],
        "offload": OffloadStatus(**offload, cores=22.0),
    }
    status = api.ReportStatus(**status | of)
    return Report(name=name, uid=f"uid-{name}", resource_version="1", node_uid="n", status=status)


def health(ago: float) -> api.ProbeStatus:
    """A health probe that read the node so many seconds ago."""
    return api.ProbeStatus(name=names.PROBE_HEALTH, read_at=stamp(NOW - ago), age_limit_seconds=3600)


class Cluster:
    """What the API server answers; where `nodes` is None it forbids to list them."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.nodes: list[NodeView] | None = []

    def add(self, *reports: Report, **node: Any) -> None:
        self.reports += reports
        known = {"uid": "n", "resource_version": "1", "labels": {}} | node
        if self.nodes is not None:
            self.nodes += [NodeView(name=made.name, **known) for made in reports]

    async def connect(self, **_: Any) -> "Cluster":
        return self

    async def close(self) -> None:
        pass

    async def each_report(self, _: Any) -> AsyncIterator[Report]:
        for each in self.reports:
            yield each

    async def report(self, _: Any, name: str) -> Report | None:
        return next((each for each in self.reports if each.name == name), None)

    async def each_node(self, _: Any) -> AsyncIterator[NodeView]:
        if self.nodes is None:
            raise Forbidden("nodes is forbidden", status=403)
        for each in self.nodes:
            yield each
