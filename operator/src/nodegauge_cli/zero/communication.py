"""`nodegauge zero --params`: seconds of communication a step for DDP and ZeRO, on the GPUs of one node.

The bandwidths come from the reports of a cluster, a file or the command line; without any of them published
ones are used and labelled as such.  It ignores the network between nodes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from nodegauge_cli.inputs import BadInput, documents_of, name_of
from nodegauge_cli.reported import Reported
from nodegauge_cli.zero import cluster, sources
from nodegauge_cli.zero.classes import hindrance
from nodegauge_cli.zero.communication_text import Machine, text
from nodegauge_cli.zero.options import Options
from nodegauge_contract import Collective, Result
from nodegauge_contract.nccl import GRADED
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.zero.communication import Job, costs

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?)?B?", re.I)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def show(options: Options) -> None:
    """Print the answer."""
    assert options.params is not None
    remarks: list[str] = []
    machines = [_with_ranks(machine, options.gpus) for machine in _machines(options, remarks)]
    job = Job(
        params=options.params,
        width=options.width,
        ranks=options.gpus or 0,
        micro_batches=options.micro_batches,
        bucket=_bytes(options.bucket) if options.bucket else None,
        compute=options.compute,
    )
    (_json if options.form == "json" else _text)(job, machines, remarks)


def _machines(source: Options, remarks: list[str]) -> list[Machine]:
    """The machines to compute for; what concerns all of them is added to `remarks`."""
    if sum(map(bool, (source.node, source.file, source.busbw, source.reference))) > 1:
        raise click.UsageError("use only one of --node, --report, --busbw and --reference")
    if source.p2p_off is not None and not source.busbw:
        raise click.UsageError("--p2p-off requires --busbw")
    if source.busbw:
        return [sources.given(_busbw(source.busbw), p2p_off=source.p2p_off, gpus=source.gpus or 8)]
    if source.file is not None:
        return _from_file(source.file)
    return _published(remarks) if source.reference else _from_cluster(source.node, remarks)


def _text(job: Job, machines: Sequence[Machine], remarks: Sequence[str]) -> None:
    printed(text(job, machines, remarks=remarks))


def printed(lines: Iterable[str]) -> None:
    """Print lines that may contain what nodes say of themselves."""
    for line in lines:
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


def _from_file(file: Any) -> list[Machine]:
    documents = documents_of(file)
    reports = [document.report for document in documents if isinstance(document, Reported)]
    if reports:
        machines = _by_class(cluster.Snapshot(reports, None))
        if not machines:
            raise BadInput(f"{name_of(file)}: no GPU was read on {', '.join(r.name for r in reports[:3])}")
        return machines
    results = [document for document in documents if isinstance(document, Result)]
    for result in results:
        if result.nccl is None:
            raise BadInput(f"{name_of(file)}: a result of probe {result.probe!r} contains no NCCL run")
        if result.nccl.nodes != 1:
            nodes = result.nccl.nodes or "an unknown number of"
            raise BadInput(f"{name_of(file)}: {nodes} nodes took part, expected one")
    return [sources.from_results(results)]


def _from_cluster(node: str | None, remarks: list[str]) -> list[Machine]:
    """The classes of the cluster; published bandwidths if there is no cluster or no report."""
    try:
        seen = cluster.snapshot(node)
    except (ModuleNotFoundError, cluster.NoCluster) as error:
        if node:
            raise click.ClickException(f"node {node}: {error}") from None
        remarks.append(f"No cluster was read: {error}")
        return _published(remarks)
    if node and not seen.reports:
        raise click.ClickException(f"node {node} has no NodeReport: kubectl get nodereports")
    remarks.extend(filter(None, (seen.remark,)))
    machines = _by_class(seen)
    if node and not machines:
        raise click.ClickException(f"no GPU was read on node {node}: kubectl describe nodereport {node}")
    if not machines:
        remarks.append("The cluster has no NodeReport with GPUs yet.")
        return _published(remarks)
    return machines


def _by_class(seen: cluster.Snapshot) -> list[Machine]:
    """The classes, and what no job can get of them; a single report keeps its node's name."""
    now = time.time()
    hindrances = {report.name: hindrance(report, seen.nodes, now) for report in seen.reports}
    machines = sources.node_classes(seen.reports, hindrances)
    alone = seen.reports[0].name if len(seen.reports) == 1 else ""
    return [replace(each, title=f"{alone}: {each.title}", nodes=()) if alone else each for each in machines]


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
