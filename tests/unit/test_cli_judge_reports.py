"""`nodegauge judge` of NodeReports: all probes, gates and taints count, with and without the NodeReading."""

import json
from typing import Any

import pytest
import yaml
from msgspec import to_builtins

import support.results as made
from nodegauge_contract import Result, text
from nodegauge_judge import Finding, Severity, Verdict
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_operator import names
from nodegauge_operator.api.report import (
    DesiredNode,
    DesiredTaint,
    GateState,
    GateStatus,
    Outcome,
    ProbeStatus,
    ReportStatus,
    Run,
)
from support.judge_command import FIXTURES, flat, judge
from support.load_results import spoilt
from support.nccl_results import h100

RECORDED = FIXTURES / "nodereport_h100x8_corruption.yaml"
PASS, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN
AT = "2026-11-26T11:48:28Z"
REFUSED = made.with_pair(made.h100(), 0, 1, read=5)
HOT = Finding(code="hot", severity=Severity.WARN, subject="GPU 3 (0000:12:00.0)", message="It is hot.")
LOST = Run(number=2, outcome=Outcome.UNKNOWN, reason="DeadlineExceeded", message="silent for 60 s")


def probe(name: str, verdict: Verdict = PASS, **more: Any) -> ProbeStatus:
    return ProbeStatus(name=name, verdict=verdict, **({"read_at": AT} | more))


def body(kind: str = names.REPORT_KIND, name: str = "n1", **more: Any) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name, "uid": "u"}, **more}


def report(*probes: ProbeStatus, name: str = "n1", **more: Any) -> dict[str, Any]:
    """A healthy node's, but for what is given."""
    known = {each.name: each for each in (probe("health"), *probes)}
    status = {"verdict": PASS, "raw_verdict": PASS, "probes": [*known.values()]} | more
    return body(name=name, status=to_builtins(ReportStatus(**status)))


def reading(name: str = "n1", **parts: Result | str) -> dict[str, Any]:
    """A NodeReading with these parts."""
    header = {"sequence": 1, "at": AT, "pod": "p", "podUID": "1", "nodeUID": "2"}
    texts = {key: part if isinstance(part, str) else text(part) for key, part in parts.items()}
    return body(names.READING_KIND, name, **{key: header | {"reading": part} for key, part in texts.items()})


def gate(state: GateState, code: str = "p2p-refused", **more: Any) -> dict[str, Any]:
    return {"gates": [GateStatus(code=code, state=state, since=AT, subject="node", **more)]}


def tainted(key: str, value: str = "") -> dict[str, Any]:
    return {"desired": DesiredNode(taints=[DesiredTaint(key=key, value=value)])}


def judged(*bodies: dict[str, Any]) -> tuple[int, str]:
    outcome = judge("-", stdin=json.dumps({"kind": "List", "items": list(bodies)}))
    return outcome.exit_code, flat(outcome)


def test_a_node_that_is_tainted_for_corruption_fails_by_its_report_alone() -> None:
    """The example of the command's own help."""
    outcome = judge(RECORDED)
    output = flat(outcome)
    assert (outcome.exit_code, output.split()[:2]) == (1, ["FAIL", "n-h100:"])
    for part in (
        "taint unhealthy=corruption:NoSchedule",
        "gate load-corruption gated since 2026-11-26T11:51:32Z",
        "health PASS",
        "nccl PASS",
        "load FAIL",
        "fail load-corruption GPU 0 (0000:0f:00.0)",
        "`kubectl cordon n-h100`",
        "read health 2026-11-26T11:48:28Z, pull",
    ):
        assert part in output
    assert "..." not in outcome.output
    document = json.loads(judge(RECORDED, "--format", "json").output)
    assert (document["verdict"], document["taints"]) == ("fail", ["unhealthy=corruption:NoSchedule"])


def test_the_evidence_of_an_early_version_has_the_messages_in_full() -> None:
    message = "135 wrong results in 40 s under load."
    finding = {"code": "load-corruption", "severity": "fail", "subject": "GPU 0", "message": message}
    evidence = body("NodeEvidence", "n-h100", probes={"load": {"findings": [finding]}})
    outcome = judge("-", stdin=f"{RECORDED.read_text()}---\n{yaml.safe_dump(evidence)}")
    assert (outcome.exit_code, message in flat(outcome)) == (1, True)


