"""NodeEvidence: everything behind a report, for people; written when it changed, and never in the way."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Repair, Result, Sensor, Temperature
from nodegauge_contract.matrix import render
from nodegauge_judge import GpuIdentity, Verdict, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.evidence import ProbeEvidence
from nodegauge_operator.api.report import Run
from nodegauge_operator.core import evidence
from nodegauge_operator.core.probes import health
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, Unavailable
from support import schema
from support.api_server import EVIDENCE, REPORTS, Body
from support.client import Killed
from support.disturbing import disturbed
from support.objects import INTERVAL
from support.operator import SteppedOperator, one_node
from support.properties import tried

DAY = 86_400.0
QUIET = ["POST pods", "PATCH nodereports/status", "DELETE pods"]


def serial(gpu_index: int) -> str:
    """The serial number of the board in that place."""
    return f"16549220{gpu_index:05d}"


def h100(count: int = 8) -> Result:
    """A healthy machine with serial numbers and ten cards."""
    machine = made.with_ports(made.h100(count), *["ACTIVE"] * 10)
    return replace(machine, gpus=[replace(gpu, serial=serial(gpu.index)) for gpu in machine.gpus])


def broken() -> Result:
    """Sixteen GPUs that all ask for a reset, all with pending rows, and a dead card."""
    machine = made.switched(16, name="NVIDIA H100 80GB HBM3", links=18, mbps=26_562)
    machine = made.with_ports(machine, "DOWN", *["ACTIVE"] * 9)
    sick = made.every_gpu(machine, repair=Repair(action=1, rows_pending=1), temperature=Temperature(gpu=95))
    return replace(sick, gpus=[replace(gpu, serial=serial(gpu.index)) for gpu in sick.gpus])


def run(operator: SteppedOperator, result: Result | str, *, after: float = INTERVAL) -> list[str]:
    """What one whole run wrote, `after` seconds later."""
    operator.cluster.pass_time(after)
    operator.client.log.clear()
    operator.reconcile()
    (pod,) = operator.cluster.pods()
    if isinstance(result, Result):
        operator.cluster.results["node-1"] = result
    operator.cluster.end(pod, result if isinstance(result, str) else operator.cluster.result(pod))
    operator.catch_up(granted=False)
    return operator.client.log


def part_of(operator: SteppedOperator, key: str = "health") -> Body:
    """One part of node-1's evidence."""
    return operator.cluster.objects[EVIDENCE]["node-1"]["probes"][key]


@pytest.fixture
def operator() -> SteppedOperator:
    """Nothing run yet."""
    return one_node()


def test_a_healthy_machine_keeps_everything(operator: SteppedOperator) -> None:
    """Every GPU with its identity, every card, and the whole matrix; the report says where it is."""
    machine = h100()
    assert run(operator, machine).count("POST nodeevidences") == 1
    part = part_of(operator)
    assert [(gpu["uuid"], gpu["serial"], gpu["pci"], gpu["nvlinks"]) for gpu in part["gpus"]] == [
        (made.uuid(n), serial(n), made.pci(n), 18) for n in range(8)
    ]
    assert [line.split() for line in part["matrix"].splitlines()] == [
        line.split() for line in render(machine).splitlines()
    ]
    assert [nic["name"] for nic in part["nics"]] == [f"mlx5_{n}" for n in range(10)]
    assert operator.status["evidence"] == "kubectl get nodeevidence node-1 -o yaml"
    assert [gpu["uuid"] for gpu in operator.status["gpus"]["items"]] == [made.uuid(n) for n in range(8)]


def test_the_most_broken_machine_keeps_everything(operator: SteppedOperator) -> None:
    """Every location of every finding, with its whole message and the identity of its GPU."""
    machine = broken()
    run(operator, machine)
    part = part_of(operator)
    expected = judge_health(machine).locations
    assert len(part["findings"]) == len(expected) > 2 * 16
    assert [finding["message"] for finding in part["findings"]] == [one.message for one in expected]
    asks = [finding for finding in part["findings"] if finding["code"] == "recovery-action"]
    assert [gpu["serial"] for finding in asks for gpu in finding["gpus"]] == [serial(n) for n in range(16)]
    assert part["cut"] == []
    assert len(msgspec.json.encode(operator.status)) < 8192


