"""Each kind of probe is one object whose name no other module knows: a new one has all that others have."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Result
from nodegauge_judge import CATALOGUE, Answer, Cause, Finding, Gate, GateKind, Rule, Severity, Verdict
from nodegauge_judge.rule import Observation, Probe
from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget, Policy
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core import gates, probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.label import Label
from nodegauge_operator.core.model import pod_view
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.probes import kind, registry
from nodegauge_operator.core.probes.health import HealthKind
from nodegauge_operator.core.probes.kind import EndedRun, ProbeKind
from nodegauge_operator.core.probes.registry import EVERY, KINDS, kinds_of, pools
from nodegauge_operator.names import POD_PROBE, PREFIX, READING_PLURAL
from support import schema
from support.api_server import REPORTS
from support.objects import INTERVAL, addressed
from support.operator import SteppedOperator, one_node

TOY = "toy"
ENDED = ("Succeeded", "Failed")


def _broken(result: Result) -> Iterable[Observation]:
    if "wheel" in result.omitted:
        yield Observation(severity=Severity.FAIL, location="wheel", message="The wheel is off.", evidence={})


RULE: Rule[Result] = Rule(
    code="wheel-off",
    title="the wheel is off",
    meaning="A toy without its wheel.",
    when={Severity.FAIL: "always"},
    next_step="put it on.",
    way_out=("Put it on.",),
    check=_broken,
    probe=TOY,
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.PCIE),
    readable=lambda result: True,
)


class Judgement(Struct, frozen=True):
    findings: list[Finding]
    answers: dict[str, Answer]


def _label(context: Context, status: ReportStatus) -> str:
    return status.probe[TOY].verdict.value if TOY in context.counting else ""


class ToyKind(ProbeKind):
    """Runs once an interval, after the health probe."""

    name = TOY
    title = "Toy probe"
    pool = HealthKind.pool
    rules = (RULE,)
    labels = (Label(key=PREFIX + TOY, values="pass | fail", meaning="The toy.", value=_label),)

    def interval(self, context: Context) -> float:
        return INTERVAL

    run_interval = interval

    def deadline(self, policy: Policy) -> float:
        return 60.0

    def due_at(self, context: Context) -> float:
        return kind.finished_at(context.status.probe[TOY]) + INTERVAL

    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        return {"containers": [{"name": "probe", "image": self.image(context)}]}

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        status, result = context.status, ended.end.result
        if result is None:
            return replace(status, probes=status.with_probe(probe_status.unread(context, TOY, ended)))
        findings = RULE.findings(result)
        answers = {RULE.code: Answer.BAD if findings else Answer.GOOD}
        verdict = Verdict.FAIL if findings else Verdict.PASS
        reading = Reading(verdict=verdict, summary="a toy", findings=findings, history="played with")
        numbers, judged = context.policy.spec.hysteresis, Judgement(findings, answers)
        return replace(
            status,
            probes=status.with_probe(probe_status.read(context, TOY, ended, reading)),
            gates=gates.after_run(status.gates, judged, policy=numbers, now=context.now, probe=TOY),
        )


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> SteppedOperator:
    """One node, and an operator that knows the toy as well."""
    toy = ToyKind()
    tables: list[tuple[dict[str, Any], str]] = [(registry.EVERY, TOY), (registry.KINDS, TOY)]
    tables += [(table, RULE.code) for table in (CATALOGUE, gates.GATES, gates.PROBES, gates.TITLES)]
    for table, key in tables:
        monkeypatch.setitem(table, key, None)  # taken out again afterwards
    parts = schema.schema(READING_PLURAL)["properties"]
    monkeypatch.setitem(parts, TOY, parts["health"])
    registry.register(toy)
    return one_node()


def run(operator: SteppedOperator, *, toy: Result | None = None) -> None:
    """Every kind that is due runs; `toy`: what the toy's probe writes, nothing for a probe that crashes."""
    operator.cluster.pass_time(INTERVAL)
    while True:
        operator.catch_up()
        waiting = [pod for pod in operator.cluster.pods() if pod["status"]["phase"] not in ENDED]
        if not waiting:
            return
        for pod in waiting:
            if pod["metadata"]["labels"][POD_PROBE] != TOY:
                operator.cluster.end(pod, operator.cluster.result(pod))
            elif toy is None:
                operator.cluster.end(pod, "", code=1)
            else:
                operator.cluster.end(pod, addressed(toy, pod_view(pod)))


def test_a_kind_that_only_this_module_knows_is_judged_like_any_other(operator: SteppedOperator) -> None:
    run(operator, toy=Result(probe=TOY))
    assert operator.labels[PREFIX + TOY] == operator.labels[PREFIX + "health"] == "pass"
    broken = Result(probe=TOY, omitted=["wheel"])
    run(operator, toy=broken)
    assert (operator.labels[PREFIX + TOY], operator.labels[PREFIX + "health"]) == ("fail", "warn")
    run(operator, toy=broken)
    assert operator.labels[PREFIX + "health"] == "fail"
    assert operator.cluster.taints() == ["unhealthy=pcie:NoSchedule"]
    (part,) = (probe for probe in operator.status["probes"] if probe["name"] == TOY)
    assert (part["verdict"], part["history"], part["streak"]) == ("fail", "played with", 2)
    assert "Toy probe: a toy" in operator.status["summary"]
    assert [gate["code"] for gate in operator.status["gates"]] == [RULE.code]
    assert any("Toy probe: a toy" in message for _, message in operator.events)
    (runs,) = (m for m in operator.metrics.runs.collect())
    counted = {s.labels["probe"]: s.value for s in runs.samples if s.name.endswith("_total")}
    assert counted[TOY] == 3


def test_a_kind_that_only_this_module_knows_goes_stale_like_any_other(operator: SteppedOperator) -> None:
    run(operator, toy=Result(probe=TOY))
    for _ in range(4):
        run(operator)
    assert PREFIX + TOY not in operator.labels
    assert operator.labels[PREFIX + "health"] == "pass"
    assert operator.cluster.objects[REPORTS]["node-1"]["status"]["probes"][1]["unread"] == 4


SOURCE = Path(names.__file__).parent
OTHERS = EVERY.keys() - {names.PROBE_HEALTH}


def test_every_probe_has_a_kind_and_every_kind_one_pool() -> None:
    assert tuple(KINDS) == names.PROBES
    assert all(kind.name == name for name, kind in KINDS.items())
    assert [pool.name for pool in pools()] == [names.PROBE_HEALTH, names.PROBE_NCCL]
    assert [kinds_of(pool) for pool in pools()] == [
        (names.PROBE_HEALTH,),
        (names.PROBE_PULL, names.PROBE_NCCL, names.PROBE_LOAD),
    ]
    budget = Budget(concurrent_probes=3, concurrent_nccl_probes=2)
    assert [pool.setting(budget) for pool in pools()] == [3, 2]


def test_no_module_outside_of_the_kinds_knows_one_but_health() -> None:
    """A new kind is a module and a line in the registry: neither a branch nor a table elsewhere has to learn
    of it."""
    offenders = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if "probes" not in path.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and _names_a_kind(node)
    ]
    assert offenders == []


def _names_a_kind(node: ast.Attribute) -> bool:
    """`names.PROBE_NCCL`, `Probe.NCCL` and the like."""
    if isinstance(node.value, ast.Name) and node.value.id == "Probe":
        return getattr(Probe, node.attr, "") in OTHERS
    return node.attr.startswith("PROBE_") and getattr(names, node.attr, "") in OTHERS
