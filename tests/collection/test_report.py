"""The role `report`: one page and one JSON file about every host of a play, also those without an answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nodegauge_cli.page.html import SCRIPTS
from page.demo import MACHINES
from support.page_data import data_in
from support.playbook import Ansible, Played
from support.validated import MATRIX, finding, health, host, judged

UNREACHABLE = {"unreachable": True, "msg": "Failed to connect to the host via ssh: Connection refused"}
HOSTILE = "<script>alert(1)</script>\"' onload='x' {{ 7 * 7 }} & `<b>rm`"
VALIDATE = {"name": "validate", "ansible.builtin.import_role": {"name": "nodegauge.gpu.validate"}}
OTHER_MATRIX = MATRIX.replace("NV1", "NV2")
BREAKS = {"ansible.builtin.command": "false", "when": "inventory_hostname == 'gpu-0'", "changed_when": False}
HOSTS = {
    "gpu-10": judged(MACHINES["gpu-titan"][0], name="gpu-10"),
    "gpu-2": health("fail", finding(), document={"schema": "nodegauge.dev/probe-result"}),
    "gpu-3": UNREACHABLE,
    "gpu-1": health("warn", finding("hot", "warn"), finding("pcie-narrow", "info"), matrix=OTHER_MATRIX),
    "gpu-0": {},
}
LONG_AGO = "2001-01-01T00:00:00Z"
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def report(ansible: Ansible, hosts: dict[str, dict[str, Any]], *options: str) -> Played:
    variables = {"validate_report_dir": str(folder(ansible))}
    play = {"hosts": "all", "gather_facts": False, "vars": variables, "tasks": [BREAKS, VALIDATE]}
    simulated = {name: host(ansible.folder, name, gpu_health=result) for name, result in hosts.items()}
    return ansible.play([play], simulated, *options)


def folder(ansible: Ansible) -> Path:
    return ansible.folder / "out" / "report"


def html(ansible: Ansible) -> str:
    return (folder(ansible) / "report.html").read_text(encoding="utf-8")


def written(ansible: Ansible) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder(ansible) / "report.json").read_text(encoding="utf-8"))
    return result


def shown(ansible: Ansible) -> dict[str, dict[str, Any]]:
    """What the page shows, by host."""
    return {node["name"]: node for node in data_in(html(ansible))["nodes"]}


def test_every_host_is_a_row_the_worst_first_and_a_second_run_changes_nothing(roles: Ansible) -> None:
    """Also one that failed before the role ran; a spoilt JSON file is replaced."""
    checked = report(roles, HOSTS, "--check")
    assert not (roles.folder / "out").exists()
    assert {task.status for task in checked.tasks if "report" in task.name} <= {"ok", "skipped"}
    folder(roles).mkdir(parents=True)
    (folder(roles) / "report.json").write_text("[]{", encoding="utf-8")
    played = report(roles, HOSTS)
    assert "nodegauge.dev/probe-result" not in played.output, "documents stay out of the output"
    rows = {row["host"]: row for row in written(roles)["hosts"]}
    assert list(rows) == ["gpu-2", "gpu-0", "gpu-3", "gpu-1", "gpu-10"], played.output
    assert [row["cause"] for row in rows.values()] == ["link-down", "no-answer", "unreachable", "hot", ""]
    assert all(row["reasons"][0]["what_to_do"] for row in rows.values() if row["verdict"] != "pass")
    assert written(roles)["counts"] == {"fail": 1, "unknown": 2, "warn": 1, "pass": 1}
    first, since, page = html(roles), written(roles)["since"], shown(roles)
    assert (data_in(first)["title"], first.count("</script>")) == ("GPU hosts", len(SCRIPTS) + 1)
    assert {name: node["verdict"] for name, node in page.items()} == {
        n: r["verdict"] for n, r in rows.items()
    }
    [down], [away], [silent] = (page[name]["faults"] for name in ("gpu-2", "gpu-3", "gpu-0"))
    assert (down["measured"], down["steps"]) == ("GPU 1: One link is down.", finding()["steps"])
    assert ("Connection refused" in away["measured"], "--limit gpu-0" in silent["steps"][1]) == (True, True)
    assert page["gpu-1"]["notes"] == ["pcie-narrow: GPU 1: One link is down."]
    titan = page["gpu-10"]
    assert (titan["class"], titan["usable"], titan["links"]) == ("2 x NVIDIA-TITAN-RTX", 2, 0)
    assert titan["readAt"] == rows["gpu-10"]["measured_at"] == titan["runs"][0]["readAt"]
    assert [one["hosts"] for one in written(roles)["topologies"]] == [["gpu-1"], ["gpu-2"], ["gpu-10"]]
    for path in folder(roles).iterdir():
        path.write_text(TIME.sub(LONG_AGO, path.read_text()), encoding="utf-8")
    assert report(roles, HOSTS).changed == []
    assert html(roles) == TIME.sub(LONG_AGO, first)
    hotter = HOSTS["gpu-10"] | {"page": HOSTS["gpu-10"]["page"].replace('"celsius":61', '"celsius":62')}
    assert report(roles, HOSTS | {"gpu-10": hotter}).changed
    assert shown(roles)["gpu-10"]["gpus"][0]["celsius"] == 62
    times = {row["host"]: (row["since"], row["measured_at"] >= since) for row in written(roles)["hosts"]}
    assert (times["gpu-10"], written(roles)["since"]) == ((LONG_AGO, True), LONG_AGO)
    assert report(roles, HOSTS | {"gpu-2": health()}).changed
    assert written(roles)["since"] >= since


def test_what_hosts_say_is_text_in_the_page(roles: Ansible) -> None:
    """No tag, no template; also where every host fails."""
    texts = {"code": HOSTILE, "subject": HOSTILE, "message": HOSTILE}
    hostile = health(
        "fail",
        finding(**texts, steps=[HOSTILE]),
        finding(**texts, severity="info"),
        summary=HOSTILE,
        matrix=f"{HOSTILE}\n\nLegend:\n\n{HOSTILE}",
        interconnect={"class": HOSTILE, "nvlinkGbps": HOSTILE},
        facts={"gpus": [{"name": HOSTILE}], "gpus_expected": 1, "driver": HOSTILE},
        read=HOSTILE,
        judge_version=HOSTILE,
        page=HOSTILE,
    )
    assert (report(roles, {"a": hostile}).code, written(roles)["counts"]["fail"]) == (2, 1)
    page, node = html(roles), shown(roles)["a"]
    assert page.lower().count("<script") == page.lower().count("</script") == len(SCRIPTS) + 1
    assert (node["summary"], node["faults"][0]["code"], node["faults"][0]["steps"]) == (
        HOSTILE,
        HOSTILE,
        [HOSTILE],
    )
    assert node["faults"][0]["measured"] == f"{HOSTILE}: {HOSTILE}"
    assert node["notes"][0] == f"{HOSTILE}: {HOSTILE}: {HOSTILE}"
    assert node["notes"][1].startswith("What was read of health cannot be shown: ")


def test_a_limited_run_keeps_the_other_rows_with_their_time(roles: Ansible) -> None:
    """They are marked.  A host that left the inventory loses its row; `--tags report` measures nothing."""
    report(roles, HOSTS)
    before = {row["host"]: row for row in written(roles)["hosts"]}
    changed = HOSTS | {"gpu-2": health(), "gpu-10": {}}
    checked = report(roles, changed, "--limit", "gpu-2,gpu-3", "--check", "--diff")
    lines = checked.task("nodegauge.gpu.report : Name the rows that change", "gpu-2").result["msg"]
    others = ("gpu-0: unknown (no-answer)", "gpu-1: warn (hot)", "gpu-10: pass")
    kept = [f"{line} -> {line.partition(': ')[2]}, not measured in this run" for line in others]
    assert sorted(lines) == sorted([*kept, "gpu-2: fail (link-down) -> pass"])
    assert not {"<!doctype", "+++"} & set(re.findall(r"<!doctype|\+\+\+", checked.output))
    assert {row["host"]: row for row in written(roles)["hosts"]} == before
    assert report(roles, changed, "--limit", "gpu-2,gpu-3").changed
    after = {row["host"]: row for row in written(roles)["hosts"]}
    assert {name: (row["verdict"], row["this_run"]) for name, row in after.items()} == {
        "gpu-0": ("unknown", False),
        "gpu-1": ("warn", False),
        "gpu-2": ("pass", True),
        "gpu-3": ("unknown", True),
        "gpu-10": ("pass", False),
    }
    assert all(after[name]["since"] == before[name]["since"] for name in ("gpu-1", "gpu-3", "gpu-10"))
    marked = {name for name, node in shown(roles).items() if "not-this-run" in node["causes"]}
    assert marked == {"gpu-0", "gpu-1", "gpu-10"}
    assert shown(roles)["gpu-10"]["class"] == "2 x NVIDIA-TITAN-RTX"
    assert report(roles, changed, "--limit", "gpu-2,gpu-3").changed == []
    assert report(roles, HOSTS, "--tags", "report").code == 0
    again = {row["host"]: row["verdict"] for row in written(roles)["hosts"]}
    assert again == {name: row["verdict"] for name, row in after.items()}
    report(roles, {"gpu-2": health()})
    assert [row["host"] for row in written(roles)["hosts"]] == ["gpu-2"]
