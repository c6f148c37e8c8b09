"""`nodegauge ticket`: the facts, each form of them, and that nothing else gets out."""

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import to_builtins
from msgspec.structs import fields, replace

import support.results as made
from nodegauge_cli.__main__ import main
from nodegauge_cli.cluster import Cluster, NoCluster, NotThere
from nodegauge_cli.reported import objects
from nodegauge_cli.ticket.azure import _BY_TEXT, CATEGORY_OF, NOT_OURS, OF_XID, Category, category_of
from nodegauge_cli.ticket.facts import Problem, TicketFacts
from nodegauge_contract import Ecc, Pcie, Repair, Xids, text
from nodegauge_contract import Result as Document
from nodegauge_contract.gpu import XidCount
from nodegauge_judge import CATALOGUE, GpuIdentity
from nodegauge_judge.rule import filled
from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.history import Transition
from nodegauge_operator.api.node_history import HistoryStatus, NodeRecord, XidSeen
from nodegauge_operator.api.times import stamp
from support.judge_command import FIXTURES
from support.objects import NOW, AReport, make_node, make_report, read

RECORDED = FIXTURES / "nodereport_h100x8_corruption.yaml"
AZURE = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/x/vmss/vm/7"
SERIAL = "1654922001203"
LATER = NOW + 900
SECRETS = ("hunter2", "alice", "10.9.8.7")
"""A password in an annotation, who overrode the node, and the address of its BMC."""


def machine(**of_gpu_3: Any) -> Document:
    result = made.h100()
    for index in range(8):
        good = {
            "serial": f"16549220012{index:02}",
            "pcie": Pcie(width=16, max_width=16, generation=5, max_generation=5),
            "ecc": Ecc(mode=1, volatile_uncorrected=0, aggregate_uncorrected=0, sram_threshold=0),
            "repair": Repair(rows_uncorrected=0, rows_pending=0, rows_failed=0, action=0),
            "xids": Xids(registered=True),
        }
        result = made.with_gpu(result, index, **good | (of_gpu_3 if index == 3 else {}))
    return result


SICK = made.later(
    machine(
        ecc=Ecc(mode=1, volatile_uncorrected=2, aggregate_uncorrected=2, sram_threshold=0),
        repair=Repair(rows_uncorrected=2, rows_pending=0, rows_failed=0, action=1),
        xids=Xids(registered=True, seen=[94], counts=[XidCount(count=2, first=4000, last=4300)]),
    )
)


WARNED = machine(ecc=Ecc(mode=1, volatile_uncorrected=2, aggregate_uncorrected=2, sram_threshold=0))
REFUSED_ONCE = made.with_pair(machine(), 0, 1, read=5)
"""Errors without an earlier reading to compare with, and a fault that needs two runs."""


def reported(name: str, *readings: Document) -> AReport:
    """The report of a node after these health runs, a quarter of an hour apart."""
    node, report = make_node(name), make_report(make_node(name))
    for number, reading in enumerate(readings):
        report = report.after(read(reading), node=node, at=NOW + 900 * number)
    return report


def body(kind: str, name: str, **more: Any) -> dict[str, Any]:
    noted = {"bmc-password": "hunter2", names.OVERRIDE_BY: "alice"}
    return {"kind": kind, "metadata": {"name": name, "uid": "u", "annotations": noted}, **more}


def of_report(report: AReport) -> dict[str, Any]:
    return body(names.REPORT_KIND, report.name, status=to_builtins(report.status))


def of_reading(name: str, **parts: Document) -> dict[str, Any]:
    header = {"sequence": 1, "at": stamp(NOW), "pod": "p", "podUID": "1", "nodeUID": "2"}
    known = {probe: header | {"reading": text(part)} for probe, part in parts.items()}
    return body(names.READING_KIND, name, **known)