def test_a_person_can_read_it(operator: SteppedOperator) -> None:
    """YAML shows the matrix line by line: no tabs, and no blanks at the ends of lines."""
    run(operator, h100())
    text = yaml.safe_dump(part_of(operator), default_style=None)
    matrix = part_of(operator)["matrix"]
    assert "\t" not in matrix
    assert all(line == line.rstrip() for line in matrix.splitlines())
    assert "serial: '1654922000003'" in text


def test_a_run_that_finds_the_same_writes_no_evidence(operator: SteppedOperator) -> None:
    """Nor one that reads another temperature, power or counter."""
    run(operator, h100())
    run(operator, made.later(h100(), seconds=900))
    warmer = made.every_gpu(made.later(h100(), seconds=1800), temperature=Temperature(gpu=33, gpu_max=85))
    before = dict(part_of(operator))
    assert "nodeevidences" not in " ".join(run(operator, warmer))
    assert "nodeevidences" not in " ".join(run(operator, made.later(h100(), seconds=2700)))
    assert part_of(operator) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda machine: made.with_gpu(machine, 3, repair=Repair(action=1)),
        lambda machine: made.with_gpu(machine, 3, serial="another board"),
        lambda machine: replace(machine, system=replace(machine.system, driver="570.1")),
        lambda machine: replace(machine, nics=replace(machine.nics, to_gpu=[["SYS"] * 8] * 10)),
    ],
    ids=["finding", "board", "driver", "matrix"],
)
def test_a_change_that_a_person_would_look_at_is_written(operator: SteppedOperator, change: object) -> None:
    """A finding, a board, a driver, the topology; and its end too."""
    run(operator, h100())
    sick = change(made.later(h100(), seconds=900))  # type: ignore[operator]
    assert run(operator, sick).count("PATCH nodeevidences") == 1
    assert run(operator, made.later(h100(), seconds=1800)).count("PATCH nodeevidences") == 1


