"""The role `validate`, with simulated modules: one verdict, one fact, and a failure of that host alone."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import yaml

from support.playbook import Ansible, Played, stage
from support.validated import finding, health, nccl, simulate
from support.validated import host as simulated_host

VERDICT = "nodegauge.gpu.validate : Give the verdict"
HOSTILE = "{{ lookup('ansible.builtin.pipe', 'echo executed') }}"
NCCL_AND_LOAD = {"nccl": True, "load": True}


def validate(ansible: Ansible, hosts: dict[str, dict[str, Any]], *options: str) -> Played:
    show = {"name": "show", "ansible.builtin.debug": {"var": "nodegauge_validation"}}
    run = {"name": "run", "ansible.builtin.include_role": {"name": "nodegauge.gpu.validate"}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"block": [run], "always": [show]}]}
    simulated = {name: simulated_host(ansible.folder, name, **modules) for name, modules in hosts.items()}
    return ansible.play([play], simulated, *options)


def host(role: dict[str, Any] | None = None, **modules: dict[str, Any]) -> dict[str, Any]:
    results = {"bmc_power" if name == "bmc" else f"gpu_{name}": result for name, result in modules.items()}
    return results | {f"validate_{name}": value for name, value in (role or {}).items()}


def fact(played: Played, name: str) -> dict[str, Any]:
    return played.task("show", name).result["nodegauge_validation"]


def message(played: Played, name: str) -> str:
    return played.task(VERDICT, name).result["msg"]


BMC, IPMI = {"bmc_url": "https://bmc-1"}, {"bmc_url": "ipmi://1"}
LOST = {"facts": {"gpus": [{"name": None}], "gpus_expected": 1}}
UNCOUNTED = {"gpus": [{"name": "Tesla T4"}] * 2}
HIDDEN = {"interconnect": {"class": None, "message": "hidden"}}
NO_RATE = {"interconnect": {"class": "nvlink", "nvlinkGbps": None}}
TITANS = {"gpus": 2, "model": "titan*", "interconnect": "nvlink", "nvlink_gbps": 50}
OTHERS = {"gpus": 8, "model": "*H100*", "interconnect": "pcie", "nvlink_gbps": 100}
EXECUTES = finding(code=HOSTILE, subject=HOSTILE, message=HOSTILE, steps=[HOSTILE])
POLICY = {"kind": "GPUValidationPolicy", "spec": {"thresholds": {"hotFail": 70}}}
STEPS = ["Install the driver."]
BROKEN = health("unknown", failed=True, steps=STEPS, msg="No driver. What to do: Install the driver.")


DECIDING: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "healthy": ({"health": health()}, {}, "pass"),
    "sick": ({"health": health("fail", finding())}, {}, "fail"),
    "warned": ({"health": health("warn", finding(severity="warn"))}, {}, "warn"),
    "warned, strict": ({"health": health("warn")}, {"fail_on": "warn"}, "warn"),
    "no archive": ({"health": {"failed": True, "msg": "no archive"}}, {}, "unknown"),
    "no driver": ({"health": BROKEN}, {}, "unknown"),
    "nccl skipped": ({"health": health(), "nccl": nccl("skipped")}, {"nccl": True}, "unknown"),
    "load without load": ({"health": health(), "load": nccl("no-load")}, {"load": True}, "unknown"),
    "nccl fails": ({"health": health("warn"), "nccl": nccl("fail")}, {"nccl": True}, "fail"),
    "all pass": ({"health": health(), "nccl": nccl(), "load": nccl()}, NCCL_AND_LOAD, "pass"),
    "nccl not asked": ({"health": health(), "nccl": nccl("fail")}, {"nccl": False}, "pass"),
    "sick, asked": ({"health": health("fail"), "nccl": nccl(), "load": nccl()}, NCCL_AND_LOAD, "fail"),
    "single GPU": ({"health": health(gpus=1)}, {"nccl": True}, "pass"),
    "bmc warns": ({"health": health(), "bmc": nccl("warn")}, BMC, "warn"),
    "bmc away": ({"health": health(), "bmc": {"failed": True, "msg": "no route"}}, IPMI, "unknown"),
    "as expected": ({"health": health()}, {f"expected_{key}": one for key, one in TITANS.items()}, "pass"),
    "unexpected": ({"health": health()}, {f"expected_{key}": one for key, one in OTHERS.items()}, "fail"),
    "policy in a file": ({"health": health()}, {"policy": "{{ playbook_dir }}/policy.yaml"}, "pass"),
    "hostile": ({"health": health("fail", EXECUTES, summary=HOSTILE)}, {}, "fail"),
}
"""By host: what the modules return, what was asked for, and the verdict."""
COUNT, UNSTATED = "unexpected-gpu-count", "gpu-count-unstated"
DIFFERENT = [COUNT, "unexpected-model", "unexpected-interconnect", "unexpected-nvlink"]
COMPARED: dict[str, tuple[dict[str, Any], dict[str, Any], str, list[str]]] = {
    "as expected": (health(), TITANS, "pass", []),
    "all differs": (health(), OTHERS, "fail", DIFFERENT),
    "more GPUs": (health(), {"gpus": 1}, "fail", [COUNT]),
    "model unread": (health(**LOST), {"model": "*"}, "unknown", ["unread-model"]),
    "interconnect unread": (
        health(**HIDDEN),
        {"interconnect": "nvlink"},
        "unknown",
        ["unread-interconnect"],
    ),
    "rate unread": (health(**NO_RATE), {"nvlink_gbps": 1}, "unknown", ["unread-nvlink"]),
    "nobody counts": (health(facts=UNCOUNTED), {}, "warn", [UNSTATED]),
    "a part of a board": (health(facts={**UNCOUNTED, "gpus_expected": 4}), {}, "warn", [UNSTATED]),
    "counted by hand": (health(facts=UNCOUNTED), {"gpus": 2}, "pass", []),
}
"""What the health probe returned, what the inventory says, the verdict, and the reasons' codes."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("validated")
    simulate(stage(folder))
    (folder / "policy.yaml").write_text(yaml.safe_dump_all([{"kind": "Namespace"}, POLICY]), encoding="utf-8")
    return validate(Ansible(folder), {name: host(role, **of) for name, (of, role, _) in DECIDING.items()})