NODE = body(
    "Node",
    "gpu-7",
    spec={"providerID": f"azure://{AZURE}"},
    status={"nodeInfo": {"machineID": "m-1", "systemUUID": "s-1", "bootID": "boot-2"}},
)
CHASSIS = body(
    names.CHASSIS_KIND,
    "gpu-7",
    status={
        "address": "https://10.9.8.7",
        "reading": {"vendor": "Supermicro", "product": "AS-8125GS", "serial": "S-42", "powerOn": True},
    },
)
FLEET = [
    of_report(reported("gpu-8", machine())),
    of_report(reported("gpu-9", machine(), SICK)),
]
SICK_NODE = [of_report(reported("gpu-7", machine(), SICK)), of_reading("gpu-7", health=SICK)]
EVERYTHING = [*SICK_NODE, NODE, CHASSIS, *FLEET]
GONE = body(
    "NodeHistory",
    "gpu-7",
    status=to_builtins(
        HistoryStatus(
            gone_at=stamp(LATER),
            days={"2027-01-14": "driver=550.54.14", "2027-01-15": "allReduce=463 driver=550.54.15"},
            record=NodeRecord(
                written_at=stamp(LATER),
                product="NVIDIA H100 80GB HBM3",
                gpus=[GpuIdentity(index=3, uuid="GPU-3", serial=SERIAL, pci="0000:12:00.0")],
                faults=[
                    Fault(
                        code="gpu-lost",
                        title="a GPU is lost",
                        cause="gpu-lost",
                        gpus=[GpuIdentity(uuid="GPU-3")],
                    )
                ],
                transitions=[Transition(at=stamp(LATER), what="override", to="healthy by alice")],
                xids=[XidSeen(xid=79, gpu="GPU-3", count=1, last_seen=stamp(NOW))],
            ),
        )
    ),
)


def ticket(bodies: list[dict[str, Any]], *arguments: str, node: str = "gpu-7") -> Result:
    given = json.dumps({"kind": "List", "items": bodies})
    return CliRunner().invoke(main, ["ticket", node, "--from", "-", *arguments], input=given)


def facts(bodies: list[dict[str, Any]], *arguments: str, node: str = "gpu-7") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ticket(bodies, "--for", "json", *arguments, node=node).stdout)
    return document


def test_the_facts_hold_what_a_vendor_asks_for() -> None:
    known = facts(EVERYTHING)
    fault, board = known["faults"][0], known["boards"][3]
    assert (fault["code"], fault["probe"], fault["badRuns"], fault["xids"]) == ("xid", "health", 1, [94])
    assert (fault["since"], fault["lastGood"]) == (stamp(LATER), stamp(NOW))
    assert (board["serial"], board["accused"], board["pci"]) == (SERIAL, True, "0000:12:00.0")
    assert board["counters"]["repair.rows_uncorrected"] == 2
    assert [board["index"] for board in known["boards"] if board["accused"]] == [3]
    booted = LATER - made.later(made.h100()).host.boottime_ms / 1000  # type: ignore[operator]
    assert known["xids"][0] | {"first": ""} == {
        "code": 94,
        "gpu": 3,
        "pci": "0000:12:00.0",
        "count": 2,
        "first": "",
        "last": stamp(booted + 4300),
        "source": "driver",
    }
    assert known["fleet"] == {
        "class": "8 x NVIDIA H100 80GB HBM3",
        "nodes": 2,
        "same": ["gpu-9"],
        "sameCount": 1,
        "drivers": {"550.54.15": 2},
    }
    assert [known["machine"][key] for key in ("serial", "machineId", "systemUuid")] == ["S-42", "m-1", "s-1"]
    assert {"at": stamp(LATER), "what": "verdict", "before": "pass", "after": "fail"} in known["changes"]
    excluded = {each["code"] for each in known["excluded"]}
    assert ("gpu-lost" in excluded, excluded & {"nvlink-errors", "pcie-narrow", "xid"}) == (True, set())
    assert {"what": "PCIe", "value": "8 of 8 GPUs at full width (x16)"} in known["numbers"]
    assert "The nccl probe never ran here." in known["gaps"]
    assert known["tried"] == ["The node was booted again after the last health reading."]
    assert known["logs"][0]["command"] == "nvidia-bug-report.sh --output-file nvidia-bug-report-gpu-7"


def test_peers_are_those_with_the_same_fingerprint() -> None:
    def with_busbw(report: dict[str, Any], fingerprint: str, gbps: int) -> dict[str, Any]:
        measured = to_builtins(BandwidthStatus(all_reduce=gbps, fingerprint=fingerprint))
        return report | {"status": report["status"] | {"bandwidth": measured}}

    peers = [with_busbw(FLEET[0], "a", 463), with_busbw(FLEET[1], "b", 20)]
    [peer] = facts([with_busbw(SICK_NODE[0], "a", 417), *peers])["peers"]
    assert [peer[key] for key in ("own", "median", "nodes", "unit")] == [417, 463, 1, "GB/s"]