def test_a_run_with_news_is_judged_once(operator: SteppedOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report that follows the evidence is that of the same judgement."""
    judge = Mock(wraps=health.judge_health)
    monkeypatch.setattr(health, "judge_health", judge)
    assert "POST nodeevidences" in run(operator, h100())
    assert judge.call_count == 1


def test_it_is_written_again_after_a_day(operator: SteppedOperator) -> None:
    """Its readings are of the last day, and one that somebody deleted comes back."""
    run(operator, h100())
    operator.cluster.remove(EVIDENCE, "node-1")
    assert "POST nodeevidences" in run(operator, h100(), after=DAY)
    assert part_of(operator)["run"] == 2


def test_an_unreadable_run_stands_beside_the_last_reading(operator: SteppedOperator) -> None:
    """The identity of the GPUs is wanted most when the driver no longer gives it; a good run ends it."""
    run(operator, h100())
    run(operator, replace(made.h100(), gpus=[]))
    assert part_of(operator, "health-unreadable")["findings"][0]["code"] == "gpus-not-visible"
    assert len(part_of(operator)["gpus"]) == 8
    run(operator, made.later(h100(), seconds=1800))
    assert "health-unreadable" not in operator.cluster.objects[EVIDENCE]["node-1"]["probes"]


def test_a_run_without_a_result_writes_no_evidence(operator: SteppedOperator) -> None:
    """There is nothing to hold; the report says what happened."""
    run(operator, h100())
    assert "nodeevidences" not in " ".join(run(operator, "no result"))


@pytest.mark.parametrize(("write", "when"), [(2, "before"), (2, "after"), (3, "before"), (3, "after")])
def test_an_operator_that_is_killed_between_the_writes_has_written_both(write: int, when: str) -> None:
    """Write 2 is the evidence and write 3 the report: the pod has the result until both stand."""
    operator = one_node()
    operator.cluster.results["node-1"] = broken()
    operator.client.kill_at = (write, when)
    with pytest.raises(Killed):
        run(operator, broken())
    operator.restart()
    operator.catch_up(granted=False)
    assert len(part_of(operator)["gpus"]) == 16
    assert operator.probe["lastRun"]["number"] == 1
    assert operator.probe["evidenceDigest"]
    assert list(operator.cluster.pods()) == []


@pytest.mark.parametrize("error", [NotFound("404", status=404), Forbidden("no right", status=403)])
def test_without_the_crd_or_its_rights_everything_else_works(
    operator: SteppedOperator, error: KubeError, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise 3 holds without evidence; one line says what to apply, and once it is there it is written."""
    operator.client.refuse = lambda verb, path: error if names.EVIDENCE_PLURAL in path else None
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            run(operator, made.later(broken(), seconds=900 * number))
    assert operator.probe["lastRun"]["number"] == 3
    assert operator.status["desired"]["taints"]
    assert (operator.status.get("evidence", ""), list(operator.cluster.pods())) == ("", [])
    lines = [record.getMessage() for record in caplog.records if "NodeEvidence" in record.getMessage()]
    assert len(lines) == 1
    assert "kubectl apply -f crds/nodeevidences.yaml" in lines[0]
    operator.heal()
    run(operator, made.later(broken(), seconds=2700))
    assert len(part_of(operator)["gpus"]) == 16


@pytest.mark.parametrize("error", [Unavailable("timeout"), Refused("too large", status=422)])
def test_evidence_that_is_refused_holds_up_nothing(operator: SteppedOperator, error: KubeError) -> None:
    """A slow webhook delays one run a minute, not every node; the next run writes it."""
    calls: list[str] = []

    def refuse(verb: str, path: str) -> KubeError | None:
        if names.EVIDENCE_PLURAL not in path:
            return None
        calls.append(verb)
        return error

    operator.client.refuse = refuse
    run(operator, h100())
    assert operator.probe["lastRun"]["number"] == 1
    assert len(calls) == 1
    operator.heal()
    assert "POST nodeevidences" in run(operator, made.later(h100(), seconds=900))


def test_a_new_report_takes_the_evidence_over(operator: SteppedOperator) -> None:
    """What another report's runs had left there goes, and the owner is the new one."""
    run(operator, h100())
    left = {"metadata": {}, "probes": {"nccl": part_of(operator)}}
    operator.cluster.patch(EVIDENCE, "node-1", left)
    kept = operator.cluster.objects[EVIDENCE]["node-1"]
    operator.cluster.remove(REPORTS, "node-1")
    operator.cluster.objects[EVIDENCE]["node-1"] = kept
    operator.deliver()
    operator.catch_up(granted=False)
    run(operator, h100())
    (owner,) = operator.cluster.objects[EVIDENCE]["node-1"]["metadata"]["ownerReferences"]
    assert owner["uid"] == operator.cluster.objects[REPORTS]["node-1"]["metadata"]["uid"]
    assert list(operator.cluster.objects[EVIDENCE]["node-1"]["probes"]) == ["health"]


def of(result: Result) -> ProbeEvidence:
    """The evidence of one run."""
    return evidence.of_run(
        result,
        judge_health(result),
        run=Run(number=1, finished_at="2026-01-31T12:00:00Z"),
        policy="default",
        missing=[GpuIdentity(uuid="GPU-1")],
    )


def test_the_largest_evidence_is_bounded_and_says_what_is_missing() -> None:
    """Sixty-four GPUs with everything wrong and long names: sensors go first, the worst findings stay."""
    huge = made.switched(64, name="N" * 200, links=18, mbps=26_562)
    huge = made.every_gpu(huge, repair=Repair(action=1, rows_failed=1, rows_pending=1), vbios="V" * 200)
    sensors = [Sensor(chip="c" * 60, name=f"in{n}", label="l" * 60, value=1) for n in range(128)]
    part = of(replace(huge, sensors=sensors))
    assert len(msgspec.json.encode(part)) <= evidence.LIMIT
    assert part.sensors == []
    assert part.cut[0] == "all 128 sensors"
    assert len(part.gpus) == 64
    assert part.findings[0].severity == "fail"
    assert part.verdict is Verdict.FAIL


@given(seed=st.integers(0, 2**32), times=st.integers(1, 40))
@tried(60)
def test_the_evidence_of_any_document_is_valid(seed: int, times: int) -> None:
    """Whatever a broken driver says, the API server accepts it."""
    part = msgspec.to_builtins(of(disturbed(broken(), seed=seed, times=times)))
    rules = schema.schema(names.EVIDENCE_PLURAL)
    body = msgspec.json.decode(msgspec.json.encode({"metadata": {}, "probes": {"health": part}}))
    assert schema.errors(body, rules) == []
    assert schema.prune(body, rules) == body
