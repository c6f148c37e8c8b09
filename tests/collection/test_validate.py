"""The role `validate`, with simulated modules: one verdict, one fact, and a failure of that host alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.playbook import Ansible, Played, stage
from support.validated import finding, health, nccl, simulate
from support.validated import host as simulated_host

VERDICT = "nodegauge.gpu.validate : Give the verdict"


@pytest.fixture
def roles(tmp_path: Path) -> Ansible:
    """ansible-core with the collection staged, whose modules are simulated."""
    simulate(stage(tmp_path))
    return Ansible(tmp_path)


def validate(ansible: Ansible, hosts: dict[str, dict[str, Any]], *options: str, **role: Any) -> Played:
    """The role on these hosts, each with the results of its modules, then each host's fact."""
    show = {"name": "show", "ansible.builtin.debug": {"var": "nodegauge_validation"}}
    run = {
        "name": "run",
        "ansible.builtin.include_role": {"name": "nodegauge.gpu.validate"},
        "vars": {f"validate_{name}": value for name, value in role.items()},
    }
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"block": [run], "always": [show]}]}
    simulated = {name: simulated_host(ansible.folder, name, **modules) for name, modules in hosts.items()}
    return ansible.play([play], simulated, *options)


def host(role: dict[str, Any] | None = None, **modules: dict[str, Any]) -> dict[str, Any]:
    """What its modules return, and the role's options for this host."""
    results = {"bmc_power" if name == "bmc" else f"gpu_{name}": result for name, result in modules.items()}
    return results | {f"validate_{name}": value for name, value in (role or {}).items()}


def fact(played: Played, name: str = "a") -> dict[str, Any]:
    return played.task("show", name).result["nodegauge_validation"]


def message(played: Played, name: str = "a") -> str:
    return played.task(VERDICT, name).result["msg"]


def test_one_host_fails_alone_and_says_why_and_what_to_do(roles: Ansible) -> None:
    """The first line is the verdict; each reason has a line, and its steps follow."""
    bad = host(health=health("fail", finding()))
    played = validate(roles, {"good": host(health=health()), "bad": bad})
    assert {task.host: task.status for task in played.tasks if task.name == VERDICT} == {
        "good": "ok",
        "bad": "failed",
    }, played.output
    assert message(played, "bad").splitlines() == [
        "FAIL bad must not join: 2x TITAN RTX: fail.",
        "health link-down: GPU 1: One link is down.",
        "  1. Look at the link.",
        "  2. Reseat the bridge.",
    ]
    assert fact(played, "good") == {
        **fact(played, "good"),
        "host": "good",
        "verdict": "pass",
        "reasons": [],
        "judge_version": "0.1.0",
    }
    assert played.changed == []


DECIDING: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"health": health("warn")}, {}, "warn"),
    ({"health": health("unknown")}, {}, "unknown"),
    ({"health": {"failed": True, "msg": "no archive"}}, {}, "unknown"),
    ({"health": health(), "nccl": nccl("skipped")}, {"nccl": True}, "unknown"),
    ({"health": health(), "load": nccl("no-load")}, {"load": True}, "unknown"),
    ({"health": health("warn"), "nccl": nccl("fail")}, {"nccl": True}, "fail"),
    ({"health": health("warn"), "nccl": nccl("unknown")}, {"nccl": True}, "unknown"),
    ({"health": health(), "nccl": nccl(), "load": nccl()}, {"nccl": True, "load": True}, "pass"),
    ({"health": health(), "nccl": nccl("fail")}, {"nccl": False}, "pass"),
    ({"health": health(), "bmc": nccl("warn")}, {"bmc_url": "https://bmc-1"}, "warn"),
    ({"health": health("fail"), "bmc": nccl()}, {"bmc_url": "https://bmc-1"}, "fail"),
    (
        {"health": health(), "bmc": {"failed": True, "msg": "no route"}},
        {"bmc_url": "ipmi://1"},
        "unknown",
    ),
    ({"health": health(), "bmc": nccl("fail")}, {}, "pass"),
]
"""What the modules return, what was asked for, and the verdict."""


def test_the_worst_of_what_was_asked_for_decides(roles: Ansible) -> None:
    """What was asked for and not measured is unknown, and unknown is never accepted."""
    hosts = {f"h{n}": host(role, **modules) for n, (modules, role, _) in enumerate(DECIDING)}
    played = validate(roles, hosts)
    wanted = {f"h{n}": verdict for n, (_, _, verdict) in enumerate(DECIDING)}
    assert {name: fact(played, name)["verdict"] for name in hosts} == wanted
    for name, verdict in wanted.items():
        accepted = verdict in ("pass", "warn")
        assert played.task(VERDICT, name).status == ("ok" if accepted else "failed")
        assert bool(fact(played, name)["reasons"]) == (verdict != "pass")


def test_a_probe_that_cannot_measure_ends_only_with_the_verdict(roles: Ansible) -> None:
    """Its own task does not fail, so that the output holds the message alone."""
    steps = ["Install the driver."]
    broken = health("unknown", failed=True, steps=steps, msg="No driver. What to do: Install the driver.")
    played = validate(roles, {"a": host(health=broken)})
    assert [task.name for task in played.tasks if task.status == "failed"] == [VERDICT]
    assert fact(played)["reasons"][0]["what_to_do"] == steps