@pytest.mark.parametrize("form", ["text", "nvidia"])
def test_a_form_for_people_fits_80_columns_and_names_the_board(form: str) -> None:
    shown = ticket(EVERYTHING, "--for", form).stdout
    for part in (
        SERIAL,
        "0000:12:00.0",
        "GPU-00000003",
        "Xid 94",
        stamp(LATER),
        "S-42",
        "gpu-9",
        "nvidia-smi -q",
    ):
        assert part in shown
    commands = "     "  # commands and single words are never broken
    long = [line for line in shown.splitlines() if len(line) > 80 and not line.startswith(commands)]
    assert [line for line in long if len(line.split()) > 2] == []


def test_azure_gets_its_request_and_hears_what_is_missing() -> None:
    request = json.loads(ticket(EVERYTHING, "--for", "azure").stdout)
    properties = request["body"]["properties"]
    assert "/subscriptions/11111111-2222-3333-4444-555555555555/providers/" in request["url"]
    assert properties["impactedResourceId"] == AZURE
    assert properties["impactCategory"] == "Resource.Hpc.Unhealthy.XID94ContainedECCError"
    assert properties["startDateTime"] == stamp(LATER)
    assert properties["additionalProperties"]["SerialNumber"] == SERIAL
    missing = [each["field"].rpartition(".")[2] for each in request["missing"]]
    assert missing == ["PhysicalHostName", "VmUniqueId", "LogUrl"]
    elsewhere = json.loads(ticket(SICK_NODE, "--for", "azure").stdout)
    assert elsewhere["missing"][0]["field"].startswith("impactedResourceId")


def test_every_finding_that_sets_a_taint_has_a_category_of_azure() -> None:
    gated = {code for code, rule in CATALOGUE.items() if rule.gate is not None}
    assert (gated - CATEGORY_OF.keys(), CATEGORY_OF.keys() - CATALOGUE.keys()) == (set(), set())
    reached = {*CATEGORY_OF.values(), *OF_XID.values(), *(category for _, category in _BY_TEXT.values())}
    assert (len(Category), set(Category) - reached) == (26, NOT_OURS.keys())


@pytest.mark.parametrize(
    ("fault", "category"),
    [
        (Problem(code="xid", xids=[13, 94, 79]), Category.XID_79),
        (Problem(code="xid", xids=[119]), Category.XID),
        (Problem(code="ecc", xids=[48]), Category.XID_48),
        (Problem(code="gpu-lost"), Category.MISSING_GPU),
        (Problem(code="gpu-fault", measured="NVML answers CORRUPTED_INFOROM."), Category.INFOROM),
        (Problem(code="hot", xids=[94]), Category.THERMAL),
        (Problem(code="of-another-version"), Category.MANUAL),
    ],
)
def test_xids_and_words_choose_the_category(fault: Problem, category: Category) -> None:
    assert category_of(fault) is category


def test_foreign_text_stays_text_and_nothing_else_gets_out() -> None:
    evil = "\x1b[31m</pre><script>x</script>\nSerial: 0\u202e[bold]"
    spoilt = made.with_gpu(replace(SICK, system=replace(SICK.system, driver=evil)), 3, name=evil, serial=evil)
    sick = of_report(reported("gpu-7", machine(), spoilt))
    sick["status"]["summary"] += " Gates: unhealthy=xid not set, taken as healthy by alice until tomorrow."
    sick["status"]["override"] = {"kind": "healthy", "by": "alice", "reason": "alice says so"}
    bodies = [sick, of_reading("gpu-7", health=spoilt), NODE, CHASSIS]
    for form in ("text", "nvidia", "azure", "json"):
        shown = ticket(bodies, "--for", form).stdout
        assert not [word for word in SECRETS if word in shown], form
        assert all(line.isprintable() for line in shown.splitlines()), form
        assert not re.search(r"<script|</|^\s*Serial: 0", shown, re.MULTILINE), form
        assert "script›" in shown or form == "azure", form
    known = facts(bodies)
    assert set(known) == {field.encode_name for field in fields(TicketFacts)}


def test_a_command_has_no_word_of_a_probe_that_a_shell_would_take() -> None:
    gpu = GpuIdentity(index=3, pci="0000:12:00.0;reboot")
    steps = [
        step for rule in CATALOGUE.values() for step in rule.way_out if "SLOT" in step or "ADDRESS" in step
    ]
    assert steps
    assert not [step for step in steps if "reboot" in filled(step, gpus=[gpu], evidence={})]