def test_one_host_fails_alone_and_says_why_and_what_to_do(played: Played) -> None:
    assert message(played, "sick").splitlines() == [
        "FAIL sick must not join: 2x TITAN RTX: fail.",
        "health link-down: GPU 1: One link is down.",
        "  1. Look at the link.",
        "  2. Reseat the bridge.",
    ]
    wanted = {"host": "healthy", "verdict": "pass", "reasons": [], "judge_version": "0.1.0"}
    assert wanted.items() <= fact(played, "healthy").items()
    assert played.changed == []


def test_the_worst_of_what_was_asked_for_decides(played: Played) -> None:
    """Unknown is never accepted; warnings are, unless `validate_fail_on` is `warn`."""
    wanted = {name: verdict for name, (_, _, verdict) in DECIDING.items()}
    assert {name: fact(played, name)["verdict"] for name in wanted} == wanted
    for name, verdict in wanted.items():
        accepted = verdict in ("pass", "warn") and name != "warned, strict"
        assert played.task(VERDICT, name).status == ("ok" if accepted else "failed"), name
        assert bool(fact(played, name)["reasons"]) == (verdict != "pass" or name == "single GPU"), name
    assert message(played, "warned, strict").startswith("WARN warned, strict must not join: ")


@pytest.mark.parametrize("name", COMPARED)
def test_a_host_is_compared_with_the_inventory(plugin: Callable[[str], ModuleType], name: str) -> None:
    """More GPUs than expected are a difference too; what could not be read is unknown, and no failure."""
    result, expected, verdict, wanted = COMPARED[name]
    given = plugin("filter.validation").validation({"health": result}, "a", expected=expected)
    assert (given["verdict"], [reason["code"] for reason in given["reasons"]]) == (verdict, wanted)


def test_a_probe_that_cannot_measure_ends_only_with_the_verdict(played: Played) -> None:
    """Its own task does not fail, so that the output holds the message alone."""
    failed = [task.name for task in played.tasks if (task.host, task.status) == ("no driver", "failed")]
    assert (failed, fact(played, "no driver")["reasons"][0]["what_to_do"]) == ([VERDICT], STEPS)


def test_no_benchmark_runs_where_it_is_no_use(played: Played) -> None:
    """On a host that failed, or with a single GPU. It says so; the modules are not called."""
    assert set(fact(played, "sick, asked")["probes"]) == {"health"}
    assert message(played, "sick, asked").splitlines()[-2:] == [
        "nccl not-run: Not run: health is fail; repair that first",
        "load not-run: Not run: health is fail; repair that first",
    ]
    assert "nccl not-run: Not run: it needs two GPUs" in message(played, "single GPU")


def test_what_a_host_says_is_never_a_template(played: Played) -> None:
    assert message(played, "hostile").count(HOSTILE) == 5
    assert fact(played, "hostile")["reasons"][0]["message"] == f"{HOSTILE}: {HOSTILE}"


def test_check_mode_measures_health_alone(roles: Ansible) -> None:
    modules = {"nccl": nccl("fail"), "load": nccl("fail")}
    verdicts = {"a": "pass", "b": "fail"}
    hosts = {
        name: host(NCCL_AND_LOAD, health=health(verdict), **modules) for name, verdict in verdicts.items()
    }
    played = validate(roles, hosts, "--check")
    assert {name: fact(played, name)["verdict"] for name in hosts} == verdicts
    assert [set(fact(played, name)["probes"]) for name in hosts] == [{"health"}] * 2
    for probe in ("nccl", "load"):
        assert f"{probe} not-run: Not run: check mode puts no load on GPUs" in message(played, "a")


def test_the_policy_may_be_a_file(played: Played) -> None:
    asked = played.task("nodegauge.gpu.validate : Measure health", "policy in a file").result["asked"]
    assert asked["policy"] == POLICY


