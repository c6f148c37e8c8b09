"""`nodegauge zero`: the communication time of DDP and ZeRO on each class of nodes, from measured bandwidth.

The bandwidths come from the reports of a cluster, a file or the command line; without any of them published
ones are used and labelled as such.  It is arithmetic for the GPUs of one node and ignores the network between
nodes.  It changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from nodegauge_cli import zero_sources as sources
from nodegauge_cli.inputs import BadInput, documents_of, name_of
from nodegauge_cli.reported import Reported
from nodegauge_cli.zero_text import Machine, text
from nodegauge_contract import Collective, Result
from nodegauge_contract.nccl import GRADED
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.nccl.zero import Job, costs
from nodegauge_operator.api.report import Report

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?)?B?", re.I)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--params", type=_POSITIVE, required=True, help="Number of parameters, for example 7e9.")
@click.option(
    "--bytes",
    "width",
    type=_POSITIVE,
    default=2.0,
    show_default=True,
    help="Bytes sent per parameter: 2 for fp16 and bf16, 4 for fp32.",
)
@click.option("--gpus", type=click.IntRange(2, 64), help="Ranks on the node. Default: all of its GPUs.")
@click.option(
    "--micro-batches", type=click.IntRange(1), default=1, show_default=True, help="Micro-batches per step."
)
@click.option("--bucket", help="Bytes per call, for example 25MiB. Default: large enough to ignore latency.")
@click.option(
    "--compute",
    type=_POSITIVE,
    help="Seconds of forward and backward pass per step, to see how much communication they hide.",
)
@click.option("--node", help="Use only this node of the cluster.")
@click.option(
    "--report",
    "file",
    type=click.File("rb"),
    help="A NodeReport, an NCCL probe result or an nccl-tests log (- for standard input).",
)
@click.option("--busbw", multiple=True, help="GB/s: 230, or all_gather=361. Can be repeated.")
@click.option("--p2p-off", type=_POSITIVE, help="GB/s with P2P disabled. Requires --busbw.")
@click.option("--reference", is_flag=True, help="Use published bandwidths by GPU model; needs no cluster.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def zero(
    params: float,
    width: float,
    gpus: int | None,
    micro_batches: int,
    bucket: str | None,
    compute: float | None,
    node: str | None,
    file: Any,
    busbw: tuple[str, ...],
    p2p_off: float | None,
    reference: bool,
    form: str,
) -> None:
    """Estimate seconds of communication per optimizer step for DDP and ZeRO, by node class.

    \b
    Examples:
      nodegauge zero --params 7e9
      nodegauge zero --params 124.44e6 --bytes 4 --gpus 2 --busbw 40 --p2p-off 4
      all_gather_perf -b 1G -e 1G -g 8 | nodegauge zero --params 7e9 --report -

    The estimate covers the GPUs of one node. ZeRO uses the bandwidth of all_gather and reduce_scatter,
    because only all_reduce gains from NVLS.
    """
    remarks: list[str] = []
    source = _Source(node=node, file=file, busbw=busbw, p2p_off=p2p_off, reference=reference, gpus=gpus)
    machines = [_with_ranks(machine, gpus) for machine in _machines(source, remarks)]
    job = Job(
        params=params,
        width=width,
        ranks=gpus or 0,
        micro_batches=micro_batches,
        bucket=_bytes(bucket) if bucket else None,
        compute=compute,
    )
    show = _json if form == "json" else _text
    show(job, machines, remarks)


class _Source(NamedTuple):
    """The options that say where the bandwidths come from."""

    node: str | None
    file: Any
    busbw: tuple[str, ...]
    p2p_off: float | None
    reference: bool
    gpus: int | None


def _machines(source: _Source, remarks: list[str]) -> list[Machine]:
    """The machines to compute for; what concerns all of them is added to `remarks`."""
    if sum(map(bool, (source.node, source.file, source.busbw, source.reference))) > 1:
        raise click.UsageError("use only one of --node, --report, --busbw and --reference")
    if source.p2p_off is not None and not source.busbw:
        raise click.UsageError("--p2p-off requires --busbw")
    if source.busbw:
        return [sources.given(_busbw(source.busbw), p2p_off=source.p2p_off, gpus=source.gpus or 8)]
    if source.file is not None:
        return [_from_file(source.file)]
    return _published(remarks) if source.reference else _from_cluster(source.node, remarks)


def _text(job: Job, machines: Sequence[Machine], remarks: Sequence[str]) -> None:
    for line in text(job, machines, remarks=remarks):
        click.echo("".join(char if char.isprintable() else "?" for char in line))


def _json(job: Job, machines: Sequence[Machine], remarks: Sequence[str]) -> None:
    document = {
        "job": {**msgspec.to_builtins(job), "bytes": job.bytes},
        "remarks": remarks,
        "machines": [
            {
                **msgspec.to_builtins(machine),
                "costs": [
                    {**msgspec.to_builtins(cost), "lost_without_p2p": cost.lost_without_p2p}
                    for cost in (costs(machine.job(job), machine.bandwidths) if machine.bandwidths else ())
                ],
            }
            for machine in machines
        ],
    }
    click.echo(json.dumps(document, indent=2))


def _with_ranks(machine: Machine, gpus: int | None) -> Machine:
    """The machine with that many ranks, and a remark if it was measured with another number."""
    if machine.bandwidths is None:
        return machine
    ranks, measured = gpus or machine.gpus, machine.bandwidths.curves[0].ranks
    if ranks > machine.gpus:
        remark = f"It has {machine.gpus} GPUs. {ranks} ranks need several nodes: not computed."
        return replace(machine, ranks=ranks, bandwidths=None, remarks=(remark,))
    if ranks != measured:
        remark = f"Measured with {measured} GPUs, computed for {ranks}: their bandwidth may differ."
        return replace(machine, ranks=ranks, remarks=(*machine.remarks, remark))
    return replace(machine, ranks=ranks)


def _from_file(file: Any) -> Machine:
    documents = documents_of(file)
    if isinstance(documents[0], Reported):
        return sources.from_report(documents[0].report)
    results = [document for document in documents if isinstance(document, Result)]
    for result in results:
        if result.nccl is None:
            raise BadInput(f"{name_of(file)}: a result of probe {result.probe!r} contains no NCCL run")
        if result.nccl.nodes != 1:
            nodes = result.nccl.nodes or "an unknown number of"
            raise BadInput(f"{name_of(file)}: {nodes} nodes took part, expected one")
    return sources.from_results(results)


def _from_cluster(node: str | None, remarks: list[str]) -> list[Machine]:
    """The classes of the cluster; published bandwidths if there is no cluster or no report."""
    try:
        reports = _reports(node)
    except (ModuleNotFoundError, NoCluster) as error:
        if node:
            raise click.ClickException(f"node {node}: {error}") from None
        remarks.append(f"No cluster was read: {error}")
        return _published(remarks)
    if node and not reports:
        raise click.ClickException(f"node {node} has no NodeReport: kubectl get nodereports")
    if node:
        return [sources.from_report(reports[0])]
    machines = sources.node_classes(reports)
    if not machines:
        remarks.append("The cluster has no NodeReport with GPUs yet.")
        return _published(remarks)
    return machines


class NoCluster(Exception):
    """No API server answers; the message says why."""


def _reports(node: str | None) -> list[Report]:
    from nodegauge_operator.kube import reports
    from nodegauge_operator.kube.client import connect
    from nodegauge_operator.kube.errors import KubeError

    async def read() -> list[Report]:
        client = await connect(environ=os.environ)
        try:
            if node:
                report = await reports.get(client, node)
                return [report] if report is not None else []
            return [report async for report in reports.each(client)]
        finally:
            await client.close()

    try:
        return asyncio.run(read())
    except KubeError as error:
        raise NoCluster(str(error)) from None


def _published(remarks: list[str]) -> list[Machine]:
    remarks.append("These are published bandwidths of other machines. Nothing was measured here.")
    return sources.published(Expectations.default())


def _busbw(options: Sequence[str]) -> dict[Collective, float]:
    """`230` (all_reduce), or `all_gather=361`."""
    busbw: dict[Collective, float] = {}
    for option in options:
        name, equals, number = option.rpartition("=")
        try:
            known = GRADED[GRADED.index(Collective(name))] if equals else Collective.ALL_REDUCE
            busbw[known] = value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1e5:
            raise click.BadParameter(
                f"{option!r}: expected GB/s, or NAME=GB/s with NAME one of {', '.join(GRADED)}",
                param_hint="--busbw",
            )
    return busbw


def _bytes(option: str) -> int:
    match = _BYTES.fullmatch(option.strip())
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if size < 1:
        raise click.BadParameter(
            f"{option!r}: expected bytes, for example 25MiB or 26214400", param_hint="--bucket"
        )
    return size
