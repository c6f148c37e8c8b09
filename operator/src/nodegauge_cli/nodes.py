"""`nodegauge nodes`: a line per node, chosen and sorted as asked."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from nodegauge_cli.cluster import Cluster, context_option
from nodegauge_cli.fleet import keys_of, matches, read_fleet
from nodegauge_cli.output import (
    BAD,
    UNKNOWN,
    WORTH_A_LOOK,
    Cell,
    age,
    dump,
    output_option,
    printable,
    table,
    verdict,
)
from nodegauge_cli.standing import UNREAD, Standing
from nodegauge_operator import names
from nodegauge_operator.api.times import unstamp

WORST_FIRST = ("fail", UNREAD, "warn", "pass")
SORTS: dict[str, Callable[[Standing], tuple[object, ...]]] = {
    "node": lambda known: (known.node,),
    "health": lambda known: (WORST_FIRST.index(known.health), known.node),
    "cause": lambda known: (not known.causes, known.causes, known.node),
    "read": lambda known: (known.read_at, known.node),
    "busbw": lambda known: (known.all_reduce is None, known.all_reduce or 0, known.node),
    "class": lambda known: (known.gpu_class, known.node),
}
COLUMNS = ("NODE", "HEALTH", "CAUSE", "GPUS", "LINK", "BUSBW", "READ")
MORE_COLUMNS = ("CLASS", "DRIVER", "TAINTS", "OVERRIDE", "POLICY", "MODE", "SUMMARY")


@click.command()
@click.option("-l", "--selector", default="", help="Only nodes with these labels, as kubectl takes it.")
@click.option("--cause", default="", help="Only nodes with a confirmed fault of this cause, or lost to it.")
@click.option("--class", "gpu_class", default="", help="Only nodes whose class of GPUs contains this text.")
@click.option("--unhealthy", is_flag=True, help="Only nodes that are not pass.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="node", show_default=True, help="Order.")
@output_option("json", "yaml", "wide")
@context_option
def nodes(
    selector: str,
    cause: str,
    gpu_class: str,
    unhealthy: bool,
    sort: str,
    form: str | None,
    context: str,
) -> None:
    """A line per node that nodegauge looks after. BUSBW is GB/s of all_reduce, READ how long ago.

    Needs the ClusterRole nodegauge-view; labels that are not nodegauge's, and nodes without a report, take
    the right to list nodes. Exit codes: 0, 1 if the cluster cannot be asked, 2 for wrong usage.
    """
    try:
        foreign = any(not key.startswith(names.PREFIX) for key in keys_of(selector))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--selector") from None
    now = time.time()
    fleet = read_fleet(Cluster(context=context), now=now, selector=selector if foreign else "")
    chosen = [
        known
        for known in fleet.standings
        if (foreign or matches(known.labels, selector))
        and (not cause or cause in known.causes or cause in known.lost)
        and gpu_class.lower() in known.gpu_class.lower()
        and (not unhealthy or known.health != "pass")
    ]
    chosen.sort(key=SORTS[sort])
    if fleet.not_seen:
        click.echo(printable(f"{fleet.not_seen}."), err=True)
    if form in ("json", "yaml"):
        click.echo(dump(chosen, form))
        return
    if not chosen:
        click.echo(f"No node matches, of {len(fleet.standings)}.", err=True)
        return
    wide = form == "wide"
    columns = (*COLUMNS, *MORE_COLUMNS) if wide else COLUMNS
    click.echo(table(columns, [_row(known, now=now, wide=wide) for known in chosen]))


def _row(known: Standing, *, now: float, wide: bool) -> list[str | Cell]:
    link = known.interconnect + (f" {known.nvlink_gbps}" if known.nvlink_gbps else "")
    row: list[str | Cell] = [
        known.node,
        Cell(known.health, UNKNOWN) if known.health == UNREAD else verdict(known.health),
        Cell(",".join(known.causes) or "-", BAD if known.taints else WORTH_A_LOOK if known.causes else ""),
        str(known.gpus) if known.gpus == known.gpus_had else f"{known.gpus}/{known.gpus_had}",
        link or "-",
        str(known.all_reduce) if known.all_reduce is not None else "-",
        age(now - unstamp(known.read_at)) if known.read_at else "never",
    ]
    if wide:
        row += [known.gpu_class, known.driver or "-", ",".join(known.taints) or "-", known.override or "-"]
        row += [known.policy or "-", known.mode or "-", known.why_unread or known.summary]
    return row
