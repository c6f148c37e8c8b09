"""From a policy and a document to its judgement: what `nodegauge judge` and the archive for Ansible share.

Must not print or read files.  The judgement is the operator's for a node without history, or with the history
that earlier results give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_cli.documents import Document
from nodegauge_cli.reported import Fresh, Reported, ReportJudgement, Unusable, judge_reported
from nodegauge_contract import Result
from nodegauge_contract.model import PASTED
from nodegauge_judge import (
    CATALOGUE,
    Finding,
    GpuIdentity,
    History,
    Judgement,
    NodeFacts,
    Thresholds,
    ThresholdsInvalid,
    Verdict,
    judge_health,
)
from nodegauge_judge.case import identity
from nodegauge_judge.feed.judge import FeedJudgement, judge_feed
from nodegauge_judge.history.model import uuid_start
from nodegauge_judge.loadtest_rules.judge import LoadJudgement, judge_load
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_judge.power_inventory import PowerInventory
from nodegauge_operator import names
from nodegauge_operator.api.policy import ExpectedGpus, XidRuleSpec, seconds
from nodegauge_operator.api.probe_settings import HealthProbe
from nodegauge_operator.api.report import ProbeStatus

AnyJudgement = Judgement | NcclJudgement | LoadJudgement | FeedJudgement | ReportJudgement
JUDGED = (names.PROBE_HEALTH, names.PROBE_NCCL, names.PROBE_LOAD, names.PROBE_FEED)
"""Probes whose results can be judged."""
EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1}
EXIT_UNKNOWN = 3


_WITHOUT_HISTORY = {
    PASTED: "results of probes; what happened between two pastes is unknown",
    names.PROBE_LOAD: "results of `health` and `nccl`; load runs have no history",
    names.PROBE_FEED: "results of `health` and `nccl`; each feed window stands alone",
}
"""Why documents of a probe are judged without earlier ones."""


class NoHistory(Exception):
    """This document cannot be judged with an earlier one; the message says for what earlier ones are."""


class Criteria(NamedTuple):
    """What results are judged by.  `interval`: seconds between two health readings; `xids`: rules as the
    policy has them, which `node` has as the judge takes them."""

    thresholds: Thresholds
    expectations: Expectations
    node: NodeFacts
    interval: float
    xids: tuple[XidRuleSpec, ...] = ()

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Criteria:
        """Those of a policy's `spec`; the defaults where it says nothing.  Raises `Unusable`."""
        xids = _xids(spec)
        return cls(_thresholds(spec), _expectations(spec), _node(spec, xids), _interval(spec), xids)

    def without_interval(self) -> dict[str, Any]:
        """What NCCL runs are judged by."""
        return {"thresholds": self.thresholds, "expectations": self.expectations, "node": self.node}


