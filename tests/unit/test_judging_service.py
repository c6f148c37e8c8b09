"""`judge` of the archive: what it accepts, what it answers, and how it names what is wrong."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import nodegauge_contract
import support.results as made
from nodegauge_cli.documents import Unusable
from nodegauge_cli.judging_service import judgements
from nodegauge_contract import Ecc, Result, Temperature, XidCount, Xids, encode
from nodegauge_contract.chassis import ChassisReading, Fan, Supply
from nodegauge_judge import judge_health
from support.judge_results import later, node

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
HOT = made.every_gpu(made.titan(), temperature=Temperature(gpu=78, gpu_max=85), window=None)
LOG = (FIXTURES / "nccl-tests_allreduce_superbench.log").read_text()
CHASSIS = ChassisReading(
    lists_supplies=True,
    supplies=[Supply(name="PSU 1", present=True, state="Enabled", health="OK", capacity_watts=3000)] * 2,
    fans=[Fan(name="Fan 1", rpm=4000, health="OK")],
)


def text(result: Result) -> str:
    return encode(result).decode()


def ask(*documents: str, **request: Any) -> list[dict[str, Any]]:
    return judgements(json.dumps({"documents": documents, **request}).encode())


def test_a_result_is_judged_as_the_judge_does() -> None:
    judgement = msgspec.to_builtins(judge_health(HOT))
    for document in (text(HOT), nodegauge_contract.text(HOT)):
        [answer] = ask(document)
        assert {key: answer[key] for key in judgement} == judgement
        assert answer["probe"] == "health"


def test_a_host_is_taken_out_of_service_where_a_node_is_drained() -> None:
    """The message says so, too: `validate` prints it."""
    siblings = made.every_gpu(made.h100(), ecc=Ecc(mode=1))
    off = replace(made.with_gpu(siblings, 3, ecc=Ecc(mode=0)), node="host-1")
    [answer] = ask(text(off), node={"name": "host-1"})
    [finding] = answer["findings"]
    assert finding["message"].endswith(
        "Next: take the machine out of service, then `nvidia-smi -e 1 -i 3` and reset the GPU."
    )
    assert [of_gpu["message"] for of_gpu in answer["locations"]] == [finding["message"]]


def test_each_document_has_its_own_answer() -> None:
    paste = (FIXTURES / "pasted" / "a100x2-of-8_nv12_blank-affinity.txt").read_text()
    reading = msgspec.json.encode(CHASSIS).decode()
    answers = ask(LOG, reading, json.dumps({"judgement": {}, "reading": json.loads(reading)}), paste, "{}")
    assert [answer.get("probe", "") for answer in answers] == ["nccl", "bmc", "bmc", "pasted", ""]
    assert answers[1] == answers[2]
    assert answers[4]["error"].startswith("documents[4]: not a probe result")


def test_the_policys_rules_about_xids_apply() -> None:
    came = XidCount(count=2, first=5, last=9)
    xids = Xids(registered=True, seen=[94], counts=[came])
    watched = made.every_gpu(made.h100(), xids=Xids(registered=True))
    document = text(made.with_gpu(watched, 3, xids=xids))
    plain, ruled = (
        ask(document, policy={"xids": rules})[0]
        for rules in ([], [{"codes": [94], "severity": "Warn", "count": 3}])
    )
    assert (plain["verdict"], ruled["verdict"]) == ("fail", "pass")
    assert plain["labels"] != ruled["labels"]


def test_labels_are_those_of_a_first_result() -> None:
    [good, hidden] = ask(text(made.h100()), text(made.with_pair(made.h100(), 0, 1, read=5)))
    assert good["labels"]["nodegauge.dev/interconnect"] == "nvlink"
    assert good["labels"]["nodegauge.dev/health"] == "pass"
    assert not any("validated-at" in key for key in good["labels"])
    assert hidden["labels"].get("nodegauge.dev/health") != "pass"


@pytest.mark.parametrize("wrap", [lambda spec: spec, lambda spec: {"spec": spec}])
def test_the_policy_decides_how_strict(wrap: Any) -> None:
    policy = wrap({"thresholds": {"hotMargin": 10}, "expectedGpus": 4})
    [usual] = ask(text(HOT), node={"expectedGpus": 2})
    [strict] = ask(text(HOT), policy=policy, node={"expectedGpus": 2})
    [four] = ask(text(HOT), policy=policy)
    assert [answer["verdict"] for answer in (usual, strict, four)] == ["pass", "warn", "fail"]


@pytest.mark.parametrize(
    ("health", "is_judged"),
    [
        ({"mode": "Periodic"}, True),
        ({"mode": "Periodic", "interval": "1m"}, False),
        ({"interval": "1m"}, True),
        ({"watch": {"interval": "1m"}}, False),
    ],
)
def test_the_policy_s_interval_counts(health: dict[str, Any], is_judged: bool) -> None:
    first, codes = node(), ["sw-thermal-slowdown"] if is_judged else []
    policy = {"probes": {"health": health}}
    [answer] = ask(text(later(first, 900, sw_thermal=800)), before=[text(first)], policy=policy)
    assert [one["code"] for one in answer["findings"] if one["severity"] == "fail"] == codes


def test_earlier_results_give_a_history() -> None:
    first, second, now = (
        made.with_gpu(made.phb(), 0, ecc=Ecc(mode=1, volatile_corrected=0, volatile_uncorrected=count))
        for count in (0, 2, 3)
    )
    past = [text(first), text(made.later(second, seconds=900))]
    document = text(made.later(now, seconds=1800))
    answers = ask(document, document, document, before=[None, past[1], past])
    assert [answer["verdict"] for answer in answers] == ["warn", "fail", "fail"]


@pytest.mark.parametrize(
    ("request_part", "message"),
    [
        ({"policy": {"thresholds": {"hot": 1}}}, "policy: no such threshold: hot"),
        ({"policy": {"tresholds": {}}}, "policy: no such field in spec: tresholds"),
        ({"policy": {"kind": "Node"}}, "policy: kind 'Node', expected GPUValidationPolicy"),
        ({"policy": {"expectedGpus": "x"}}, "policy: spec.expectedGpus: Expected `int`"),
        (
            {"policy": {"probes": {"health": {"interval": "soon"}}}},
            "policy: spec.probes.health: Expected `str`",
        ),
        ({"policy": {"xids": [{"codes": [94]}]}}, "spec.xids: Object missing required field `severity`"),
        ({"policy": {"spec": ["x"]}}, "policy: spec must be a mapping"),
        ({"node": {"gpus": 8}}, "contains unknown field `gpus`"),
        ({"node": {"powerInventory": {"gpus": 3}}}, "node.powerInventory: "),
        ({"before": []}, "before has 0 entries, documents has 1"),
        ({"documents": [3]}, "request: Expected `str`, got `int`"),
    ],
)
def test_a_bad_request_is_one_error_that_names_the_field(request_part: dict[str, Any], message: str) -> None:
    with pytest.raises(Unusable) as error:
        judgements(json.dumps({"documents": [text(HOT)], **request_part}).encode())
    assert message in str(error.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{", b"null"])
def test_what_is_no_request_is_an_error(data: bytes) -> None:
    with pytest.raises(Unusable, match="request: "):
        judgements(data)


@pytest.mark.parametrize(
    ("document", "before", "message"),
    [
        (text(HOT), LOG, "before is for an earlier result of the same probe, `health`"),
        (text(HOT), "{}", "documents[0]: before: not a probe result"),
        ("x" * 2_000_000, None, "documents[0]: more than 1048576 characters"),
        (text(HOT).replace('"version":"1.', '"version":"9.', 1), None, "documents[0]: "),
        ('{"supplies": 3}', None, "documents[0]: a ChassisReading that cannot be read"),
        ('{"supplies": [], "major": 2}', None, "documents[0]: a ChassisReading of version 2"),
    ],
)
def test_a_bad_document_is_its_own_error(document: str, before: str | None, message: str) -> None:
    [answer, other] = ask(document, text(HOT), before=[before, None])
    assert message in answer["error"]
    assert other["probe"] == "health"
