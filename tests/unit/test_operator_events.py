"""Events: each change is posted once, and only changes are."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Power, Repair, Result, Sensor, Temperature
from nodegauge_contract.matrix import render
from nodegauge_judge import GpuIdentity, Verdict, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.evidence import ProbeEvidence
from nodegauge_operator.api.report import Run
from nodegauge_operator.core import evidence
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, Unavailable
from support import schema
from support.api_server import EVENTS, EVIDENCE, NODES, POLICIES, REPORTS, Body
from support.client import unavailable
from support.disturbing import disturbed
from support.objects import INTERVAL, STALE
from support.operator import SteppedOperator, one_node
from support.properties import tried


@pytest.fixture
def operator() -> SteppedOperator:
    """Nothing run yet."""
    return one_node()


def label(operator: SteppedOperator, **labels: str | None) -> None:
    """Somebody else labels the node."""
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})


def run(operator: SteppedOperator, message: str | None = None) -> None:
    """One whole run of the node, also while no run is due."""
    operator.catch_up()
    for pod in operator.cluster.pods():
        operator.cluster.end(pod, operator.cluster.result(pod) if message is None else message)
    catch_up(operator)


def catch_up(operator: SteppedOperator) -> None:
    """See everything, write everything, begin no run."""
    for _ in range(2):
        operator.catch_up(granted=False)


def reasons(operator: SteppedOperator) -> list[str]:
    """The reasons of all events, in order."""
    return [reason for reason, _ in operator.events]


def test_a_conflict_is_told_once_with_the_way_out(operator: SteppedOperator) -> None:
    """However many runs find it there."""
    run(operator)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    for _ in range(3):
        operator.cluster.pass_time(INTERVAL)
        run(operator)
    assert reasons(operator) == ["Validated", "LabelConflict"]
    assert "interconnect=infiniband" in operator.events[1][1]
    assert "takeOver" in operator.events[1][1]


CAPPED = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)


def test_a_finding_whose_event_found_no_answer_is_not_lost_to_a_conflict(operator: SteppedOperator) -> None:
    """What is young and not yet posted goes first."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    operator.cluster.results["node-1"] = made.with_gpu(made.titan(), 0, power=CAPPED)
    operator.refuse("POST", EVENTS, unavailable())
    run(operator)
    operator.heal()
    label(operator, interconnect="infiniband")
    catch_up(operator)
    assert reasons(operator) == ["Validated", "Warnings", "LabelConflict"]


