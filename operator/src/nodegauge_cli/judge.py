"""`nodegauge judge FILE`: the judgement of what a probe brought home, with no cluster and no GPU at hand.

It reads what a probe printed (`python -m nodegauge_probes health` or `nccl`), what stands in a termination
message (packed or not), a pod's log that holds one of them, a log of nccl-tests, or a NodeReport, whose
benchmark it grades again.  It prints what the operator would have found in it on a node without a past, or
with the past that `--before` gives.  The exit code is for scripts: 0 pass or warn, 1 fail, 2 bad input, 3
unknown.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
import msgspec

from nodegauge_cli.inputs import BadInput, name_of, report_or_result, yaml_of
from nodegauge_cli.judge_nccl_text import show_nccl
from nodegauge_cli.judge_text import show
from nodegauge_contract import Collective, Result
from nodegauge_judge import Judgement, Thresholds, ThresholdsInvalid, Verdict, judge_health
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.model import NcclJudgement
from nodegauge_operator import names
from nodegauge_operator.api.report import Report

EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1}
EXIT_UNKNOWN = 3


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For a person, or the judgement as JSON.",
)
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take thresholds and expectations from this GPUValidationPolicy (YAML).",
)
@click.option(
    "--before",
    "earlier",
    type=click.File("rb"),
    help="An earlier result of the same node: counters are judged by their growth since then.",
)
@click.option(
    "--collective",
    type=click.Choice([one.value for one in Collective]),
    help="What a log of nccl-tests is of, where it does not tell.",
)
def judge(
    file: BinaryIO, form: str, policy: Path | None, earlier: BinaryIO | None, collective: str | None
) -> None:
    """Judge the result, log or NodeReport in FILE (- for standard input).

    \b
    Exit code: 0 pass or warn, 1 fail, 2 bad input, 3 unknown.

    \b
    Examples:
      python -m nodegauge_probes health | nodegauge judge -
      kubectl logs -n nodegauge PROBE-POD | nodegauge judge -
      all_reduce_perf -b 8 -e 1G -f 2 -g 8 | nodegauge judge -
      kubectl get nodereport NODE -o yaml | nodegauge judge -
    """
    asked = _Asked.of(policy)
    found = report_or_result(file, collective=Collective(collective) if collective else None)
    if isinstance(found, Report) and earlier is not None:
        raise click.UsageError("--before is for results: a NodeReport has its past in it")
    judgement: Judgement | NcclJudgement
    if isinstance(found, Result) and found.probe == "health":
        judgement = of_health = _health(found, earlier=earlier, asked=asked)
        say = partial(show, found, of_health)
    elif isinstance(found, Result):
        judgement = of_nccl = _nccl(name_of(file), found, earlier=earlier, asked=asked)
        say = partial(show_nccl, of_nccl, node=found.node)
    else:
        judgement = of_nccl = _regraded(name_of(file), found, asked)
        say = partial(show_nccl, of_nccl, node=found.name)
    if form == "json":
        sys.stdout.write(_json(judgement))
    else:
        say()
    raise SystemExit(EXIT_CODES.get(judgement.verdict, EXIT_UNKNOWN))


class _Asked(NamedTuple):
    """What to judge by."""

    thresholds: Thresholds
    expectations: Expectations

    @classmethod
    def of(cls, policy: Path | None) -> _Asked:
        """By a policy, or by the defaults."""
        spec = _spec(policy) if policy is not None else {}
        return cls(_thresholds(policy, spec), _expectations(policy, spec))


def _health(found: Result, *, earlier: BinaryIO | None, asked: _Asked) -> Judgement:
    history = None
    if earlier is not None:
        before = _alike(earlier, "health")
        history = judge_health(before, thresholds=asked.thresholds).history
    return judge_health(found, thresholds=asked.thresholds, history=history)


def _nccl(name: str, found: Result, *, earlier: BinaryIO | None, asked: _Asked) -> NcclJudgement:
    if found.probe != "nccl":
        raise BadInput(f"{name}: a result of probe {found.probe!r}; `health` and `nccl` can be judged")
    before = ""
    if earlier is not None:
        before = judge_nccl(_alike(earlier, "nccl"), **asked._asdict()).record
    return judge_nccl(found, previous=before, **asked._asdict())


def _regraded(name: str, report: Report, asked: _Asked) -> NcclJudgement:
    raw = report.status.probe(names.PROBE_NCCL).history
    if not raw:
        raise BadInput(f"{name}: the {names.REPORT_KIND} of {report.name} holds no benchmark to grade again")
    return regrade(raw, **asked._asdict())


def _alike(file: BinaryIO, probe: str) -> Result:
    """The earlier result, which must be of the same probe."""
    found = report_or_result(file)
    if not isinstance(found, Result) or found.probe != probe:
        raise BadInput(f"{name_of(file)}: expected an earlier result of probe {probe!r}")
    return found


def _json(judgement: Judgement | NcclJudgement) -> str:
    return msgspec.json.format(msgspec.json.encode(judgement), indent=2).decode() + "\n"


def _spec(path: Path) -> dict[str, Any]:
    """`spec` of the one policy in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    policies = [body for body in yaml_of(path, text) if body.get("kind") == names.POLICY_KIND]
    if len(policies) != 1:
        raise BadInput(f"{path}: {len(policies)} documents of kind {names.POLICY_KIND}, expected one")
    spec = policies[0].get("spec") or {}
    if not isinstance(spec, dict):
        raise BadInput(f"{path}: spec must be a mapping")
    return spec


def _thresholds(path: Path | None, spec: dict[str, Any]) -> Thresholds:
    said = spec.get("thresholds") or {}
    if not isinstance(said, dict):
        raise BadInput(f"{path}: spec.thresholds must be a mapping of names to numbers")
    try:
        return Thresholds.of(said)
    except ThresholdsInvalid as error:
        raise BadInput(f"{path}: {error}") from None


def _expectations(path: Path | None, spec: dict[str, Any]) -> Expectations:
    """The built-in rows, with the policy's before them."""
    try:
        own = msgspec.convert(spec.get("expectations") or [], list[Expectation])
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: spec.expectations: {error}") from None
    return Expectations.default().with_policy(own)