def test_warnings_fail_a_host_only_where_asked(roles: Ansible) -> None:
    """`validate_fail_on: warn`."""
    hosts = {"a": host(health=health("warn", finding(severity="warn")))}
    assert validate(roles, hosts).code == 0
    strict = validate(roles, hosts, fail_on="warn")
    assert strict.code == 2
    assert message(strict).startswith("WARN a must not join: ")


def test_no_benchmark_runs_on_a_host_that_failed(roles: Ansible) -> None:
    """It says so; the modules are not called."""
    modules = {"health": health("fail", finding()), "nccl": nccl(), "load": nccl()}
    played = validate(roles, {"a": host(**modules)}, nccl=True, load=True)
    assert set(fact(played)["probes"]) == {"health"}
    assert message(played).splitlines()[-2:] == [
        "nccl not-run: Not run: health is fail; repair that first",
        "load not-run: Not run: health is fail; repair that first",
    ]


def test_no_bandwidth_is_asked_of_a_single_gpu(roles: Ansible) -> None:
    """There is nothing to measure, which is no reason to refuse the host."""
    played = validate(roles, {"a": host(health=health(gpus=1))}, nccl=True)
    assert (fact(played)["verdict"], played.code) == ("pass", 0)
    assert "nccl not-run: Not run: it needs two GPUs" in message(played)


def test_check_mode_measures_health_alone(roles: Ansible) -> None:
    """And says what was not run; a sick host still fails."""
    modules = {"nccl": nccl("fail"), "load": nccl("fail")}
    hosts = {"a": host(health=health(), **modules), "b": host(health=health("fail"), **modules)}
    played = validate(roles, hosts, "--check", nccl=True, load=True)
    assert [fact(played, name)["verdict"] for name in hosts] == ["pass", "fail"]
    assert [set(fact(played, name)["probes"]) for name in hosts] == [{"health"}] * 2
    for probe in ("nccl", "load"):
        assert f"{probe} not-run: Not run: check mode puts no load on GPUs" in message(played)


EXPECTED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"gpus": 2, "model": "titan*", "interconnect": "nvlink", "nvlink_gbps": 50}, {}, "pass", ""),
    ({"gpus": 8}, {}, "fail", "unexpected-gpu-count"),
    ({"gpus": 1}, {}, "fail", "unexpected-gpu-count"),
    ({"model": "*H100*"}, {}, "fail", "unexpected-model"),
    ({"interconnect": "pcie"}, {}, "fail", "unexpected-interconnect"),
    ({"nvlink_gbps": 100}, {}, "fail", "unexpected-nvlink"),
    ({"model": "*"}, {"document": {"gpus": [{"name": {"unavailable": "lost"}}]}}, "unknown", "ANY"),
    ({"interconnect": "nvlink"}, {"interconnect": {"class": None, "message": "hidden"}}, "unknown", "ANY"),
    ({"nvlink_gbps": 1}, {"interconnect": {"class": "nvlink", "nvlinkGbps": None}}, "unknown", "ANY"),
]
"""What the inventory says, what could not be read, the verdict, and the code of its one reason."""


def test_a_host_is_compared_with_the_inventory(roles: Ansible) -> None:
    """More GPUs than expected are a difference too; what could not be read is unknown, and no failure."""
    hosts = {
        f"h{n}": host({f"expected_{key}": value for key, value in expected.items()}, health=health(**broken))
        for n, (expected, broken, _, _) in enumerate(EXPECTED)
    }
    played = validate(roles, hosts)
    for n, (_, _, verdict, code) in enumerate(EXPECTED):
        seen = fact(played, f"h{n}")
        codes = [reason["code"] if code != "ANY" else "ANY" for reason in seen["reasons"]]
        assert (seen["verdict"], codes) == (verdict, [code] if code else []), EXPECTED[n]


def test_what_a_host_says_is_never_a_template(roles: Ansible) -> None:
    """A hostile host cannot run a lookup on the controller."""
    hostile = "{{ lookup('ansible.builtin.pipe', 'echo executed') }}"
    bad = finding(code=hostile, subject=hostile, message=hostile, steps=[hostile])
    played = validate(roles, {"a": host(health=health("fail", bad, summary=hostile))})
    assert message(played).count(hostile) == 5
    assert fact(played)["reasons"][0]["message"] == f"{hostile}: {hostile}"


def test_the_policy_may_be_a_file_on_the_controller(roles: Ansible) -> None:
    """The probe's module gets its object; a file without a policy is refused by name."""
    policy = {"kind": "GPUValidationPolicy", "spec": {"thresholds": {"hotFail": 70}}}
    file = roles.folder / "policy.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "Namespace"}, policy]), encoding="utf-8")
    hosts = {"a": host(health=health())}
    played = validate(roles, hosts, policy=str(file))
    asked = played.task("nodegauge.gpu.validate : Measure health", "a").result["asked"]
    assert asked["policy"] == policy
    file.write_text("kind: Namespace\n", encoding="utf-8")
    refused = validate(roles, hosts, policy=str(file))
    assert refused.code == 2
    assert f"{file} has 0 objects" in refused.output


def test_a_misspelt_setting_is_refused(roles: Ansible) -> None:
    """The role's argument specification lists the choices."""
    played = validate(roles, {"a": host(health=health())}, fail_on="never")
    assert played.code != 0
    assert "value of validate_fail_on must be one of" in played.output
