"""The role `report`: one page and one JSON file about every host of a play, also those without an answer."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage
from support.validated import MATRIX, finding, health, host, simulate

UNREACHABLE = {"unreachable": True, "msg": "Failed to connect to the host via ssh: Connection refused"}
HOSTILE = "<script>alert(1)</script>\"' onload='x' {{ 7 * 7 }} & `<b>rm`"
VALIDATE = {"name": "validate", "ansible.builtin.include_role": {"name": "nodegauge.gpu.validate"}}
HOSTS: dict[str, dict[str, Any]] = {
    "gpu-10": {"gpu_health": health()},
    "gpu-2": {"gpu_health": health("fail", finding())},
    "gpu-3": {"gpu_health": UNREACHABLE},
    "gpu-1": {"gpu_health": health("warn", finding("hot", "warn"), finding("pcie-narrow", "info"))},
}


@pytest.fixture
def roles(tmp_path: Path) -> Ansible:
    """ansible-core with the collection staged, whose modules are simulated."""
    simulate(stage(tmp_path))
    return Ansible(tmp_path)


def report(
    ansible: Ansible,
    hosts: dict[str, dict[str, Any]],
    *options: str,
    before: list[dict[str, Any]] | None = None,
) -> Played:
    """One play that validates these hosts and writes the report; `before`: tasks of the play's own."""
    variables = {"validate_report_dir": str(ansible.folder / "out" / "report")}
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars": variables,
        "tasks": [*(before or []), VALIDATE],
    }
    return ansible.play(
        [play], {name: host(ansible.folder, name, **of) for name, of in hosts.items()}, *options
    )


def html(ansible: Ansible) -> str:
    return (ansible.folder / "out" / "report" / "report.html").read_text(encoding="utf-8")


def written(ansible: Ansible) -> dict[str, Any]:
    text = (ansible.folder / "out" / "report" / "report.json").read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_host_is_a_row_the_worst_first(roles: Ansible) -> None:
    """A host that failed before the role ran is a row too."""
    broken = {
        "ansible.builtin.command": "false",
        "when": "inventory_hostname == 'gpu-0'",
        "changed_when": False,
    }
    played = report(roles, {**HOSTS, "gpu-0": {}}, before=[broken])
    rows = {row["host"]: row for row in written(roles)["hosts"]}
    assert list(rows) == ["gpu-2", "gpu-0", "gpu-3", "gpu-1", "gpu-10"], played.output
    assert [row["cause"] for row in rows.values()] == ["link-down", "no-answer", "unreachable", "hot", ""]
    assert all(row["reasons"][0]["what_to_do"] for row in rows.values() if row["verdict"] != "pass")
    assert written(roles)["counts"] == {"fail": 1, "unknown": 2, "warn": 1, "pass": 1}
    text = Page(html(roles)).text
    for sentence in (
        "Look at the link.",
        "Connection refused",
        "--limit gpu-0",
        "50 GB/s",
        "460.32.03",
        "pcie-narrow",
    ):
        assert sentence in text


def test_the_report_is_written_when_every_host_fails(roles: Ansible) -> None:
    """The play ends there, and the page exists."""
    played = report(roles, {"a": {"gpu_health": health("fail", finding())}})
    assert (played.code, written(roles)["counts"]["fail"]) == (2, 1)


def test_a_matrix_that_hosts_share_is_shown_once(roles: Ansible) -> None:
    """With its hosts; another matrix stands out."""
    other = health(matrix=MATRIX.replace("NV1", "NV2"))
    report(roles, {"a": {"gpu_health": health()}, "b": {"gpu_health": other}, "c": {"gpu_health": health()}})
    assert [one["hosts"] for one in written(roles)["topologies"]] == [["a", "c"], ["b"]]
    assert html(roles).count("GPU0   X    NV1") == 1
    assert html(roles).count("bonded NVLinks") == 1


def test_a_second_run_changes_nothing(roles: Ansible) -> None:
    """Also later: the time is that of the first run with these results."""
    report(roles, HOSTS)
    first, since = html(roles), written(roles)["since"]
    path = roles.folder / "out" / "report" / "report.json"
    path.write_text(path.read_text().replace(since, "2001-01-01T00:00:00Z"), encoding="utf-8")
    page = path.with_name("report.html")
    page.write_text(page.read_text().replace(since, "2001-01-01T00:00:00Z"), encoding="utf-8")
    assert report(roles, HOSTS).changed == []
    assert html(roles) == first.replace(since, "2001-01-01T00:00:00Z")
    repaired = report(roles, {**HOSTS, "gpu-2": {"gpu_health": health()}})
    assert repaired.changed
    assert written(roles)["since"] >= since


def test_check_mode_writes_nothing(roles: Ansible) -> None:
    """Not even the folder."""
    played = report(roles, HOSTS, "--check")
    assert not (roles.folder / "out").exists()
    assert {task.status for task in played.tasks if "report" in task.name} <= {"ok", "skipped"}, played.output


def test_a_spoilt_json_is_replaced(roles: Ansible) -> None:
    """It has no time to keep."""
    (roles.folder / "out" / "report").mkdir(parents=True)
    (roles.folder / "out" / "report" / "report.json").write_text("[]{", encoding="utf-8")
    report(roles, HOSTS)
    assert len(written(roles)["hosts"]) == len(HOSTS)


def test_what_hosts_say_is_text_in_the_page(roles: Ansible) -> None:
    """No tag, no attribute, no template, no resource from elsewhere."""
    bad = finding(code=HOSTILE, subject=HOSTILE, message=HOSTILE, steps=[HOSTILE])
    note = finding(code=HOSTILE, severity="info", subject=HOSTILE, message=HOSTILE)
    hostile = health(
        "fail",
        bad,
        note,
        summary=HOSTILE,
        matrix=f"{HOSTILE}\n\nLegend:\n\n{HOSTILE}",
        interconnect={"class": HOSTILE, "nvlinkGbps": HOSTILE},
        document={"gpus": [{"name": HOSTILE}], "system": {"driver": HOSTILE}},
        judge_version=HOSTILE,
    )
    plain = json.loads(json.dumps(hostile).replace(json.dumps(HOSTILE)[1:-1], "plain"))
    report(roles, {"a": {"gpu_health": plain}})
    expected = Page(html(roles))
    report(roles, {"a": {"gpu_health": hostile}})
    page = Page(html(roles))
    assert [tag for tag in page.tags if tag != "code"] == expected.tags
    assert page.attributes == expected.attributes
    assert page.text.count("<script>alert(1)</script>") == page.text.count("{{ 7 * 7 }}") >= 10
    assert not {name for name, _ in page.attributes} & {"src", "onload", "onclick", "style"}
    assert all(value.startswith("#") for name, value in page.attributes if name == "href" and value)
