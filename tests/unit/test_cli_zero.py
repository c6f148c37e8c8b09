"""`nodegauge zero`: where its figures come from, and what a person and a script read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import to_builtins

from nodegauge_cli import zero as command
from nodegauge_cli.__main__ import main
from nodegauge_contract import Arm, ArmName, Cell, Gpu, NcclResult, encode
from nodegauge_contract import Result as Document
from nodegauge_judge.history.model import History
from nodegauge_judge.nccl.extract import measure
from nodegauge_operator import names
from nodegauge_operator.api.report import (
    BandwidthStatus,
    GpusStatus,
    InterconnectStatus,
    ProbeStatus,
    Report,
    ReportStatus,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
SEVEN = ("--params", "7e9")


def zero(*arguments: str | Path, stdin: str | None = None) -> Result:
    """The command's outcome in this process, in a cluster's absence."""
    return CliRunner().invoke(main, ["zero", *map(str, arguments)], input=stdin)


def flat(outcome: Result) -> str:
    """Its output on one line."""
    return " ".join(outcome.output.split())


def report(
    name: str, *, product: str = "NVIDIA H100 80GB HBM3", gather: int | None = 360, klass: str = "nvlink"
) -> Report:
    """A node with eight GPUs, and what its benchmark left."""
    bandwidth = BandwidthStatus(
        all_reduce=480, all_gather=gather, reduce_scatter=gather, p2p_off=9.5, gpus=8, of=8
    )
    status = ReportStatus(
        gpus=GpusStatus(count=8, product=product),
        interconnect=InterconnectStatus(klass=klass, reason="NvlinkRing" if klass else "P2pRefused"),
        bandwidth=bandwidth if gather else BandwidthStatus(),
    )
    return Report(name=name, uid=f"uid-{name}", resource_version="1", node_uid="n", status=status)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """The reports of the cluster; fill it."""
    found: list[Report] = []

    class Nothing:
        async def close(self) -> None:
            pass

    async def connect(**_: Any) -> Nothing:
        return Nothing()

    async def each(_: Any) -> AsyncIterator[Report]:
        for one in found:
            yield one

    async def get(_: Any, name: str) -> Report | None:
        return next((one for one in found if one.name == name), None)

    monkeypatch.setattr("nodegauge_operator.kube.client.connect", connect)
    monkeypatch.setattr("nodegauge_operator.kube.reports.each", each)
    monkeypatch.setattr("nodegauge_operator.kube.reports.get", get)
    return found


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers."""

    def no_peers(_: str | None) -> list[Report]:
        raise command.NoCluster("no access to a cluster")

    monkeypatch.setattr(command, "_reports", no_peers)


def test_nodes_of_one_class_are_one_block(cluster: list[Report]) -> None:
    """By GPUs, number and interconnect: the median, how far they lie apart, and who they are."""
    cluster += [report("b", gather=340), report("a", gather=360), report("c", gather=350)]
    cluster.append(report("d", klass=""))
    cluster.append(report("e", product="NVIDIA L4", gather=None, klass="pcie"))
    output = flat(zero(*SEVEN))
    assert "8x NVIDIA H100 80GB HBM3, nvlink [measured, 3 of 3 nodes]" in output
    assert "all_gather 350, reduce_scatter 350, all_reduce with P2P off 9.5 GB/s" in output
    assert "Medians. The nodes reach all_gather 340 to 360, reduce_scatter 340 to 360 GB/s." in output
    assert "Nodes: a, b, c." in output
    assert "8x NVIDIA H100 80GB HBM3, unknown interconnect (P2pRefused) [measured]" in output
    assert "8x NVIDIA L4, pcie [not measured] Not measured yet: e." in output


def test_one_node_can_be_asked_for(cluster: list[Report]) -> None:
    """Its own figures; a node without a report is an error."""
    cluster += [report("a", gather=360), report("b", gather=300)]
    assert "b: 8x NVIDIA H100 80GB HBM3, nvlink [measured] busbw: all_reduce 480, all_gather 300" in flat(
        zero(*SEVEN, "--node", "b")
    )
    outcome = zero(*SEVEN, "--node", "z")
    assert (outcome.exit_code, "node z has no NodeReport" in outcome.output) == (1, True)


