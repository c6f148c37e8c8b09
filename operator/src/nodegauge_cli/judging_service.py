"""`judge` of the archive for Ansible: a JSON request on standard input, judgements on standard output.

    {"documents": [TEXT, ...], "policy": {...}, "before": [null, TEXT, [TEXT, ...], ...], "node": {...}}

`documents`: results, logs of nccl-tests, pasted output, NodeReports or ChassisReadings.  `policy`: a
GPUValidationPolicy or its spec.  `before`: for each document none, one or more earlier results of the same
node, the oldest first.  `node`: see `Facts`.  All but `documents` may be missing or null.  The answer has a
judgement or an error for each document, with `page`, what a page shows of it (`page.judged.Part` as text); a
request or a policy that cannot be read is one error for all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from nodegauge_cli.documents import READ_LIMIT, Document, chassis_reading, parts_of
from nodegauge_cli.judging import (
    AnyJudgement,
    Criteria,
    NoHistory,
    judged,
    outside_cluster,
    power_inventory,
    read_line,
)
from nodegauge_cli.page.judged import part_of
from nodegauge_cli.reported import Reported, Unusable, worst
from nodegauge_contract import Result
from nodegauge_contract.chassis import ChassisReading
from nodegauge_judge import CATALOGUE, Finding, NodeFacts, Sharing, Verdict
from nodegauge_judge.chassis.judge import ChassisJudgement, judge_chassis
from nodegauge_operator import names
from nodegauge_operator.api.policy import ExpectedGpus, PolicySpec
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.core import decision

BAD_REQUEST = 2
REPORT = "report"
"""Stands for the probe in the judgement of a NodeReport, which has all of them."""
REQUEST_LIMIT = 64 * READ_LIMIT
MAX_SUPPLIES = 64


class Facts(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What is known about the host.  `name`: as its results should have it; `expectedGpus` and
    `powerInventory` override the policy's; `gpuCapacity` and `sharing` are the cluster's, if it is in one;
    `suppliesNeeded`: supplies that carry it under full load (for a ChassisReading)."""

    name: str = ""
    expected_gpus: ExpectedGpus = 0
    gpu_capacity: int | None = None
    sharing: Sharing = Sharing.EXCLUSIVE
    power_inventory: dict[str, Any] = {}
    supplies_needed: Annotated[int, Meta(ge=1, le=MAX_SUPPLIES)] | None = None


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be judged."""

    documents: list[str]
    policy: dict[str, Any] | None = None
    before: list[str | list[str] | None] | None = None
    node: Facts | None = None


def main(version: str) -> int:
    """Answer the request on standard input; the exit code: 0, or 2 for an error that concerns all."""
    answer: dict[str, Any] = {"version": version}
    code = 0
    try:
        answer["judgements"] = judgements(sys.stdin.buffer.read(REQUEST_LIMIT + 1))
    except Unusable as error:
        answer["error"], code = str(error), BAD_REQUEST
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
    return code


def judgements(data: bytes) -> list[dict[str, Any]]:
    """A judgement or an error for each document of the request.  Raises `Unusable`."""
    request = _request(data)
    facts = request.node or Facts()
    criteria = _criteria(_spec(request.policy), facts)
    before = [None] * len(request.documents) if request.before is None else request.before
    if len(before) != len(request.documents):
        raise Unusable(
            f"request: before has {len(before)} entries, documents has {len(request.documents)}: "
            "give one for each, null where there is none"
        )
    return [
        _judgement(f"documents[{number}]", document, earlier, criteria=criteria, facts=facts)
        for number, (document, earlier) in enumerate(zip(request.documents, before, strict=True))
    ]


def _request(data: bytes) -> Request:
    if len(data) > REQUEST_LIMIT:
        raise Unusable(f"request: more than {REQUEST_LIMIT} bytes: judge fewer documents at a time")
    try:
        return msgspec.json.decode(data, type=Request)
    except msgspec.DecodeError as error:
        raise Unusable(f"request: {str(error).replace('`$.', '`')}") from None


def _spec(policy: dict[str, Any] | None) -> dict[str, Any]:
    """`spec` of the policy, which may be a whole object; a field that no policy has is an error."""
    policy = policy or {}
    whole = "spec" in policy or "kind" in policy
    if whole and policy.get("kind", names.POLICY_KIND) != names.POLICY_KIND:
        raise Unusable(f"policy: kind {policy['kind']!r}, expected {names.POLICY_KIND}")
    spec = (policy.get("spec") or {}) if whole else policy
    if not isinstance(spec, dict):
        raise Unusable("policy: spec must be a mapping")
    fields = PolicySpec.__struct_encode_fields__
    if unknown := [str(key) for key in spec if key not in fields]:
        raise Unusable(
            f"policy: no such field in spec: {', '.join(unknown)} (there are: {', '.join(sorted(fields))})"
        )
    return spec


def _criteria(spec: dict[str, Any], facts: Facts) -> Criteria:
    try:
        criteria = Criteria.from_spec(spec)
    except Unusable as error:
        raise Unusable(f"policy: {error}") from None
    try:
        power = power_inventory(facts.power_inventory) if facts.power_inventory else criteria.node.power
    except Unusable as error:
        raise Unusable(f"node.powerInventory: {error}") from None
    node = NodeFacts(
        gpu_capacity=facts.gpu_capacity,
        sharing=facts.sharing,
        expected_gpus=facts.expected_gpus or criteria.node.expected_gpus,
        power=power,
        xids=criteria.node.xids,
    )
    return criteria._replace(node=node)


def _judgement(
    name: str, text: str, earlier: str | list[str] | None, *, criteria: Criteria, facts: Facts
) -> dict[str, Any]:
    try:
        reading = chassis_reading(_limited(text))
        if reading is not None:
            needed = facts.supplies_needed
            chassis = judge_chassis(reading, thresholds=criteria.thresholds, needed=needed)
            chassis = replace(chassis, findings=outside_cluster(chassis.findings))
            return {
                "probe": "bmc",
                "node": facts.name,
                "labels": {},
                "steps": _steps(chassis.findings, node=facts.name, cluster=False),
                "page": _page(reading, chassis, criteria),
                **msgspec.to_builtins(chassis),
            }
        texts = [earlier] if isinstance(earlier, str) else earlier or []
        before = [document for each in texts for document in _earlier(each)]
        document, judgement = _worst(text, criteria, before)
    except Unusable as error:
        return {"error": f"{name}: {error}"}
    except NoHistory as error:
        return {"error": f"{name}: before is for {error}"}
    probe = document.probe if isinstance(document, Result) else REPORT
    node = document.node
    labels = _labels(document, criteria) if isinstance(document, Result) and probe == "health" else {}
    node = facts.name or node
    steps = _steps(judgement.findings, node=node, cluster=probe == REPORT)
    return {
        "probe": probe,
        "node": node,
        "labels": labels,
        "read": read_line(judgement),
        "steps": steps,
        "page": _page(document, judgement, criteria),
        **msgspec.to_builtins(judgement),
    }


def _page(
    document: Document | ChassisReading, judgement: AnyJudgement | ChassisJudgement, criteria: Criteria
) -> str:
    """What the page of the role `report` shows of it, as JSON text; empty for a NodeReport."""
    if isinstance(document, Reported):
        return ""
    return msgspec.json.encode(part_of(document, judgement, criteria=criteria)).decode()


def _steps(findings: Iterable[Finding], *, node: str, cluster: bool) -> dict[str, list[str]]:
    """What to do about each code, as the command line prints it."""
    known = [finding for finding in findings if finding.code in CATALOGUE]
    return {
        finding.code: CATALOGUE[finding.code].steps(finding, node=node, cluster=cluster) for finding in known
    }


def _limited(text: str) -> str:
    if len(text) > READ_LIMIT:
        raise Unusable(f"more than {READ_LIMIT} characters; a result is far smaller")
    return text


def _worst(text: str, criteria: Criteria, before: list[Document]) -> tuple[Document, AnyJudgement]:
    """The document of the text that has the worst judgement, which counts.  Raises `Unusable`, also if a part
    cannot be judged, unless another one fails."""
    refused: list[Unusable] = []
    every: list[tuple[Document, AnyJudgement]] = []
    for _, document in parts_of(text):
        if isinstance(document, Unusable):
            refused.append(document)
        else:
            every.append((document, judged(document, criteria, earlier=before, cluster=False)))
    verdict = worst(judgement.verdict for _, judgement in every)
    if refused and verdict is not Verdict.FAIL:
        raise refused[0]
    return next((each for each in every if worst([each[1].verdict]) is verdict), every[0])


def _earlier(text: str) -> list[Document]:
    try:
        parts = parts_of(_limited(text))
        if refused := [part.document for part in parts if isinstance(part.document, Unusable)]:
            raise refused[0]
        return [part.document for part in parts if not isinstance(part.document, Unusable)]
    except Unusable as error:
        raise Unusable(f"before: {error}") from None


def _labels(result: Result, criteria: Criteria) -> dict[str, str]:
    """What the operator would label a node with after this as its first result, but for the time."""
    facts = criteria.node
    spec = PolicySpec(
        node_selector=Selector(),
        thresholds=criteria.thresholds,
        expected_gpus=facts.expected_gpus or 0,
        power_inventory=facts.power or PolicySpec(node_selector=Selector()).power_inventory,
        xids=criteria.xids,
    )
    status = decision.of_first_result(
        result,
        spec=spec,
        gpu_capacity=facts.gpu_capacity,
        shared=facts.sharing is Sharing.SHARED,
        now=time.time(),
    )
    return {key: value for key, value in status.desired.labels.items() if key != names.LABEL_VALIDATED_AT}