class Kept(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the next judgement of a node needs of its earlier ones, as a NodeReport keeps it."""

    health: str = ""
    """`History.encode`; empty before the first reading."""
    nccl: str = ""
    """`NcclJudgement.record`; empty before the first run."""
    gpus: list[GpuIdentity] = []
    """The GPUs that the node has, or had and lost."""

    def after(self, result: Result, judgement: AnyJudgement) -> Kept:
        """With one more judgement."""
        if isinstance(judgement, NcclJudgement):
            return replace(self, nccl=judgement.record)
        if not isinstance(judgement, Judgement):
            return self
        known = {gpu.uuid: gpu for gpu in (*self.gpus, *map(identity, result.gpus)) if gpu.uuid}
        starts = tuple(map(uuid_start, judgement.history.gpus))
        gpus = [gpu for uuid, gpu in known.items() if uuid.startswith(starts)]
        return replace(self, health=judgement.history.encode(), gpus=gpus)


def judged(
    document: Document,
    criteria: Criteria,
    *,
    earlier: Sequence[Document] = (),
    kept: Kept | None = None,
    read_at: float = 0.0,
    cluster: bool = True,
) -> AnyJudgement:
    """The judgement.  `earlier`: results of the same probe on the same node, the oldest first; `kept`: what
    is known of the node from before them.  `read_at`: epoch seconds; 0 if unknown.  Without `cluster`, and of
    a paste or a log, which name no node, the findings say what to do on a single machine.

    Raises `Unusable` and `NoHistory`.
    """
    if isinstance(document, Reported):
        if earlier:
            raise NoHistory("results; a NodeReport contains its own history")
        return judge_reported(document, partial(_fresh, document, criteria))
    kept = kept or Kept()
    for before in _of_probe(earlier, document.probe):  # as a report keeps it from run to run
        kept = kept.after(before, _of_result(before, criteria, kept))
    judgement = _of_result(document, criteria, kept, read_at=read_at)
    if cluster and document.node and document.probe != PASTED:
        return judgement
    findings, locations = map(outside_cluster, (judgement.findings, judgement.locations))
    return replace(judgement, findings=findings, locations=locations)


def read_line(judgement: AnyJudgement) -> str:
    """What was read of what should have been, in one line; empty for a judgement that does not say."""
    if isinstance(judgement, Judgement) and judgement.coverage is not None:
        return judgement.coverage.text
    return ""


def outside_cluster(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with next steps for a machine without a cluster."""
    return [CATALOGUE[finding.code].outside_cluster(finding) for finding in findings]


def _of_result(
    document: Result, criteria: Criteria, kept: Kept, *, read_at: float = 0.0
) -> Judgement | NcclJudgement | LoadJudgement | FeedJudgement:
    history = History.decode(kept.health)
    if document.probe in (names.PROBE_HEALTH, PASTED):
        return judge_health(
            document,
            thresholds=criteria.thresholds,
            node=criteria.node,
            interval=criteria.interval,
            history=history,
            known=kept.gpus,
            read_at=read_at,
        )
    if document.probe == names.PROBE_LOAD:
        return judge_load(document, thresholds=criteria.thresholds, known=kept.gpus)
    if document.probe == names.PROBE_FEED:
        return judge_feed(document)
    if document.probe != names.PROBE_NCCL:
        raise Unusable(
            f"results of probe {document.probe!r} cannot be judged, only `health`, `nccl`, `load` and `feed`"
        )
    options = criteria.without_interval()
    return judge_nccl(document, previous=kept.nccl, history=history, known=kept.gpus, **options)


def power_inventory(document: Any) -> PowerInventory:
    """Cables and supply as a file or a policy states them.  Raises `Unusable`."""
    try:
        return PowerInventory.of_file(document)
    except ValueError as error:
        raise Unusable(str(error)) from None


def _fresh(node: Reported, criteria: Criteria, status: ProbeStatus, result: Result | None) -> Fresh | None:
    """A reading judged anew, else the record that the report has of an NCCL run."""
    if result is not None and result.probe in JUDGED:
        judgement = judged(result, criteria)
    elif status.name == names.PROBE_NCCL and status.history:
        judgement = regraded(node, criteria)
    else:
        return None
    return Fresh(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        coverage=read_line(judgement),
        regraded=result is None,
    )


def regraded(node: Reported, criteria: Criteria) -> NcclJudgement:
    """The NCCL run of a report, graded again by the record of it that the report has."""
    status = node.report.status
    record, known = status.probe[names.PROBE_NCCL].history, status.gpus.known()
    return regrade(record, known=known, **criteria.without_interval())


def _of_probe(earlier: Sequence[Document], probe: str) -> list[Result]:
    """The earlier results.  Raises `NoHistory` if this probe has none, or one is of another probe."""
    if earlier and (refusal := _WITHOUT_HISTORY.get(probe)):
        raise NoHistory(refusal)
    results = [result for result in earlier if isinstance(result, Result) and result.probe == probe]
    if len(results) != len(earlier):
        raise NoHistory(f"an earlier result of the same probe, `{probe}`")
    return results


def _thresholds(spec: Mapping[str, Any]) -> Thresholds:
    values = spec.get("thresholds") or {}
    if not isinstance(values, dict):
        raise Unusable("spec.thresholds must be a mapping of names to numbers")
    try:
        return Thresholds.from_spec(values)
    except ThresholdsInvalid as error:
        raise Unusable(str(error)) from None


def _xids(spec: Mapping[str, Any]) -> tuple[XidRuleSpec, ...]:
    try:
        return msgspec.convert(spec.get("xids") or [], tuple[XidRuleSpec, ...])
    except msgspec.ValidationError as error:
        raise Unusable(f"spec.xids: {error}") from None


def _node(spec: Mapping[str, Any], xids: Sequence[XidRuleSpec]) -> NodeFacts:
    """What the policy says about the node."""
    try:
        expected = msgspec.convert(spec.get("expectedGpus") or 0, ExpectedGpus) or None
    except msgspec.ValidationError as error:
        raise Unusable(f"spec.expectedGpus: {error}") from None
    try:
        power = power_inventory(spec.get("powerInventory") or {})
    except Unusable as error:
        raise Unusable(f"spec.powerInventory: {error}") from None
    return NodeFacts(expected_gpus=expected, power=power, xids=tuple(xid_rule.rule() for xid_rule in xids))


def _expectations(spec: Mapping[str, Any]) -> Expectations:
    """The policy's expectations, then the published ones."""
    try:
        expectations = msgspec.convert(spec.get("expectations") or [], list[Expectation])
    except msgspec.ValidationError as error:
        raise Unusable(f"spec.expectations: {error}") from None
    return Expectations.default().with_policy(expectations)


def _interval(spec: Mapping[str, Any]) -> float:
    """Seconds between two readings in the policy's mode: counters are not judged over more than two."""
    probes = spec.get("probes")
    health = probes.get("health") if isinstance(probes, dict) else None
    try:
        return seconds(msgspec.convert(health or {}, HealthProbe).period)
    except msgspec.ValidationError as error:
        raise Unusable(f"spec.probes.health: {error}") from None