def test_staleness_is_told_once_and_kubectl_describe_shows_events_in_their_order(
    operator: SteppedOperator,
) -> None:
    """At the moment when the labels go, not at every failed run after it.  kubectl sorts by `lastTimestamp`
    alone, which events.k8s.io/v1 refuses."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    for _ in range(12):
        operator.cluster.pass_time(STALE / 4)
        run(operator, "garbage")
    assert reasons(operator) == ["Validated", "LabelConflict", "ProbeFailed", "Stale"]
    posted = list(operator.cluster.objects[EVENTS].values())
    times = [body["lastTimestamp"] for body in posted]
    assert times == sorted(set(times))
    assert [body["firstTimestamp"] for body in posted] == times
    assert [body["eventTime"][:19] + "Z" for body in posted] == times
    assert {(body["apiVersion"], body["count"]) for body in posted} == {("v1", 1)}


def test_an_event_shows_only_what_changed(operator: SteppedOperator) -> None:
    """Another verdict with the same interconnect: "nvlink 50 GB/s -> nvlink 50 GB/s" is no news."""
    run(operator)
    for changed in (made.with_gpu(made.titan(), 0, power=CAPPED), made.with_pair(made.titan(), 0, 1, read=1)):
        operator.cluster.pass_time(INTERVAL)
        operator.cluster.results["node-1"] = changed
        run(operator)
    (_, warned, refused) = [message for _, message in operator.events]
    assert "->" not in warned
    assert "Interconnect: nvlink 50 GB/s -> none" in refused


def change_policy(operator: SteppedOperator, spec: Body) -> None:
    """Somebody edits the policy."""
    generation = operator.cluster.objects[POLICIES]["default"]["metadata"]["generation"] + 1
    operator.cluster.change(POLICIES, "default", {"metadata": {"generation": generation}, "spec": spec})
    catch_up(operator)


def released(operator: SteppedOperator) -> list[str]:
    """Messages of events that tell what was removed."""
    return [message for reason, message in operator.events if reason == "Released"]


def test_a_mode_that_strips_a_node_says_so_each_time(operator: SteppedOperator) -> None:
    """With what was removed; looking again says nothing."""
    run(operator)
    for _ in range(2):
        change_policy(operator, {"mode": "Observe"})
        catch_up(operator)
        assert "nodegauge.dev/health" not in operator.labels
        change_policy(operator, {"mode": "Enforce"})
    first, _ = released(operator)
    for part in ("mode Observe", "label nodegauge.dev/health=pass", "condition GPUValidated"):
        assert part in first


def test_a_node_that_no_policy_selects_any_more_says_what_it_lost(operator: SteppedOperator) -> None:
    """Once, also if the operator restarts in the middle."""
    run(operator)
    change_policy(operator, {"nodeSelector": {"matchLabels": {"gpu": "none"}}})
    operator.cluster.pass_time(700)
    catch_up(operator)
    assert not operator.cluster.objects[REPORTS]
    operator.restart()
    catch_up(operator)
    (message,) = released(operator)
    assert "no policy selects this node any more (it followed default)" in message
    assert "label interconnect=nvlink" in message


def serial(gpu_index: int) -> str:
    """The serial number of the board in that place."""
    return f"16549220{gpu_index:05d}"


def h100(count: int = 8) -> Result:
    """A healthy machine with serial numbers and ten cards."""
    machine = made.with_ports(made.h100(count), *["ACTIVE"] * 10)
    return replace(machine, gpus=[replace(gpu, serial=serial(gpu.index)) for gpu in machine.gpus])


def broken(count: int = 16) -> Result:
    """So many GPUs that all ask for a reset, all with pending rows, and a dead card."""
    machine = made.switched(count, name="NVIDIA H100 80GB HBM3", links=18, mbps=26_562)
    machine = made.with_ports(machine, "DOWN", *["ACTIVE"] * 9)
    sick = made.every_gpu(machine, repair=Repair(action=1, rows_pending=1), temperature=Temperature(gpu=95))
    return replace(sick, gpus=[replace(gpu, serial=serial(gpu.index)) for gpu in sick.gpus])


def measured_by(operator: SteppedOperator, result: Result | str, *, after: float = INTERVAL) -> list[str]:
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


def test_a_healthy_machine_keeps_everything(operator: SteppedOperator) -> None:
    """Every GPU with its identity, every card, and the whole matrix; the report says where it is."""
    machine = h100()
    assert measured_by(operator, machine).count("POST nodeevidences") == 1
    part = part_of(operator)
    gpus = [(gpu["uuid"], gpu["serial"], gpu["pci"], gpu["nvlinks"]) for gpu in part["gpus"]]
    assert gpus == [(made.uuid(n), serial(n), made.pci(n), 18) for n in range(8)]
    kept, expected = (
        [line.split() for line in text.splitlines()] for text in (part["matrix"], render(machine))
    )
    assert kept == expected
    assert [nic["name"] for nic in part["nics"]] == [f"mlx5_{n}" for n in range(10)]
    assert operator.status["evidence"] == "kubectl get nodeevidence node-1 -o yaml"
    assert [gpu["uuid"] for gpu in operator.status["gpus"]["items"]] == [made.uuid(n) for n in range(8)]


def test_the_most_broken_machine_keeps_everything(operator: SteppedOperator) -> None:
    """Every location of every finding, with its whole message and the identity of its GPU."""
    machine = broken()
    measured_by(operator, machine)
    part = part_of(operator)
    expected = judge_health(machine).locations
    assert len(part["findings"]) == len(expected) > 2 * 16
    assert [finding["message"] for finding in part["findings"]] == [one.message for one in expected]
    asks = [finding for finding in part["findings"] if finding["code"] == "recovery-action"]
    assert [gpu["serial"] for finding in asks for gpu in finding["gpus"]] == [serial(n) for n in range(16)]
    assert part["cut"] == []
    assert len(msgspec.json.encode(operator.status)) < 8192


def test_a_run_that_finds_the_same_writes_no_evidence(operator: SteppedOperator) -> None:
    """Nor one that reads another temperature, power or counter."""
    measured_by(operator, h100())
    measured_by(operator, made.later(h100(), seconds=900))
    warmer = made.every_gpu(made.later(h100(), seconds=1800), temperature=Temperature(gpu=33, gpu_max=85))
    before = dict(part_of(operator))
    assert "nodeevidences" not in " ".join(measured_by(operator, warmer))
    assert "nodeevidences" not in " ".join(measured_by(operator, made.later(h100(), seconds=2700)))
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
def test_a_change_that_a_person_would_look_at_is_written(
    operator: SteppedOperator, change: Callable[[Result], Result]
) -> None:
    """A finding, a board, a driver, the topology; and its end too."""
    measured_by(operator, h100())
    sick = change(made.later(h100(), seconds=900))
    assert measured_by(operator, sick).count("PATCH nodeevidences") == 1
    assert measured_by(operator, made.later(h100(), seconds=1800)).count("PATCH nodeevidences") == 1


def test_it_is_written_again_after_a_day(operator: SteppedOperator) -> None:
    """Its readings are of the last day, and one that somebody deleted comes back."""
    measured_by(operator, h100())
    operator.cluster.remove(EVIDENCE, "node-1")
    assert "POST nodeevidences" in measured_by(operator, h100(), after=86_400.0)
    assert part_of(operator)["run"] == 2


def test_an_unreadable_run_stands_beside_the_last_reading(operator: SteppedOperator) -> None:
    """The identity of the GPUs is wanted most when the driver no longer gives it; a good run ends it."""
    measured_by(operator, h100())
    measured_by(operator, replace(made.h100(), gpus=[]))
    assert part_of(operator, "health-unreadable")["findings"][0]["code"] == "gpus-not-visible"
    assert len(part_of(operator)["gpus"]) == 8
    measured_by(operator, made.later(h100(), seconds=1800))
    assert "health-unreadable" not in operator.cluster.objects[EVIDENCE]["node-1"]["probes"]


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (NotFound("404", status=404), 1),
        (Forbidden("no right", status=403), 1),
        (Unavailable("timeout"), 0),
        (Refused("too large", status=422), 0),
    ],
)
def test_evidence_that_is_refused_holds_up_nothing(
    operator: SteppedOperator, error: KubeError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without its CRD or rights, and one line says then what to apply.  A slow webhook delays one run a
    minute, not every node.  The next run that may writes it."""
    calls: list[str] = []

    def refuse(verb: str, path: str) -> KubeError | None:
        calls.extend([verb] if names.EVIDENCE_PLURAL in path else [])
        return error if names.EVIDENCE_PLURAL in path else None

    operator.client.refuse = refuse
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            measured_by(operator, made.later(broken(), seconds=900 * number))
            assert number or len(calls) == 1
    assert operator.probe["lastRun"]["number"] == 3
    assert operator.status["desired"]["taints"]
    assert (operator.status.get("evidence", ""), list(operator.cluster.pods())) == ("", [])
    apply = "kubectl apply -f crds/nodeevidences.yaml"
    assert [apply in record.getMessage() for record in caplog.records].count(True) == lines
    operator.heal()
    assert "POST nodeevidences" in measured_by(operator, made.later(broken(), seconds=2700))
    assert len(part_of(operator)["gpus"]) == 16