def test_what_was_measured_gives_a_report_its_curve(cluster: list[Report]) -> None:
    """The memory of the benchmark knows sizes and algorithms, which labels do not."""
    cells = [
        Cell(collective="all_gather", bytes=size, us=us, algorithm="RING")
        for size, us in ((65536, 40.0), (2**30, 2700.0))
    ]
    nccl = NcclResult(engine="nccl4py", ranks=8, arms=[Arm(name=ArmName.DEFAULT, cells=cells)])
    seen = measure(Document(probe="nccl", nccl=nccl), history=History(), environment={})
    body = report("a", gather=348)
    probes = [ProbeStatus(name=names.PROBE_NCCL, history=seen.encode())]
    status = to_builtins(body.status) | {"probes": to_builtins(probes)}
    document = {
        "apiVersion": names.API_VERSION,
        "kind": names.REPORT_KIND,
        "metadata": {"name": "a", "uid": "u"},
        "status": status,
    }
    outcome = zero(
        *SEVEN, "--report", "-", "--format", "json", "--bucket", "64KiB", stdin=json.dumps(document)
    )
    [place] = json.loads(outcome.output)["machines"]
    [points] = [curve["points"] for curve in place["bandwidths"]["curves"]]
    assert [size for size, _ in points] == [65536, 2**30]
    assert place["costs"][3]["seconds"] > 10 * 36.75e9 / 348e9


def test_without_a_cluster_published_figures_stand_in(no_cluster: None) -> None:
    """Labelled as what they are, with their sources, and with why no cluster was read."""
    output = flat(zero(*SEVEN))
    assert "No cluster was read: no access to a cluster" in output
    assert "These are published bandwidths of other machines. Nothing was measured here." in output
    assert "8x H200 [published] busbw: all_reduce 482 (NVLS), all_gather 361, reduce_scatter 363" in output
    assert "stas00/ml-engineering" in output


def test_a_cluster_without_reports_says_so(cluster: list[Report]) -> None:
    """And shows the published figures."""
    output = flat(zero(*SEVEN))
    assert "The cluster has no NodeReport with GPUs yet. These are published" in output


def test_a_log_of_nccl_tests_is_enough() -> None:
    """all_reduce of A100 is a ring and stands in for the rest, which is said."""
    output = flat(zero(*SEVEN, "--report", FIXTURES / "nccl-tests_allreduce_superbench.log"))
    assert "8x A100-SXM4-40GB [measured by nccl-tests] busbw: all_reduce 235 GB/s" in output
    assert "all_gather as all_reduce, reduce_scatter as all_reduce" in output


def test_a_log_of_two_nodes_is_refused() -> None:
    """What crosses the network is not this arithmetic's business."""
    outcome = zero(*SEVEN, "--report", FIXTURES / "nccl-tests_allreduce_h100x16_oci.log")
    assert (outcome.exit_code, "2 nodes took part" in outcome.output) == (2, True)


def test_given_figures_give_the_documents_table() -> None:
    """Size, volumes, times and what switching P2P off adds, in one look."""
    output = flat(
        zero("--params", "124.44e6", "--bytes", "4", "--gpus", "2", "--busbw", "40", "--p2p-off", "4")
    )
    assert "124.4 M parameters x 4 bytes = 498 MB, 2 GPUs of one node" in output
    assert "DDP AR 498 MB 12.4 ms 0 .. 12.4 ms +112 ms" in output
    assert "ZeRO-1, -2 RS + AG 498 MB 12.4 ms 0 .. 12.4 ms +112 ms" in output
    assert "ZeRO-3 2x AG + RS 747 MB 18.7 ms 0 .. 18.7 ms +168 ms" in output


