"""`nodegauge judge FILE`: judge a probe's result without a cluster or a GPU.

It reads the output of a probe (`python -m nodegauge_probes health`, `nccl` or `load`), a termination message,
a pod's log with either of them, a log of nccl-tests, pasted output of nvidia-smi, or a NodeReport, whose NCCL
run it grades again.  The judgement is the operator's for a node without history, or with the history that
`--before` gives.  Scripts can rely on the exit code: 0 pass or warn, 1 fail, 2 bad input, 3 unknown.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
import msgspec
import yaml
from msgspec.structs import replace

from nodegauge_cli.inputs import BadInput, name_of, one_of_kind, report_or_result
from nodegauge_cli.judge_load_text import show_load
from nodegauge_cli.judge_text import show_health, show_nccl
from nodegauge_contract import Collective, Result
from nodegauge_contract.model import PASTED
from nodegauge_judge import Judgement, NodeFacts, Thresholds, ThresholdsInvalid, Verdict, judge_health
from nodegauge_judge.load_rules.judge import LoadJudgement, judge_load
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_judge.power_inventory import PowerInventory
from nodegauge_operator import names
from nodegauge_operator.api.policy import ExpectedGpus
from nodegauge_operator.api.report import Report

AnyJudgement = Judgement | NcclJudgement | LoadJudgement
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
    help="Print text, or the judgement as JSON.",
)
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use the thresholds and expectations of this GPUValidationPolicy (YAML).",
)
@click.option(
    "--power-inventory",
    "cables",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare power limits with the cables and the supply in this file (YAML); not the policy's.",
)
@click.option(
    "--before",
    "earlier",
    type=click.File("rb"),
    help="An earlier result of the same node. Counters are then judged by their growth.",
)
@click.option(
    "--collective",
    type=click.Choice([one.value for one in Collective]),
    help="The collective in a log of nccl-tests, if the log does not name it.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="The GPUs, all of one node, in a log of nccl-tests that does not list them.",
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

    FILE is - for standard input.  Of nvidia-smi it reads what people paste: `topo -m`,
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
    criteria = _Criteria.of(policy, cables)
    document = report_or_result(file, collective=Collective(collective) if collective else None, ranks=ranks)
    if cables is not None and (isinstance(document, Report) or document.probe not in ("health", PASTED)):
        raise click.UsageError("--power-inventory is for results of the health probe and for pasted output")
    judgement: AnyJudgement
    if isinstance(document, Report):
        if earlier is not None:
            raise click.UsageError("--before is for results; a NodeReport contains its own history")
        judgement = nccl = _regraded(name_of(file), document, criteria)
        show = partial(show_nccl, nccl, node=document.name)
    elif document.probe in ("health", PASTED):
        if document.probe == PASTED and earlier is not None:
            raise click.UsageError(
                "--before is for results of probes; nobody knows what happened between two pastes"
            )
        judgement = health = _health(document, earlier=earlier, criteria=criteria)
        show = partial(show_health, document, health)
    elif document.probe == names.PROBE_LOAD:
        if earlier is not None:
            raise click.UsageError(
                "--before is for results of `health` and `nccl`; load runs have no history"
            )
        judgement = load = judge_load(document, thresholds=criteria.thresholds)
        show = partial(show_load, document, load)
    else:
        judgement = nccl = _nccl(name_of(file), document, earlier=earlier, criteria=criteria)
        show = partial(show_nccl, nccl, node=document.node)
    if form == "json":
        sys.stdout.write(_json(judgement))
    else:
        show()
    raise SystemExit(EXIT_CODES.get(judgement.verdict, EXIT_UNKNOWN))


class _Criteria(NamedTuple):
    """What results are judged by."""

    thresholds: Thresholds
    expectations: Expectations
    node: NodeFacts

    @classmethod
    def of(cls, policy: Path | None, cables: Path | None) -> _Criteria:
        """Those of a policy, or the defaults; `cables` is a file with a power inventory."""
        spec = _spec(policy) if policy is not None else {}
        node = _node(policy, spec)
        if cables is not None:
            node = replace(node, power=_power(cables, _yaml(cables), prefix=""))
        return cls(_thresholds(policy, spec), _expectations(policy, spec), node)


def _health(result: Result, *, earlier: BinaryIO | None, criteria: _Criteria) -> Judgement:
    history = None
    if earlier is not None:
        before = _earlier_result(earlier, "health")
        history = judge_health(before, thresholds=criteria.thresholds, node=criteria.node).history
    return judge_health(result, thresholds=criteria.thresholds, history=history, node=criteria.node)


def _nccl(name: str, result: Result, *, earlier: BinaryIO | None, criteria: _Criteria) -> NcclJudgement:
    if result.probe != "nccl":
        raise BadInput(
            f"{name}: results of probe {result.probe!r} cannot be judged, only `health`, `nccl` and `load`"
        )
    previous = ""
    if earlier is not None:
        previous = judge_nccl(_earlier_result(earlier, "nccl"), **criteria._asdict()).record
    return judge_nccl(result, previous=previous, **criteria._asdict())


def _regraded(name: str, report: Report, criteria: _Criteria) -> NcclJudgement:
    record = report.status.probe(names.PROBE_NCCL).history
    if not record:
        raise BadInput(f"{name}: the {names.REPORT_KIND} of {report.name} contains no NCCL run")
    return regrade(record, known=report.status.gpus.known(), **criteria._asdict())


def _earlier_result(file: BinaryIO, probe: str) -> Result:
    """The earlier result, which must be of the same probe."""
    result = report_or_result(file)
    if not isinstance(result, Result) or result.probe != probe:
        raise BadInput(f"{name_of(file)}: expected an earlier result of probe {probe!r}")
    return result


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
    spec = one_of_kind(path, _text(path), names.POLICY_KIND).get("spec") or {}
    if not isinstance(spec, dict):
        raise BadInput(f"{path}: spec must be a mapping")
    return spec


def _thresholds(path: Path | None, spec: dict[str, Any]) -> Thresholds:
    values = spec.get("thresholds") or {}
    if not isinstance(values, dict):
        raise BadInput(f"{path}: spec.thresholds must be a mapping of names to numbers")
    try:
        return Thresholds.of(values)
    except ThresholdsInvalid as error:
        raise BadInput(f"{path}: {error}") from None


def _node(path: Path | None, spec: dict[str, Any]) -> NodeFacts:
    """What the policy says about the node."""
    try:
        expected = msgspec.convert(spec.get("expectedGpus") or 0, ExpectedGpus) or None
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: spec.expectedGpus: {error}") from None
    power = _power(path, spec.get("powerInventory") or {}, prefix="spec.powerInventory: ")
    return NodeFacts(expected_gpus=expected, power=power)


def _power(path: Path | None, document: Any, *, prefix: str) -> PowerInventory:
    try:
        return PowerInventory.of_file(document)
    except ValueError as error:
        raise BadInput(f"{path}: {prefix}{error}") from None


def _expectations(path: Path | None, spec: dict[str, Any]) -> Expectations:
    """The policy's expectations, then the published ones."""
    try:
        expectations = msgspec.convert(spec.get("expectations") or [], list[Expectation])
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: spec.expectations: {error}") from None
    return Expectations.default().with_policy(expectations)