@pytest.mark.parametrize(
    ("bodies", "code", "part"),
    [
        ([report()], 0, "PASS n1"),
        ([report(probe("nccl", findings=[HOT]))], 0, "WARN n1"),
        ([report(probe("load", WARN))], 0, "WARN n1"),
        ([report(probe("feed", WARN))], 0, "PASS n1"),  # a starved job
        ([report(probe("load", FAIL))], 1, "load FAIL"),
        ([report(raw_verdict=FAIL, verdict=WARN)], 1, "FAIL n1"),
        ([report(**gate(GateState.GATED))], 1, "gate p2p-refused gated since"),
        ([report(**gate(GateState.HELD_BACK, bad=3), verdict=WARN)], 1, "held-back"),
        ([report(**gate(GateState.PROBATION))], 0, "WARN n1"),
        ([report(**gate(GateState.WATCHING, bad=1))], 0, "WARN n1"),
        ([report(**tainted(names.TAINT_THROTTLED, "thermal"))], 1, "throttled=thermal:NoSchedule"),
        ([report(**tainted(names.TAINT_UNVALIDATED))], 3, "taint unvalidated:NoSchedule"),
        ([report(verdict=UNKNOWN)], 3, "UNKNOWN n1"),
        ([report(probe("health", read_at=""))], 3, "health was never read"),
        ([report(probe("health", coverage="8 of 8 GPUs"))], 0, f"read health {AT} (8 of 8 GPUs)"),
        ([report(), reading(health=made.h100())], 0, f"health {AT} (8 of 8 GPUs, 7 of 7 subjects)"),
        ([report(probe("health", failing_since=AT, last_run=LOST))], 3, "silent for 60 s"),
        ([report(probe("pull", failing_since=AT, last_run=LOST))], 0, "WARN n1"),
        ([report(probe("nccl", UNKNOWN, read_at=""))], 0, "nccl never"),
        ([body(status={"verdict": "pass"})], 3, "health was never read"),
        ([report() | {"status": report()["status"] | {"gates": 3}}], 3, "not judged: NodeReport: "),
    ],
    ids=range(21),
)
def test_a_report_is_judged_whole(bodies: list[dict[str, Any]], code: int, part: str) -> None:
    exit_code, output = judged(*bodies)
    assert (exit_code, part in output) == (code, True), output


@pytest.mark.parametrize(
    ("bodies", "code", "part"),
    [
        ([report(), reading(health=made.h100())], 0, "PASS n1"),
        ([report(), reading(health=REFUSED)], 1, "fail p2p-refused"),
        ([report(), reading(load=spoilt(mismatches=2))], 1, "fail load-corruption"),
        ([report(), reading(health="{}")], 3, "not judged: NodeReading: health"),
        ([report(), reading(name="n2", health=REFUSED)], 1, "FAIL node n2, health: "),
        ([reading(health=made.h100(), nccl=h100())], 0, "all 2 pass"),
        ([reading(health=REFUSED)], 1, "FAIL 8x"),
        ([report(), report(probe("load", FAIL), name="n2")], 1, "FAIL node n2"),
        ([report(probe("health", FAIL, findings=[HOT])), reading(health=made.h100())], 1, "warn hot GPU 3"),
    ],
    ids=range(9),
)
def test_readings_beside_a_report_are_judged_with_it(
    bodies: list[dict[str, Any]], code: int, part: str
) -> None:
    exit_code, output = judged(*bodies)
    assert (exit_code, part in output) == (code, True), output


def test_the_record_of_an_nccl_run_is_graded_again() -> None:
    slow = judge_nccl(h100(300), previous=judge_nccl(h100(300)).record)
    assert judged(report(probe("nccl", history=slow.record)))[0] == 1
    passes = judge_nccl(h100()).record
    code, output = judged(report(probe("nccl", FAIL, history=passes, findings=slow.findings)))
    assert (code, "busbw-low" in output, "464 GB/s" in output or "462" in output) == (1, True, True)