def test_computing_time_gives_shares_of_the_step() -> None:
    """All hidden that can be, and nothing hidden; micro-batches split ZeRO-1 from ZeRO-2."""
    outcome = zero(*SEVEN, "--busbw", "350", "--compute", "0.1", "--micro-batches", "2")
    assert "ZeRO-3 4x AG + 2x RS 73.5 GB 210 ms 143 .. 210 ms 59 .. 68" in flat(outcome)
    assert "ZeRO-1 RS + AG" in flat(outcome)
    assert "ZeRO-2 2x RS + AG" in flat(outcome)


def test_other_numbers_of_gpus_are_told_apart(cluster: list[Report]) -> None:
    """Fewer than were measured is a guess, more than the node has is not computed."""
    cluster.append(report("a"))
    assert "Measured with 8 GPUs, computed for 4" in flat(zero(*SEVEN, "--gpus", "4"))
    output = flat(zero(*SEVEN, "--gpus", "16"))
    assert "16 ranks need several nodes" in output
    assert "DDP" not in output


def test_json_has_the_same_numbers(cluster: list[Report]) -> None:
    """Seconds, unrounded, with names that scripts can rely on."""
    cluster.append(report("a"))
    document = json.loads(zero(*SEVEN, "--format", "json").output)
    [place] = document["machines"]
    ddp, *_, zero_3 = place["costs"]
    assert document["job"]["bytes"] == 14e9
    assert (ddp["scheme"], zero_3["scheme"]) == ("DDP", "ZeRO-3")
    assert zero_3["seconds"] == pytest.approx(3 * 12.25 / 360)
    assert zero_3["lost_without_p2p"] == pytest.approx(3 * 12.25 / 9.5 - 3 * 12.25 / 360)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing option '--params'"),
        (("--params", "0"), "--params"),
        ((*SEVEN, "--busbw", "fast"), "expected GB/s, or NAME=GB/s"),
        ((*SEVEN, "--busbw", "all_together=3"), "one of all_reduce, all_gather, reduce_scatter"),
        ((*SEVEN, "--busbw", "nan"), "expected GB/s"),
        ((*SEVEN, "--busbw", "40", "--bucket", "much"), "expected bytes, for example 25MiB"),
        ((*SEVEN, "--p2p-off", "4"), "--p2p-off requires --busbw"),
        ((*SEVEN, "--busbw", "4", "--reference"), "only one of --node, --report, --busbw and --reference"),
    ],
)
def test_what_is_asked_wrongly_is_told(arguments: Sequence[str], words: str) -> None:
    """Exit code 2, and what was expected."""
    outcome = zero(*arguments)
    assert (outcome.exit_code, words in flat(outcome)) == (2, True), outcome.output


def test_a_result_without_a_benchmark_is_refused() -> None:
    """A health result has no bandwidth; one that measured nothing says why."""
    health = encode(Document(probe="health")).decode()
    assert "contains no NCCL run" in zero(*SEVEN, "--report", "-", stdin=health).output
    skipped = NcclResult(engine="nccl4py", skipped="busy", message="GPU 0 is in use")
    document = Document(probe="nccl", nccl=skipped, gpus=[Gpu(index=0, name="X")])
    output = zero(*SEVEN, "--report", "-", stdin=encode(document).decode()).output
    assert "Nothing was measured: GPU 0 is in use." in output


def test_nothing_is_wider_than_a_terminal(cluster: list[Report]) -> None:
    """80 columns, whatever is asked for."""
    cluster += [report("a"), report("a-node-with-a-very-long-name-of-its-own.example.com", gather=300)]
    for output in (zero(*SEVEN, "--compute", "0.2").output, zero(*SEVEN, "--reference").output):
        assert max(map(len, output.splitlines())) <= 80, output


def test_a_difference_that_is_noise_is_no_gain() -> None:
    """Two GPUs that go through the host either way: P2P off costs nothing, and saves nothing."""
    same = flat(zero("--params", "7e9", "--gpus", "2", "--busbw", "4.18", "--p2p-off", "4.2"))
    assert same.count("about 0") == 3
