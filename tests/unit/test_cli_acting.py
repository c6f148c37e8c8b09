"""Commands for people who act: what `run`, `override` and `pause` write, wait for and refuse; what `diff` and
`history` show."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Printed
from msgspec.structs import replace

import support.results as made
from nodegauge_cli import completion, diff, history, override, run
from nodegauge_cli.__main__ import PLUGIN, main, start
from nodegauge_contract import LinkErrors, Result, Unavailable
from nodegauge_contract.gpu import Temperature
from nodegauge_operator.api.node_history import Day, day_text
from nodegauge_operator.api.times import stamp
from nodegauge_operator.kube import client, errors
from nodegauge_operator.kube.errors import Forbidden
from support.api_server import HISTORIES, NODES, POLICIES, REPORTS
from support.client import FakeClient
from support.judge_command import flat
from support.operator import SteppedOperator, some_nodes

Call = Callable[..., Printed]
DAY = 86_400
BROKEN = made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4)


@pytest.fixture
def operator() -> SteppedOperator:
    operator = some_nodes("node-1", "node-2")
    operator.run_all()
    return operator


@pytest.fixture
def call(operator: SteppedOperator, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command in that cluster, at its time; while it sleeps, the operator and the kubelets work."""

    async def connect(**_: Any) -> FakeClient:
        operator.client.cluster = operator.cluster
        return operator.client

    clock = operator.cluster.clock
    sleep = lambda seconds: operator.run_all(after=seconds)  # noqa: E731
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(client, "connect", connect)
    for module in (run, override, diff):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=clock, monotonic=clock, sleep=sleep))

    def invoke(*arguments: str) -> Printed:
        result = CliRunner().invoke(main, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def spec(operator: SteppedOperator) -> dict[str, Any]:
    return operator.cluster.objects[REPORTS]["node-1"].get("spec") or {}


def test_a_run_is_asked_for_and_its_result_printed(operator: SteppedOperator, call: Call) -> None:
    passed = call("run", "node-1", "--probe", "health")
    assert (passed.exit_code, list(spec(operator)["requestedProbes"])) == (0, ["health"])
    assert "waits for a slot (10% of the policy's nodes at a time)" in passed.output
    assert "pass: 2x NVIDIA TITAN RTX: healthy" in passed.output
    operator.cluster.results["node-1"] = Result(probe="nobody")
    unread = call("run", "node-1", "--probe", "health")
    assert (unread.exit_code, "not measured: " in unread.output, "stands." in unread.output) == (
        1,
        True,
        True,
    )
    operator.cluster.results["node-1"] = BROKEN
    failed = call("run", "node-1")
    assert failed.exit_code == 1
    assert "requestedAt" in spec(operator)
    assert all(text in failed.output for text in ("fail: ", "[p2p-refused]", "Next: ", "explain node-1"))
    call("run", "node-1", "--probe", "health")
    operator.cluster.results["node-1"] = made.h100()
    healing = call("run", "node-1", "--probe", "health")
    assert "[p2p-refused]: what lifts it: 3 good runs in a row (1 so far)" in " ".join(healing.output.split())


@pytest.mark.parametrize(
    ("policy", "arguments", "code", "output"),
    [
        ({"mode": "Paused"}, ("--timeout", "5s"), 1, "policy default is paused"),
        ({"budget": {"concurrentProbes": 0}}, ("--timeout", "5s"), 1, "budget.concurrentProbes 0"),
        ({"probes": {"load": {"enabled": False}}}, ("--probe", "load"), 1, "spec.probes.load.enabled"),
        ({}, ("--probe", "load", "--timeout", "5s"), 1, "then for GPUs that nobody uses"),
        ({}, ("--probe", "nccl", "--no-wait"), 0, "Asked for nccl on node-1"),
        ({}, ("--probe", "bmc"), 2, "--probe"),
        ({}, ("--timeout", "soon"), 2, "15m or 1h30m"),
    ],
)
def test_a_run_says_what_it_waits_for(
    operator: SteppedOperator,
    call: Call,
    policy: dict[str, Any],
    arguments: tuple[str, ...],
    code: int,
    output: str,
) -> None:
    operator.cluster.change(POLICIES, "default", {"spec": policy})
    operator.deliver()
    result = call("run", "node-1", *arguments)
    assert (result.exit_code, output in flat(result)) == (code, True), result.output
    waited = "--timeout" in arguments and code == 1
    assert ("The request stands" in flat(result)) == waited
    assert ("pull" in spec(operator).get("requestedProbes", {})) == ("nccl" in arguments)


def test_a_wait_outlives_an_api_server_that_restarts(operator: SteppedOperator, call: Call) -> None:
    refusals = iter([None, errors.Unavailable("restarting", status=503)])
    report = ("GET", f"{REPORTS}/node-1")
    operator.client.refuse = lambda verb, path: next(refusals, None) if (verb, path) == report else None
    result = call("run", "node-1", "--probe", "health")
    assert (result.exit_code, "no answer: restarting" in result.output) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("healthy", "--until", "31d", "--reason", "r"), "at most 30d"),
        (("healthy", "--until", "0s", "--reason", "r"), "is over"),
        (("healthy", "--until", "2027-01-15", "--reason", "r"), "nor a time with its zone"),
        (("healthy", "--until", "tomorrow", "--reason", "r"), "neither a duration (12h, 1d)"),
        (("healthy", "--until", "1d"), "--reason is missing"),
        (("healthy", "--until", "1d", "--reason", "r" * 301), "at most 300"),
        (("healthy", "--reason", "r"), "--until is missing"),
        (("--until", "1d", "--reason", "r"), "healthy or leave-alone"),
        (("broken", "--until", "1d", "--reason", "r"), "is not one of"),
        (("healthy", "--end"), "--end goes without healthy"),
        (("--list",), "--list goes without NODE"),
    ],
)
def test_an_override_that_the_operator_would_refuse_is_never_written(
    operator: SteppedOperator, call: Call, arguments: tuple[str, ...], output: str
) -> None:
    by = () if "--list" in arguments or "--end" in arguments else ("--by", "ann")
    result = call("override", "node-1", *arguments, *by)
    assert (result.exit_code, output in flat(result)) == (2, True), result.output
    assert not operator.cluster.objects[NODES]["node-1"]["metadata"].get("annotations")


