"""`nodegauge report --html FILE`: the fleet as one HTML file that needs no network."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from nodegauge_cli.cluster import Cluster, context_option
from nodegauge_cli.inputs import BadInput
from nodegauge_cli.output import write_whole
from nodegauge_cli.page.fleet import Fleet, read_cluster
from nodegauge_cli.page.html import page
from nodegauge_cli.reported import Unusable, objects
from nodegauge_operator.api.times import stamp

KINDS = "nodereports,nodereadings,nodehistories,chassisreadings,gpuvalidationpolicies,nodes"


@click.command()
@click.option(
    "--html",
    "target",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    required=True,
    help="Where to write the page; - for standard output.",
)
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="A file of objects (YAML or JSON, - for standard input) instead of the cluster. Repeatable.",
)
@click.option("--title", default="GPU nodes", show_default=True, help="The page's heading.")
@context_option
def report(target: Path, sources: tuple[Path, ...], title: str, context: str) -> None:
    """Write one HTML file about all GPU nodes: verdicts, findings with steps, links, bandwidth, history.

    The page needs no network and no other file. It opens in any current browser, and prints. What it shows of
    a node is what its objects say: it has serial numbers, so hand it on as you would a ticket.

    \b
    Examples:
      nodegauge report --html gpus.html
      kubectl get nodereports,nodereadings,nodehistories -o json | nodegauge report --from - --html gpus.html
    """
    if sources and context:
        raise click.UsageError("--context is for a cluster, --from for files: give one of them")
    fleet = _of_files(sources) if sources else read_cluster(Cluster(context=context))
    source = _named(sources) if sources else f"the cluster{f' {context}' if context else ''}"
    _write(target, page(fleet.data(title=title, made_at=stamp(time.time()), source=source)))


def _of_files(sources: Iterable[Path]) -> Fleet:
    """Raises `BadInput`, also if there is no report."""
    fleet = Fleet()
    for body in _from_files(sources):
        fleet.add(body)
    if not fleet.nodes:
        raise BadInput(f"{_named(sources)}: no NodeReport is there; try `kubectl get {KINDS} -o json`")
    return fleet


def _named(sources: Iterable[Path]) -> str:
    return ", ".join("standard input" if str(source) == "-" else str(source) for source in sources)


def _from_files(sources: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """The objects of all files.  Raises `BadInput`."""
    for source in sources:
        name = _named([source])
        try:
            data = sys.stdin.buffer.read() if str(source) == "-" else source.read_bytes()
            yield from _objects(data)
        except (OSError, Unusable) as error:
            raise BadInput(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def _objects(data: bytes) -> Iterator[Mapping[str, Any]]:
    """JSON where it is that, which is a hundred times faster to read, else YAML.  Raises `Unusable`."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from objects(data.decode("utf-8", errors="replace"))
        return
    for each in body if isinstance(body, list) else [body]:
        if isinstance(each, dict):
            yield each
            items = each.get("items")
            yield from (item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()


def _write(target: Path, text: str) -> None:
    """The page, as a file or on standard output.  Raises `BadInput`."""
    if str(target) == "-":
        sys.stdout.write(text)
        return
    try:
        write_whole(target, text)
    except OSError as error:
        raise BadInput(f"{target}: {error.strerror}") from None
    click.echo(f"Wrote {target} ({len(text.encode()) / 1e6:.1f} MB).", err=True)
