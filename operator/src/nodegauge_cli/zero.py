"""`nodegauge zero`: what DDP and ZeRO spend in communication on each class of node, from measured bandwidth.

Figures come from the reports of a cluster, from one file, or from the command line; with none of them
published ones stand in, and say so.  Arithmetic for the GPUs of one node: it knows nothing of the network
between nodes.  Nothing is changed anywhere.
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
from nodegauge_cli.inputs import BadInput, name_of, report_or_result
from nodegauge_cli.zero_text import Place, text
from nodegauge_contract import Collective, Result
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.nccl.zero import Job, costs
from nodegauge_operator.api.report import Report

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?)?B?", re.I)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@click.command()
@click.option("--params", type=click.FloatRange(min=0, min_open=True), required=True, help="Parameters: 7e9.")
@click.option(
    "--bytes",
    "width",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Bytes of one on the wire: 2 for fp16 and bf16, 4 for fp32.",
)
@click.option("--gpus", type=click.IntRange(2, 64), help="Ranks on the node; without it, all that it has.")
@click.option("--micro-batches", type=click.IntRange(1), default=1, show_default=True, help="Per step.")
@click.option("--bucket", help="Bytes of one call (25MiB), where the curve was measured; else the largest.")
@click.option(
    "--compute",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds of forward and backward per step, to say how much can be hidden.",
)
@click.option("--node", help="This node of the cluster alone.")
@click.option(
    "--report",
    "file",
    type=click.File("rb"),
    help="A NodeReport, a result of the benchmark or a log of nccl-tests; - for standard input.",
)
@click.option("--busbw", multiple=True, help="GB/s: 230, or all_gather=361 (several times).")
@click.option("--p2p-off", type=click.FloatRange(min=0, min_open=True), help="GB/s without P2P, to --busbw.")
@click.option("--reference", is_flag=True, help="Published figures by GPU model, whatever the cluster has.")
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
    """Print seconds of communication per optimizer step for DDP and ZeRO, by node class.

    \b
    Examples:
      nodegauge zero --params 7e9
      nodegauge zero --params 124.44e6 --bytes 4 --gpus 2 --busbw 40 --p2p-off 4
      all_gather_perf -b 1G -e 1G -g 8 | nodegauge zero --params 7e9 --report -

    Only the GPUs of one node are considered. ZeRO is computed with the bandwidth of all_gather and
    reduce_scatter, not with an all_reduce that NVLS bandwidths up.
    """
    lines: list[str] = []
    asked = _Asked(node=node, file=file, busbw=busbw, p2p_off=p2p_off, reference=reference, gpus=gpus)
    places = _places(asked, lines)
    job = Job(
        params=params,
        width=width,
        ranks=gpus or 0,
        micro_batches=micro_batches,
        bucket=_bytes(bucket) if bucket else None,
        compute=compute,
    )
    show = _json if form == "json" else _text
    show(job, [_with_ranks(place, gpus) for place in places], lines)


class _Asked(NamedTuple):
    """Where the figures shall come from."""

    node: str | None
    file: Any
    busbw: tuple[str, ...]
    p2p_off: float | None
    reference: bool
    gpus: int | None


def _places(asked: _Asked, lines: list[str]) -> list[Place]:
    """What to compute for; what is to be known of all of them goes to `lines`."""
    if sum(map(bool, (asked.node, asked.file, asked.busbw, asked.reference))) > 1:
        raise click.UsageError("one of --node, --report, --busbw and --reference")
    if asked.p2p_off is not None and not asked.busbw:
        raise click.UsageError("--p2p-off needs --busbw beside it")
    if asked.busbw:
        return [sources.given(_busbw(asked.busbw), p2p_off=asked.p2p_off, gpus=asked.gpus or 8)]
    if asked.file is not None:
        return [_of_file(asked.file)]
    return _published(lines) if asked.reference else _of_cluster(asked.node, lines)


def _text(job: Job, places: Sequence[Place], lines: Sequence[str]) -> None:
    for line in text(job, places, lines=lines):
        click.echo("".join(char if char.isprintable() else "?" for char in line))


def _json(job: Job, places: Sequence[Place], lines: Sequence[str]) -> None:
    found = [
        {
            **msgspec.to_builtins(place),
            "costs": [
                {**msgspec.to_builtins(cost), "lost_without_p2p": cost.lost_without_p2p}
                for cost in (costs(place.job(job), place.bandwidths) if place.bandwidths is not None else ())
            ],
        }
        for place in places
    ]
    document = {"job": {**msgspec.to_builtins(job), "bytes": job.bytes}, "notes": lines, "places": found}
    click.echo(json.dumps(document, indent=2))


def _with_ranks(place: Place, gpus: int | None) -> Place:
    """The place with so many ranks, and what is wrong with asking it for them."""
    if place.bandwidths is None:
        return place
    ranks, measured = gpus or place.gpus, place.bandwidths.curves[0].ranks
    if ranks > place.gpus:
        note = f"Has {place.gpus} GPUs: {ranks} ranks span nodes, where the network decides. Not computed."
        return replace(place, ranks=ranks, bandwidths=None, notes=(note,))
    if ranks != measured:
        note = f"Measured with {measured} GPUs and computed for {ranks}: they may be joined better or worse."
        return replace(place, ranks=ranks, notes=(*place.notes, note))
    return replace(place, ranks=ranks)


def _of_file(file: Any) -> Place:
    found = report_or_result(file)
    if isinstance(found, Report):
        return sources.of_report(found)
    assert isinstance(found, Result)
    if found.nccl is None:
        raise BadInput(f"{name_of(file)}: a result of probe {found.probe!r} holds no benchmark")
    if found.nccl.nodes > 1:
        raise BadInput(f"{name_of(file)}: of {found.nccl.nodes} nodes; this arithmetic is for one node")
    return sources.of_result(found)


def _of_cluster(node: str | None, lines: list[str]) -> list[Place]:
    """The classes of the cluster; published figures where there is none, or nothing in it yet."""
    try:
        reports = _reports(node)
    except (ModuleNotFoundError, NoCluster) as error:
        if node:
            raise click.ClickException(f"node {node}: {error}") from None
        lines.append(f"No cluster was read: {error}")
        return _published(lines)
    if node and not reports:
        raise click.ClickException(f"node {node} has no NodeReport: kubectl get nodereports")
    if node:
        return [sources.of_report(reports[0])]
    places = sources.classes(reports)
    if not places:
        lines.append("The cluster has no NodeReport with GPUs yet.")
        return _published(lines)
    return places


class NoCluster(Exception):
    """No cluster answers, in words."""


def _reports(node: str | None) -> list[Report]:
    from nodegauge_operator.kube import reports
    from nodegauge_operator.kube.client import connect
    from nodegauge_operator.kube.errors import KubeError

    async def read() -> list[Report]:
        client = await connect(environ=os.environ)
        try:
            if node:
                found = await reports.get(client, node)
                return [found] if found is not None else []
            return [report async for report in reports.each(client)]
        finally:
            await client.close()

    try:
        return asyncio.run(read())
    except KubeError as error:
        raise NoCluster(str(error)) from None


def _published(lines: list[str]) -> list[Place]:
    lines.append("Published figures follow, of other people's machines: nothing here was measured.")
    return sources.reference(Expectations.default())


def _busbw(said: Sequence[str]) -> dict[Collective, float]:
    """`230`, or `all_gather=361`."""
    found: dict[Collective, float] = {}
    for word in said:
        name, equals, number = word.rpartition("=")
        try:
            found[Collective(name) if equals else Collective.ALL_REDUCE] = value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1e5:
            raise click.BadParameter(
                f"{word!r}: expected GB/s, or NAME=GB/s with NAME one of {', '.join(Collective)}",
                param_hint="--busbw",
            )
    return found


def _bytes(said: str) -> int:
    found = _BYTES.fullmatch(said.strip())
    size = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if size < 1:
        raise click.BadParameter(f"{said!r}: expected bytes, as 25MiB or 26214400", param_hint="--bucket")
    return size