def test_an_override_holds_until_it_is_ended(operator: SteppedOperator, call: Call) -> None:
    kind = ("leave-alone", "--until", "1d12h", "--reason", "fan", "--by", "ann")
    written = call("override", "node-1", *kind)
    until = stamp(operator.cluster.now + 1.5 * DAY)
    assert f"left alone until {until}, by ann: fan" in flat(written)
    assert "override node-1 --end" in written.output
    operator.run_all(after=60)
    known = operator.status["override"]
    assert [known[key] for key in ("kind", "until", "by", "reason")] == ["leave-alone", until, "ann", "fan"]
    assert "left alone by ann" in flat(call("run", "node-1", "--timeout", "5s"))
    listed = call("override", "--list").output.splitlines()
    assert [line.split()[:2] for line in listed] == [["NODE", "OVERRIDE"], ["node-1", "leave-alone"]]
    assert "This replaces leave-alone" in flat(
        call("override", "node-1", "healthy", "--until", "1h", "--reason", "r", "--by", "bob")
    )
    assert "Ended on node-1: healthy" in call("override", "node-1", "--end").output
    assert "has no override" in call("override", "node-1", "--end").output


OVERRULE = "override node-1 healthy --until 1d --reason r --by ann"


@pytest.mark.parametrize(
    ("command", "verb", "path", "code", "says"),
    [
        (OVERRULE, "PATCH", f"{NODES}/node-1", 1, "Ask for the ClusterRole nodegauge-override,"),
        (OVERRULE, "GET", f"{REPORTS}/node-1", 0, "was not read: no one may"),
        ("run node-1 --no-wait", "PATCH", f"{REPORTS}/node-1", 1, "ClusterRole nodegauge-edit."),
        ("nodes -l rack=r7", "GET", NODES, 1, "No ClusterRole of nodegauge gives this right"),
        ("status --context other", "GET", "", 1, "--context needs kubectl on PATH"),
    ],
)
def test_without_a_right_the_role_is_named_that_helps(
    operator: SteppedOperator, call: Call, command: str, verb: str, path: str, code: int, says: str
) -> None:
    operator.refuse(verb, path, Forbidden("no one may", status=403))
    result = call(*command.split())
    assert (result.exit_code, says in flat(result)) == (code, True), result.output
    operator.refuse(verb, path, Forbidden("policy 'p' denied request", status=403))
    assert "Ask for" not in call(*command.split()).output, "no role helps"