def test_a_new_report_takes_the_evidence_over(operator: SteppedOperator) -> None:
    """What another report's runs had left there goes, and the owner is the new one."""
    measured_by(operator, h100())
    left = {"metadata": {}, "probes": {"nccl": part_of(operator)}}
    operator.cluster.patch(EVIDENCE, "node-1", left)
    kept = operator.cluster.objects[EVIDENCE]["node-1"]
    operator.cluster.remove(REPORTS, "node-1")
    operator.cluster.objects[EVIDENCE]["node-1"] = kept
    operator.deliver()
    operator.catch_up(granted=False)
    measured_by(operator, h100())
    (owner,) = operator.cluster.objects[EVIDENCE]["node-1"]["metadata"]["ownerReferences"]
    assert owner["uid"] == operator.cluster.objects[REPORTS]["node-1"]["metadata"]["uid"]
    assert list(operator.cluster.objects[EVIDENCE]["node-1"]["probes"]) == ["health"]


def of(result: Result) -> ProbeEvidence:
    """The evidence of one run."""
    run, missing = Run(number=1, finished_at="2026-01-31T12:00:00Z"), [GpuIdentity(uuid="GPU-1")]
    return evidence.of_run(result, judge_health(result), run=run, policy="default", missing=missing)


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
    part = msgspec.to_builtins(of(disturbed(broken(4), seed=seed, times=times)))
    rules = schema.schema(names.EVIDENCE_PLURAL)
    body = msgspec.json.decode(msgspec.json.encode({"metadata": {}, "probes": {"health": part}}))
    assert schema.errors(body, rules) == []
    assert schema.prune(body, rules) == body