CHECK = "nodegauge.gpu.validate : Check the variables of all hosts once"
SHARE = "windowWarnShare"
UNKNOWN = "the role validate has no such variable"
NEAREST = f"validate_expcted_gpus: {UNKNOWN}; did you mean validate_expected_gpus?"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no policy": ({"policy": "{folder}/none.yaml"}, "none.yaml has 0 objects"),
    "no file": ({"policy": "away.yaml"}, "away.yaml is no file on the controller"),
    "misspelt threshold": ({"policy": {"thresholds": {SHARE[:-1]: 0.1}}}, f"did you mean {SHARE}?"),
    "text for a number": ({"policy": {"thresholds": {SHARE: "x"}}}, f"`spec.thresholds.{SHARE}`"),
    "misspelt variable": ({"expcted_gpus": 8}, NEAREST),
    "foreign variable": ({"certs": False}, f"validate_certs: {UNKNOWN}"),
    "other choice": ({"fail_on": "never"}, "value of validate_fail_on must be one of"),
    "no number": ({"expected_gpus": "eight"}, "validate_expected_gpus: "),
    "below zero": ({"expected_gpus": -8}, "validate_expected_gpus: -8 is too small"),
    "no archive": ({"archive": "/away.pyz"}, "/away.pyz is no file on the controller"),
}


def test_what_is_wrong_is_said_at_once_and_before_a_host_is_touched(roles: Ansible) -> None:
    """With every host's name; of a variable of the play, once."""
    (roles.folder / "none.yaml").write_text("kind: Namespace\n", encoding="utf-8")
    given = json.loads(
        json.dumps({name: role for name, (role, _) in WRONG.items()}).replace("{folder}", str(roles.folder))
    )
    hosts = {"sound": host(health=health())} | {
        name: host(role, health=health()) for name, role in given.items()
    }
    played = validate(roles, hosts, "-e", '{"report_tilte": "x", "validate_other": 1,'
                      ' "nodegauge_other_variables": ["validate_other"]}')  # fmt: skip
    assert {task.name for task in played.tasks} <= {CHECK, "run", "show"} | {
        task.name for task in played.tasks if "Validating arguments" in task.name
    }, played.output
    [lines] = [task.result["msg"] for task in played.tasks if task.name == CHECK]
    for name, (_, sentence) in WRONG.items():
        assert [line for line in lines if line.startswith(f"{name}: ") and sentence in line], (name, lines)
    assert [line for line in lines if "report_tilte" in line] == [
        f"all {len(hosts)} hosts: report_tilte: the role report has no such variable; did you mean "
        "report_title? If it belongs to something else, name it in nodegauge_other_variables."
    ]
    assert (played.code, len(lines)) == (2, len(WRONG) + 1)


TAGS = {
    "nccl left out": (["--skip-tags", "nccl"], {"nccl": False, "health": True, "verdict": True}),
    "report alone": (["--tags", "report"], {"nccl": False, "health": False, "verdict": False}),
    "validate": (["--tags", "validate"], {"nccl": True, "health": True, "verdict": True}),
    "nccl alone": (["--tags", "nccl"], {"nccl": False, "health": False, "verdict": False}),
}


@pytest.mark.parametrize("case", TAGS)
def test_tags_choose_probes_and_report(roles: Ansible, case: str) -> None:
    """What a tag leaves out is named in the verdict; NCCL alone gives none, and is refused."""
    options, wanted = TAGS[case]
    play = {"hosts": "all", "gather_facts": False, "roles": ["nodegauge.gpu.validate"]}
    variables = host({"nccl": True}, health=health(), nccl=nccl())
    played = roles.play([play], {"a": simulated_host(roles.folder, "a", **variables)}, *options)
    ran = [task.name for task in played.tasks if task.status != "skipped"]
    parts = {"nccl": "Measure the bandwidth", "health": "Measure health", "verdict": "Give the verdict"}
    assert {what: any(name in task for task in ran) for what, name in parts.items()} == wanted, played.output
    assert any(task.endswith("Check the variables of all hosts once") for task in ran)
    assert (played.code, "gives no verdict" in played.output) == (
        (2, True) if case == "nccl alone" else (0, False)
    )
    if case == "nccl left out":
        assert "nccl not-run: Not run: left out by --skip-tags" in message(played, "a")


def test_a_long_message_is_cut_at_its_end(plugin: Callable[[str], ModuleType]) -> None:
    """A message names its cause first; a module's traceback names it last."""
    listed = f"no such threshold: windowWarnShar (there are: {', '.join(['hotWarn'] * 200)})"
    result = {"health": {"failed": True, "msg": listed, "module_stderr": "x\n" * 900 + "KeyError: 'gpus'"}}
    [reason] = plugin("filter.validation").validation(result, "a")["reasons"]
    assert "no such threshold: windowWarnShar (there" in reason["message"]
    assert reason["message"].endswith("KeyError: 'gpus'")