def test_the_last_good_run_is_one_of_the_same_probe() -> None:
    """The first health run passed; the first load run computed wrong results."""
    [fault, *_] = facts(objects(RECORDED.read_text()), node="n-h100")["faults"]
    assert (fault["code"], fault["lastGood"], fault["since"]) == (
        "load-corruption",
        "",
        "2026-11-26T11:51:32Z",
    )


def test_a_ticket_is_about_what_is_broken_not_what_the_driver_asks_for() -> None:
    assert [fault["code"] for fault in facts(SICK_NODE)["faults"]] == ["xid", "ecc", "recovery-action"]
    chosen = facts(SICK_NODE, "--fault", "ecc")["faults"]
    assert [fault["code"] for fault in chosen] == ["ecc", "xid", "recovery-action"]


@pytest.mark.parametrize(
    ("bodies", "arguments", "code", "says"),
    [
        ([FLEET[0]], (), 3, "Nothing to report: no fault of gpu-8 is known. Last read: health at"),
        ([of_report(make_report(make_node("gpu-8")))], (), 3, "none is ruled out"),
        ([FLEET[0]], ("--anyway",), 0, "gpu-8: no fault is known"),
        ([FLEET[0]], ("--anyway", "--for", "azure"), 3, "Azure takes no report without one"),
        ([FLEET[1]], (), 1, "there is no NodeReport of gpu-8, and no NodeHistory"),
        ([FLEET[0]], ("--fault", "hot"), 2, "gpu-8 has no fault"),
        (
            [of_report(reported("gpu-8", WARNED))],
            (),
            3,
            "known but warnings (--fault makes a ticket of one): ecc",
        ),
        ([of_report(reported("gpu-8", WARNED))], ("--fault", "ecc"), 0, "gpu-8: memory errors (ECC) [ecc]"),
        ([of_report(reported("gpu-8", REFUSED_ONCE))], (), 0, "NOT CONFIRMED: 1 bad so far"),
        ([{"kind": "NodeReport", "metadata": {"name": "gpu-8"}, "status": 3}], (), 2, "cannot be read"),
    ],
    ids=range(10),
)
def test_without_a_fault_it_says_so(
    bodies: list[dict[str, Any]], arguments: tuple[str, ...], code: int, says: str
) -> None:
    outcome = ticket(bodies, *arguments, node="gpu-8")
    assert (outcome.exit_code, says in " ".join(outcome.output.split())) == (code, True), outcome.output


@pytest.mark.parametrize(("bodies", "arguments"), [([], ()), (SICK_NODE, ("--gone",))])
def test_the_history_tells_of_a_node_that_is_gone(
    bodies: list[dict[str, Any]], arguments: tuple[str, ...]
) -> None:
    """Also if another machine has its name now."""
    known = facts([GONE, FLEET[1], *bodies], *arguments)
    assert (known["goneAt"], known["source"]) == (stamp(LATER), ["NodeHistory"])
    assert known["boards"][0]["serial"] == SERIAL
    assert known["boards"][0]["accused"]
    assert [(xid["code"], xid["gpu"], xid["last"]) for xid in known["xids"]] == [(79, 3, stamp(NOW))]
    changes = [(each["at"], each["what"], each["before"], each["after"]) for each in known["changes"]]
    assert changes == [("2027-01-15", "driver", "550.54.14", "550.54.15")]
    assert known["fleet"]["nodes"] == 1
    request = json.loads(ticket([GONE], "--for", "azure").stdout)
    assert request["body"]["properties"]["additionalProperties"]["SerialNumber"] == SERIAL


def test_a_cluster_is_asked_and_what_it_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"nodereports": SICK_NODE[0], "nodereadings": SICK_NODE[1]}

    def find(_self: Cluster, path: str, name: str) -> dict[str, Any] | None:
        kind = path.rpartition("/")[2]
        if kind == "nodes":
            raise NoCluster("nodes is forbidden\nAsk for a role.")
        if kind not in there:
            raise NotThere("not served")
        return there[kind] if name == "gpu-7" else None

    monkeypatch.setattr(Cluster, "find", find)
    monkeypatch.setattr(Cluster, "each", lambda _self, path: iter(FLEET if "reports" in path else ()))
    outcome = CliRunner().invoke(main, ["ticket", "gpu-7", "--for", "json"])
    known = json.loads(outcome.stdout)
    assert (known["gaps"][0], known["fleet"]["sameCount"]) == ("Node not read: nodes is forbidden", 1)
    assert CliRunner().invoke(main, ["ticket", "gpu-1"]).exit_code == 1
