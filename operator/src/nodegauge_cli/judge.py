"""`nodegauge judge FILE`: judge a probe's result without a cluster or a GPU.

It reads the output of a probe (`python -m nodegauge_probes health`, `nccl` or `load`), a pod's
log that holds it, a log of nccl-tests, pasted output of nvidia-smi, or a NodeReport, whose NCCL run it grades
again.  The judgement is the operator's for a node without history, or with the history that
`--before` gives.  Scripts can rely on the exit code: 0 pass or warn, 1 fail, 2 bad input, 3 unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
import yaml
from msgspec.structs import replace

from nodegauge_cli.documents import Unusable, one_of_kind
from nodegauge_cli.inputs import BadInput, name_of, report_or_result
from nodegauge_cli.judge_load_text import show_load
from nodegauge_cli.judge_text import show_health, show_nccl
from nodegauge_cli.judging import (
    EXIT_CODES,
    EXIT_UNKNOWN,
    AnyJudgement,
    Criteria,
    Document,
    NoHistory,
    judged,
    power_inventory,
)
from nodegauge_contract import Collective, Result
from nodegauge_contract.model import PASTED
from nodegauge_judge import Judgement
from nodegauge_judge.loadtest_rules.judge import LoadJudgement
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_operator import names
from nodegauge_operator.api.report import Report


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print text, or the judgement as JSON.",
)
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Judge by the thresholds, expectations and rules of this GPUValidationPolicy (YAML).",
)
@click.option(
    "--power-inventory",
    "cables",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare power limits with the cables and the supply in this file (YAML) instead of the policy's.",
)
@click.option(
    "--before",
    "earlier",
    type=click.File("rb"),
    help="An earlier result of the same node. Counters are then judged by their growth.",
)
@click.option(
    "--collective",
    type=click.Choice([collective.value for collective in Collective]),
    help="The collective in a log of nccl-tests, if the log does not name it.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="The number of GPUs, all of one node, for a log of nccl-tests that does not list them.",
)
def judge(
    file: BinaryIO,
    form: str,
    policy: Path | None,
    cables: Path | None,
    earlier: BinaryIO | None,
    collective: str | None,
    ranks: int | None,
) -> None:
    """Judge the probe result, NodeReport, nccl-tests log or nvidia-smi output in FILE.

    FILE is - for standard input.  Pasted output of nvidia-smi may be the plain table, `-L`, `topo -m`,
    `topo -p2p r|w|n|a|p`, `-q` and `-q -x`, several of them in one file.

    \b
    Exit code: 0 pass or warn, 1 fail, 2 bad input, 3 unknown.

    \b
    Examples:
      python -m nodegauge_probes health | nodegauge judge -
      kubectl logs -n nodegauge PROBE-POD | nodegauge judge -
      all_reduce_perf -b 8 -e 1G -f 2 -g 8 | nodegauge judge -
      kubectl get nodereport NODE -o yaml | nodegauge judge -
      (nvidia-smi topo -m; nvidia-smi -q) | nodegauge judge -
    """
    criteria = _criteria(policy, cables)
    document = report_or_result(file, collective=Collective(collective) if collective else None, ranks=ranks)
    if cables is not None and (isinstance(document, Report) or document.probe not in ("health", PASTED)):
        raise click.UsageError("--power-inventory is for results of the health probe and for pasted output")
    before = [report_or_result(earlier)] if earlier is not None else []
    try:
        with _naming(name_of(file)):
            judgement = judged(document, criteria, earlier=before)
    except NoHistory as error:
        raise click.UsageError(f"--before is for {error}") from None
    if form == "json":
        sys.stdout.write(_json(judgement))
    else:
        _show(document, judgement)
    raise SystemExit(EXIT_CODES.get(judgement.verdict, EXIT_UNKNOWN))


def _show(document: Document, judgement: AnyJudgement) -> None:
    if isinstance(judgement, NcclJudgement):
        show_nccl(judgement, node=document.name if isinstance(document, Report) else document.node)
    elif isinstance(document, Result) and isinstance(judgement, LoadJudgement):
        show_load(document, judgement)
    elif isinstance(document, Result) and isinstance(judgement, Judgement):
        show_health(document, judgement)


def _criteria(policy: Path | None, cables: Path | None) -> Criteria:
    """Those of a policy, or the defaults; `cables` is a file with a power inventory."""
    spec = _spec(policy) if policy is not None else {}
    with _naming(policy):
        criteria = Criteria.from_spec(spec)
    if cables is None:
        return criteria
    with _naming(cables):
        power = power_inventory(_yaml(cables))
    return criteria._replace(node=replace(criteria.node, power=power))


@contextmanager
def _naming(name: object) -> Iterator[None]:
    """Name the file in an error about its content."""
    try:
        yield
    except Unusable as error:
        raise BadInput(f"{name}: {error}") from None


def _json(judgement: AnyJudgement) -> str:
    return msgspec.json.format(msgspec.json.encode(judgement), indent=2).decode() + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None


def _yaml(path: Path) -> Any:
    """The one document of a YAML file."""
    try:
        return yaml.safe_load(_text(path))
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{path}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None


def _spec(path: Path) -> dict[str, Any]:
    """`spec` of the one policy in a file."""
    with _naming(path):
        spec = one_of_kind(_text(path), names.POLICY_KIND).get("spec") or {}
    if not isinstance(spec, dict):
        raise BadInput(f"{path}: spec must be a mapping")
    return spec
