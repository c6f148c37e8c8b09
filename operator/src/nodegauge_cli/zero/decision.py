"""`nodegauge zero --model`, and `nodegauge zero` alone: what fits on the cluster's classes, how, and what to
take."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from nodegauge_cli.inputs import BadInput, documents_of, name_of
from nodegauge_cli.reported import Reported
from nodegauge_cli.zero import cluster, decision_text, manifest, overview_text
from nodegauge_cli.zero.classes import Class, classes, published
from nodegauge_cli.zero.communication import printed
from nodegauge_cli.zero.options import WAYS, Options
from nodegauge_judge.zero.decide import best, decide
from nodegauge_judge.zero.estimators import Checkpointing, Optimizer, Precision
from nodegauge_judge.zero.serve import serve
from nodegauge_judge.zero.shape import by_rule, shape_of
from nodegauge_judge.zero.ways import Option, Training

REFERENCE = "These are published numbers of other machines. Nothing was measured here."


def show(options: Options) -> None:
    """Print the answer."""
    remarks: list[str] = []
    matches = _compared(_matches(options, remarks), options.compare)
    if options.model is None:
        if options.form == "json":
            job = Training(shape=by_rule(1e9))
            _json(
                {
                    "remarks": remarks,
                    "classes": [_described(c) | {"largest": overview_text.sizes(c, job)} for c in matches],
                }
            )
        else:
            printed(overview_text.text(matches, remarks=remarks))
        return
    job = _training(options, options.model)
    if options.manifest:
        click.echo(_manifest(job, matches, options), nl=False)
    elif options.form == "json":
        _json(document(job, matches, remarks))
    else:
        printed(decision_text.text(job, matches, remarks=remarks))
        printed(_ratio(job, matches) if options.compare else [])


def _training(options: Options, params: float) -> Training:
    return Training(
        shape=shape_of(params),
        precision=Precision(options.precision),
        optimizer=Optimizer(options.optimizer),
        sequence=options.sequence,
        batch=options.batch,
        checkpointing=Checkpointing(options.checkpointing),
    )


def _matches(options: Options, remarks: list[str]) -> list[Class]:
    """The classes that were asked for; not empty."""
    if sum(map(bool, (options.node, options.file, options.reference))) > 1:
        raise click.UsageError("use only one of --node, --report and --reference")
    if options.reference:
        remarks.append(REFERENCE)
        return published()
    if options.file is not None:
        documents = documents_of(options.file)
        reports = [each.report for each in documents if isinstance(each, Reported)]
        if len(reports) < len(documents):
            raise BadInput(f"{name_of(options.file)}: expected NodeReports (kubectl get nodereports -o yaml)")
        seen = cluster.Snapshot(reports, None, "Nodes were not read, so cordons are unknown.")
    else:
        try:
            seen = cluster.snapshot(options.node)
        except (ModuleNotFoundError, cluster.NoCluster) as error:
            raise click.ClickException(
                f"no cluster was read: {str(error).rstrip('.')}. {cluster.WAY_OUT}"
            ) from None
    remarks.extend(filter(None, (seen.remark,)))
    if options.node and not seen.reports:
        raise click.ClickException(f"node {options.node} has no NodeReport: kubectl get nodereports")
    matches = classes(seen.reports, seen.nodes, time.time())
    if not matches:
        raise click.ClickException(_no_gpus(options, len(seen.reports)))
    return matches


def _no_gpus(options: Options, reports: int) -> str:
    where = f"node {options.node}" if options.node else "the cluster"
    if not reports:
        return (
            f"{where} has no NodeReport yet: kubectl get gpuvalidationpolicies says which nodes are selected"
        )
    return f"no GPU was read on {where} ({reports} NodeReports): kubectl describe nodereport says why"


def _compared(matches: list[Class], names: tuple[str, str] | None) -> list[Class]:
    """All, or the two whose names have these parts."""
    if names is None:
        return matches
    chosen = []
    for name in names:
        matching = [each for each in matches if name.lower() in each.facts.name.lower()]
        if len(matching) != 1:
            several = (
                f"{len(matching)} classes have {name!r} in their name" if matching else f"no class {name!r}"
            )
            known = "; ".join(each.facts.name for each in matches)
            raise click.BadParameter(f"{several}; there are: {known}", param_hint="--compare")
        chosen += matching
    if chosen[0] is chosen[1]:
        raise click.BadParameter("both names are of the same class", param_hint="--compare")
    return chosen


def _taken(job: Training, matches: Sequence[Class], way: str | None) -> tuple[Class, Option] | None:
    pairs = [(each.facts, option) for each in matches for option in decide(job, each.facts)]
    taken = best([pair for pair in pairs if way is None or pair[1].way is WAYS[way]], job)
    return None if taken is None else (next(c for c in matches if c.facts is taken[0]), taken[1])


def _manifest(job: Training, matches: Sequence[Class], options: Options) -> str:
    taken = _taken(job, matches, options.way)
    if taken is None:
        way = f" by way {options.way}" if options.way else ""
        raise click.ClickException(
            f"nothing here is known to hold the model{way}: nodegauge zero without --manifest"
        )
    return manifest.manifest(*taken)


def document(job: Training, matches: Sequence[Class], remarks: Sequence[str]) -> dict[str, Any]:
    """The decision as JSON: docs/placement.md describes it."""
    taken = _taken(job, matches, None)
    return {
        "job": msgspec.to_builtins(job),
        "remarks": list(remarks),
        "classes": [
            _described(each)
            | {
                "ways": [_way(job, o) for o in decide(job, each.facts)],
                "serve": msgspec.to_builtins(serve(job.shape.params, each.facts)),
            }
            for each in matches
        ],
        "take": None
        if taken is None
        else {
            "class": taken[0].facts.name,
            "way": taken[1].way,
            "labels": [wish._asdict() for wish in manifest.wishes(*taken)],
        },
    }


def _described(each: Class) -> dict[str, Any]:
    described: dict[str, Any] = msgspec.to_builtins(each)
    return described


def _way(job: Training, option: Option) -> dict[str, Any]:
    described: dict[str, Any] = msgspec.to_builtins(option)
    return described | {"tokens_per_second": option.tokens_per_second(job) if option.fits else None}


def _json(body: dict[str, Any]) -> None:
    click.echo(json.dumps(body, indent=2))


def _ratio(job: Training, matches: Sequence[Class]) -> list[str]:
    """How much faster the first class is, way by way, where both are known."""
    first, second = ({o.way: o for o in decide(job, each.facts)} for each in matches)
    lines = []
    for way in [way for way in first if way in second]:
        rates = [o.tokens_per_second(job) if o.fits else None for o in (first[way], second[way])]
        whole = first[way].step.most and second[way].step.most
        if rates[0] and rates[1] and whole:
            lines.append(f"{way}: the first makes {rates[0] / rates[1]:.2f} times the tokens of the second.")
        else:
            lines.append(f"{way}: not comparable: one does not fit, or is not wholly measured.")
    return ["", *lines]