def test_a_pause_remembers_the_mode(operator: SteppedOperator, call: Call) -> None:
    marks = {"annotations": {"meta.helm.sh/release-name": "gauge"}}
    operator.cluster.change(POLICIES, "default", {"metadata": marks, "spec": {"mode": "Observe"}})
    assert call("pause").exit_code == 2
    paused = call("pause", "--reason", "firmware")
    policy = operator.cluster.objects[POLICIES]["default"]
    assert policy["spec"]["mode"] == "Paused"
    assert "helm upgrade gauge charts/nodegauge --reuse-values --set policy.spec.mode=Paused" in flat(paused)
    assert "paused already (firmware); its mode was Observe" in call("pause", "--reason", "again").output
    assert "has mode Observe again" in call("pause", "--end").output
    policy = operator.cluster.objects[POLICIES]["default"]
    assert (policy["spec"]["mode"], policy["metadata"]["annotations"]) == ("Observe", marks["annotations"])
    operator.cluster.change(POLICIES, "default", {"spec": {"mode": "Paused"}})
    assert "pass --mode" in flat(call("pause", "--end"))
    assert call("pause", "--end", "--mode", "Enforce").exit_code == 0
    operator.cluster.add_policy("other")
    assert "name one POLICY of: default, other" in call("pause", "--reason", "r").output


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [({}, 0, "Its mode was Enforce."), ({"mode": "Observe"}, 1, "Others have changed it meanwhile")],
)
def test_a_pause_that_comes_too_late_is_written_again_unless_the_mode_is_another(
    operator: SteppedOperator, call: Call, spec: dict[str, Any], code: int, says: str
) -> None:
    writes = []

    def changes_first(verb: str, _path: str) -> None:
        if verb == "PATCH":
            writes.append(verb)
            if len(writes) < 3:
                seen = {"annotations": {"seen": str(len(writes))}}
                operator.cluster.change(POLICIES, "default", {"metadata": seen, "spec": spec})

    operator.client.refuse = changes_first
    paused = call("pause", "--reason", "firmware")
    assert (paused.exit_code, says in flat(paused)) == (code, True), paused.output
    policy = operator.cluster.objects[POLICIES]["default"]
    assert policy["spec"]["mode"] == ("Observe" if code else "Paused")
    assert len(writes) == (1 if code else 3)


def test_diff_shows_differences_alone_and_what_was_read_once(operator: SteppedOperator, call: Call) -> None:
    assert "No difference in what both were read for: " in call("diff", "node-1", "node-2").output
    errors = LinkErrors(replay=12, recovery=0, crc_flit=0, full=1)
    pcie = replace(made.titan().gpus[1].pcie, replays=3)
    other = made.with_gpu(made.titan(), 1, vbios="90.02", serial="7", link_errors=errors, pcie=pcie)
    cool, warm = ({"temperature": Temperature(gpu=gpu), "window": None} for gpu in (38, 41))
    operator.cluster.results["node-1"] = made.every_gpu(made.titan(), **cool)
    operator.cluster.results["node-2"] = made.every_gpu(other, mig=Unavailable("no"), **warm)
    operator.run_all(after=DAY)
    operator.cluster.change(NODES, "node-2", {"metadata": {"labels": {"rack": "r7"}}})
    result = call("diff", "node-1", "node-2")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    document = json.loads(call("diff", "node-1", "node-2", "-o", "json").output)
    differences = {each["what"]: each["values"] for each in document["differences"]}
    assert differences["label rack"] == ["absent", "r7"]
    assert "90.02: GPU 1" in differences["VBIOS"][1]
    assert differences["MIG"][1] is None
    some = "12 replays, 1 links with a full counter (CRC errors of data not read): GPU 1"
    assert some in differences["NVLink errors"][1]
    assert "3: GPU 1" in differences["PCIe replays"][1]
    assert "since the driver was loaded, after the last boot: node-1 had been up for" in flat(result)
    assert "Read on one node only:" in result.output
    assert {"GPUs", "driver", "hottest GPU"} <= set(document["alike"])
    assert "all_reduce" in document["readOnNeither"]
    assert call("diff", "node-1", "node-1").exit_code == 2
    assert "node-9 has no NodeReport" in call("diff", "node-1", "node-9").output


