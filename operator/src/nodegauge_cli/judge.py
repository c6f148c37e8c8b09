"""`nodegauge judge FILE`: judge a probe's result without a cluster or a GPU.

It reads the output of a probe (`python -m nodegauge_probes health`, `nccl` or `load`), a feed window, a pod's
log that holds it, logs of nccl-tests, pasted output of nvidia-smi, or NodeReports, each with its NodeReading
if that is given too.  The judgement is the operator's for a node without history, or with the history that
`--before` gives.  Scripts can rely on the exit code, the worst of all documents: 0 pass or warn, 1 fail,
2 bad input, 3 unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
import msgspec
import yaml
from msgspec.structs import replace
from rich.console import Console

from nodegauge_cli.documents import Document, Part, one_of_kind
from nodegauge_cli.inputs import BadInput, documents_of, name_of, parts_of
from nodegauge_cli.judge_feed_text import show_feed
from nodegauge_cli.judge_load_text import show_load
from nodegauge_cli.judge_report_text import show_report
from nodegauge_cli.judge_text import show_health, show_nccl, show_refused, show_section, show_worst
from nodegauge_cli.judging import (
    EXIT_CODES,
    EXIT_UNKNOWN,
    AnyJudgement,
    Criteria,
    NoHistory,
    judged,
    power_inventory,
)
from nodegauge_cli.reported import Reported, ReportJudgement, Unusable, worst
from nodegauge_contract import Collective, Result
from nodegauge_contract.model import PASTED
from nodegauge_judge import Judgement, Verdict
from nodegauge_judge.feed.judge import FeedJudgement
from nodegauge_judge.loadtest_rules.judge import LoadJudgement
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_operator import names


def criteria_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options by which `criteria_of` judges, parameters `policy` and `cables`."""
    policy = click.option(
        "--policy",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Judge by the thresholds, expectations and rules of this GPUValidationPolicy (YAML).",
    )
    cables = click.option(
        "--power-inventory",
        "cables",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Compare power limits with cables and supply in this file (YAML) instead of the policy's.",
    )
    return policy(cables(command))


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
@criteria_options
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
    """Judge the probe result, NodeReports, nccl-tests logs or nvidia-smi output in FILE.

    FILE is - for standard input.  A log may have many runs: each is judged.  A NodeReport is judged whole,
    with all probes, gates and taints; with its NodeReading in FILE too, what was read last is judged again.
    Pasted output of nvidia-smi may be the plain table, `-L`, `topo -m`, `topo -p2p r|w|n|a|p`, `-q` and
    `-q -x`, several of them in one file; also kernel logs, messages of failures, nvlink, dcgmi, gpu-burn.

    \b
    Exit code, the worst in FILE: 0 pass or warn, 1 fail, 2 bad input, 3 unknown.

    \b
    Examples:
      python -m nodegauge_probes health | nodegauge judge -
      kubectl logs -n nodegauge PROBE-POD | nodegauge judge -
      all_reduce_perf -b 8 -e 1G -f 2 -g 8 | nodegauge judge -
      kubectl get nodereport NODE -o yaml | nodegauge judge -
      kubectl get nodereport,nodereading NODE -o yaml | nodegauge judge -
      kubectl get nodereading NODE -o jsonpath={.feed.reading} | nodegauge judge -
      (nvidia-smi topo -m; nvidia-smi -q) | nodegauge judge -
    """
    criteria = criteria_of(policy, cables)
    parts = parts_of(file, collective=Collective(collective) if collective else None, ranks=ranks)
    if cables is not None and not all(_has_power(part.document) for part in parts):
        raise click.UsageError("--power-inventory is for results of the health probe and for pasted output")
    before = documents_of(earlier) if earlier is not None else []
    try:
        with _naming(name_of(file)):
            sections = [_section(part, criteria, before, alone=len(parts) == 1) for part in parts]
    except NoHistory as error:
        raise click.UsageError(f"--before is for {error}") from None
    raise SystemExit(tell(sections, as_json=form == "json"))


class Section(NamedTuple):
    """One document of the file, and its judgement or why it has none."""

    title: str
    document: Document | Unusable
    judgement: AnyJudgement | Unusable

    @property
    def verdict(self) -> Verdict:
        """Of the judgement; unknown without one."""
        return Verdict.UNKNOWN if isinstance(self.judgement, Unusable) else self.judgement.verdict

    @property
    def summary(self) -> str:
        """The judgement in a sentence, or why there is none."""
        return str(self.judgement) if isinstance(self.judgement, Unusable) else self.judgement.summary


def _section(part: Part, criteria: Criteria, before: list[Document], *, alone: bool) -> Section:
    """Raises `NoHistory`, and `Unusable` if the file has this document alone."""
    if isinstance(part.document, Unusable):
        return Section(part.title, part.document, part.document)
    try:
        return Section(part.title, part.document, judged(part.document, criteria, earlier=before))
    except Unusable as error:
        if alone:
            raise
        return Section(part.title, part.document, error)


def _has_power(document: Document | Unusable) -> bool:
    return isinstance(document, Result) and document.probe in ("health", PASTED)


def tell(sections: Sequence[Section], *, as_json: bool) -> int:
    """Print the judgements; the exit code, of several the worst."""
    verdicts = [section.verdict for section in sections]
    verdict = worst(verdicts) if len(sections) > 1 else verdicts[0]
    if as_json:
        sys.stdout.write(_json(sections, verdict))
    else:
        _show_all(sections, verdict)
    return EXIT_CODES.get(verdict, EXIT_UNKNOWN)


def _show_all(sections: Sequence[Section], verdict: Verdict) -> None:
    if len(sections) > 1:
        every = [section.verdict for section in sections]
        shown = next(section for section in sections if worst([section.verdict]) is verdict)
        show_worst(verdict, f"{shown.title}: {shown.summary}", every=every)
    for title, document, judgement in sections:
        if len(sections) > 1:
            show_section(title)
        if isinstance(judgement, Unusable):
            show_refused(str(judgement))
        elif not isinstance(document, Unusable):
            show(document, judgement)


def show(document: Document, judgement: AnyJudgement, *, console: Console | None = None) -> None:
    """Print the judgement of one document."""
    if isinstance(document, Reported) and isinstance(judgement, ReportJudgement):
        show_report(document, judgement, console=console)
    elif isinstance(document, Result) and isinstance(judgement, NcclJudgement):
        show_nccl(judgement, node=document.node, console=console)
    elif isinstance(document, Result) and isinstance(judgement, LoadJudgement):
        show_load(document, judgement, console=console)
    elif isinstance(document, Result) and isinstance(judgement, FeedJudgement):
        show_feed(document, judgement, console=console)
    elif isinstance(document, Result) and isinstance(judgement, Judgement):
        show_health(document, judgement, console=console)


def criteria_of(policy: Path | None, cables: Path | None) -> Criteria:
    """Those of a policy, or the defaults; `cables` is a file with a power inventory.  Raises `BadInput`."""
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


def _json(sections: Sequence[Section], verdict: Verdict) -> str:
    """The judgement; of several the worst verdict, and each with its title, or with its error."""
    each = [
        {"title": title, "verdict": Verdict.UNKNOWN, "error": str(judgement)}
        if isinstance(judgement, Unusable)
        else {"title": title, **msgspec.to_builtins(judgement)}
        for title, _, judgement in sections
    ]
    content = {"verdict": verdict, "judgements": each} if len(sections) > 1 else sections[0].judgement
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


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