VALUES = {f"2026-11-{day:02}": Day(all_reduce=463 if day < 20 else 417, hottest=60) for day in range(1, 25)}
HISTORY: dict[str, Any] = {
    "metadata": {"name": "node-1"},
    "status": {
        "goneAt": "2026-11-25T03:00:00Z",
        "days": {day: day_text(value) for day, value in VALUES.items()} | {"2026-13-45": "gpus=8/8"},
        "record": {
            "verdict": "fail",
            "writtenAt": "2026-11-24T03:00:00Z",
            "transitions": [{"at": "2026-11-20T03:00:00Z", "what": "verdict", "from": "pass", "to": "fail"}],
        },
    },
}


@pytest.mark.parametrize("gone", [False, True])
def test_history_outlives_the_node(operator: SteppedOperator, call: Call, gone: bool) -> None:
    operator.cluster.objects[HISTORIES]["node-1"] = HISTORY
    operator.status.pop("days")  # of a later month
    if gone:
        del operator.cluster.objects[REPORTS]["node-1"]
    result = call("history", "node-1")
    now = "the node is gone since 2026-11-25T03:00:00Z; last fail" if gone else "pass; no taint"
    assert now in flat(result)
    assert "all_reduce 463 GB/s for 19 days, 417 since 20 Nov" in flat(result)
    assert ("verdict: pass -> fail" in result.output) == gone
    assert max(map(len, result.output.splitlines())) <= 80
    assert len(json.loads(call("history", "node-1", "--days", "3", "-o", "json").output)["days"]) == 3
    assert call("history", "node-9").exit_code == 1
    other = HISTORY | {"status": HISTORY["status"] | {"nodeUID": "of another machine"}}
    operator.cluster.objects[HISTORIES]["node-1"] = other
    shown = flat(call("history", "node-1"))
    assert ("of one that had this name before" in shown, "463" in shown) == (not gone, gone)


def test_history_draws_only_what_varies() -> None:
    lines = list(history.sparklines({day: value for day, value in VALUES.items() if day != "2026-11-05"}))
    assert lines == [
        "all_reduce 417 to 463 GB/s",
        "  ████.██████████████▁▁▁▁▁",
        "  2026-11-01 to 2026-11-24, a character a day (.: not measured)",
    ]


def test_kubectl_completes_commands_options_and_nodes(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def completed(*parts: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["kubectl_complete-nodegauge", *parts])
        completion.kubectl()
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert completed("over") == ["override", ":4"]
    assert completed("run", "no") == ["node-1", "node-2", ":4"]
    assert completed("override", "node-1", "") == ["healthy", "leave-alone", ":4"]
    assert "--probe" in completed("run", "--")


@pytest.mark.parametrize(("file", "name"), [("kubectl-nodegauge", PLUGIN), ("nodegauge", "nodegauge")])
def test_help_names_the_program_that_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str, name: str
) -> None:
    monkeypatch.setattr("sys.argv", [f"/usr/local/bin/{file}", "run", "--help"])
    with pytest.raises(SystemExit):
        start()
    assert f"Usage: {name} run " in capsys.readouterr().out
