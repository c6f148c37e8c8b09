"""`nodegauge report --html`: its data, and the page in a real Chromium.

The browser's test needs Chromium, node and npm.  `.ci/run` requires it (NODEGAUGE_BROWSER=required, after
`.ci/browser.py`); elsewhere it is skipped if one of them is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from nodegauge_cli.__main__ import main
from nodegauge_cli.cluster import NODES, READINGS, REPORTS
from nodegauge_cli.judging import Criteria
from nodegauge_cli.judging import judged as judge
from nodegauge_cli.page.html import SCRIPTS, SHARED, page
from nodegauge_cli.page.judged import from_judged, part_of
from nodegauge_cli.page.model import NodeData
from nodegauge_judge import Verdict
from nodegauge_operator import names
from page import demo
from support.kubectl import FakeKubectl
from support.page_data import data_in
from testbed.binaries import cache_folder

FOLDER = Path(__file__).parent
PROGRAMS = ("chromium", "node", "npm")
Browse = Callable[..., list[dict[str, Any]]]


def report(*arguments: str | Path, stdin: str = "") -> tuple[int, str]:
    outcome = CliRunner().invoke(main, ["report", *map(str, arguments)], input=stdin)
    return outcome.exit_code, outcome.output


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The data that the command puts into the page of the demo's objects, and the nodes of its hosts."""
    objects = tmp_path_factory.mktemp("objects") / "fleet.json"
    objects.write_text(json.dumps({"kind": "List", "items": list(demo.bodies())}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: demo.NOW)
        code, html = report("--from", objects, "--html", "-")
    assert (code, html.count("</script>")) == (0, len(SCRIPTS) + 1)
    shown, hosts = data_in(html), data_in(demo.html_of_hosts())
    assert (hosts["unit"], [bool(hosts["matrices"]), hosts["trend"]]) == ("host", [True, []])
    assert [text.partition(": ")[2] for text in hosts["problems"]] == ["host-gpu-h100-1.", "host-new."]
    return shown | {"nodes": shown["nodes"] + hosts["nodes"]}


@pytest.mark.parametrize(
    ("node", "path", "value"),
    [
        ("gpu-h100-slow", "lost", {"nvlink": 8}),
        ("gpu-h100-slow", "bandwidth.0.floor", 415.8),
        ("gpu-h100-slow", "supplies.3.state", "Critical"),
        ("gpu-h100-slow", "days.values.allReduce.12", None),
        ("gpu-h100-slow", "faults.0.gpus.0.serial", "1654922001202"),
        ("gpu-h100-2", "gpus.7.missing", True),
        ("gpu-titan", "fed", 0.42),
        ("gpu-new", "verdict", "unknown"),
        ("gpu-new", "causes", ["unread"]),
        ("host-gpu-h100-slow", "lost", {"nvlink": 8}),
        ("host-gpu-h100-slow", "faults.0.gpus.0.serial", "1654922001202"),
        (
            "host-gpu-h100-slow",
            "faults.0.steps.0",
            "`nvidia-smi nvlink -s -i 2` shows the link that is down.",
        ),
        ("host-gpu-h100-slow", "bandwidth.0.floor", 415.8),
        ("host-gpu-h100-slow", "supplies.3.state", "Critical"),
        ("host-gpu-h100-slow", "psu", "redundancy-lost"),
        ("host-gpu-h100-slow", "taints", None),
        ("host-gpu-h100-slow", "runs.3.verdict", "skipped"),
        ("host-gpu-h100-1", "causes", ["not-this-run"]),
        ("host-gpu-h100-1", "runs.0.readAt", "2026-11-18T08:00:00Z"),
        (
            "host-gpu-phb",
            "notes.0",
            "What was read of load cannot be shown: JSON is malformed: invalid character (byte 0).",
        ),
        ("host-new", "causes", ["no-answer", "unread"]),
        ("host-new", "faults.0.severity", "unknown"),
        ("host-new", "readAt", None),
        ("gpu-hostile", "usable", None),
        ("gpu-hostile", "summary", demo.HOSTILE),
    ],
)
def test_the_page_gets_what_the_objects_say(shown: dict[str, Any], node: str, path: str, value: Any) -> None:
    known: Any = next(each for each in shown["nodes"] if each["name"] == node)
    for step in path.split("."):
        known = known[int(step)] if isinstance(known, list) else known.get(step)
    assert known == value


@pytest.mark.parametrize(
    ("readings", "verdict", "usable"),
    [("gpu-h100-1", "pass", 8), ("gpu-h100-slow", "fail", 0), ("gpu-dgx1", "warn", 8), ("", "unknown", 0)],
)
def test_a_machine_passes_only_if_its_gpus_were_read(readings: str, verdict: str, usable: int) -> None:
    """A good NCCL run alone is no pass."""
    health, nccl = demo.MACHINES[readings or "gpu-h100-1"]
    given = [health if readings else None, nccl]
    usual = Criteria.from_spec({})
    parts = [part_of(each, judge(each, usual), criteria=usual) for each in given if each is not None]
    data = from_judged("machine", parts).data
    assert (data.verdict.value, data.usable, "unread" in data.causes) == (verdict, usable, not readings)


def test_a_day_counts_only_nodes_that_were_read(shown: dict[str, Any]) -> None:
    days = {day["date"]: (day["usable"], day["gpus"]) for day in shown["trend"]}
    assert (days["2026-11-22"], days["2026-11-28"], "2026-11-01" in days) == ((16, 16), (8, 16), False)


def test_what_concerns_many_nodes_stands_first(shown: dict[str, Any]) -> None:
    notices = {each["title"]: each for each in shown["notices"]}
    assert [*notices] == [
        "nvlink on 1 node at once",
        "2 nodes unread",
        "Policy default",
        "Policy default is in mode Observe: nothing is written to nodes",
    ]
    incident = notices["nvlink on 1 node at once"]
    assert (incident["since"], incident["nodes"]) == (demo.INCIDENT["since"], ["gpu-h100-slow"])
    assert f"{names.CLOSE_INCIDENT}=nvlink-1" in incident["text"]
    assert "LabelRefused: say so" in notices["Policy default"]["text"]


def test_a_text_that_looks_like_a_reference_stays_a_text() -> None:
    odd = NodeData(name="n", verdict=Verdict.PASS, summary=f"{SHARED}0")
    assert data_in(page(replace(demo.data(), nodes=[odd])))["nodes"][0]["summary"] == f"{SHARED}0"


@pytest.mark.parametrize(
    ("stdin", "code", "message"),
    [("kind: List\nitems: []", 2, "no NodeReport is there"), ("{", 2, "not readable as YAML")],
)
def test_input_without_a_report_says_what_to_pass(stdin: str, code: int, message: str) -> None:
    exit_code, output = report("--from", "-", "--html", "-", stdin=stdin)
    assert (exit_code, message in output) == (code, True)


def test_what_the_cluster_refuses_is_said_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: demo.NOW + 86_400)
    kubectl = FakeKubectl(tmp_path, monkeypatch)
    for path, kind in ((REPORTS, names.REPORT_KIND), (READINGS, names.READING_KIND)):
        bodies = [body for body in demo.bodies() if body.pop("kind") == kind]  # a list's members have none
        kubectl.serve(path, bodies)
    kubectl.refuse(NODES, "Error from server (Forbidden): nodes is forbidden")
    code, html = report("--html", "-")
    shown = data_in(html)
    assert (code, len(shown["nodes"])) == (0, 9)
    assert not any(node.get("usable") for node in shown["nodes"]), "nobody has looked for a day"
    assert any("Node: " in text and "nodes is forbidden" in text for text in shown["problems"])


@pytest.mark.parametrize(
    ("asset", "digest"),
    [
        ("uplot.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uplot.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
    ],
)
def test_the_copy_of_uplot_is_that_of_its_release(asset: str, digest: str) -> None:
    """ADR 0054 names them."""
    assert (
        hashlib.sha256(files("nodegauge_cli.page").joinpath("assets", asset).read_bytes()).hexdigest()
        == digest
    )


@pytest.fixture(scope="module")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Browse:
    """Visits pages in Chromium (`browser.mjs`), and answers what it saw."""
    lacks = pytest.fail if os.environ.get("NODEGAUGE_BROWSER") == "required" else pytest.skip
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        lacks(f"no {', '.join(missing)} on PATH. Debian: apt-get install chromium nodejs npm")
    wanted = (FOLDER / "package.json").read_bytes()
    modules = cache_folder(os.environ) / f"page-{hashlib.sha256(wanted).hexdigest()[:12]}"
    if not modules.exists():
        modules.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".page-", dir=modules.parent))
        (partial / "package.json").write_bytes(wanted)
        command = ["npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=partial, capture_output=True, text=True, check=False)
        if done.returncode:
            lacks(f"`npm install` in tests/page: {done.stderr[-500:]}")
        partial.rename(modules)
    profile = tmp_path_factory.mktemp("profile")

    def visits(*wanted: dict[str, Any]) -> list[dict[str, Any]]:
        asked = {"chromium": shutil.which("chromium"), "profile": str(profile), "visits": wanted}
        run = ["node", FOLDER / "browser.mjs", modules, json.dumps(asked)]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        seen: list[dict[str, Any]] = json.loads(done.stdout)
        return seen

    return visits


FILTER, OPEN, HOSTS, MANY = yaml.safe_load((FOLDER / "steps.yaml").read_text("utf-8")).values()


def test_chromium_opens_filters_and_shows_nodes_without_a_word_or_a_request(
    browse: Browse, tmp_path: Path
) -> None:
    few, many, hosts = (tmp_path / f"{name}.html" for name in ("few", "many", "hosts"))
    few.write_text(page(demo.data()), encoding="utf-8")
    many.write_text(page(demo.data(5_000)), encoding="utf-8")
    hosts.write_text(demo.html_of_hosts(), encoding="utf-8")
    views = [{"dark": True}, {"width": 390}, {"print": True}]
    node = {"axe": True, "steps": OPEN[:2]}
    seen = browse(
        {"file": str(few), "axe": True, "steps": FILTER},
        {"file": str(few), "axe": True, "steps": OPEN},
        {"file": str(many), "steps": MANY},
        {"file": str(hosts), "axe": True, "steps": HOSTS},
        *({"file": str(few), "axe": True} | view for view in views),
        *({"file": str(few)} | node | view for view in views),
    )
    for visit in seen:
        assert (visit["said"], visit["requests"], visit["violations"], visit["wide"]) == ([], [], [], 0)
    filtered, opened, all_of_many, of_hosts = (visit["read"] for visit in seen[:4])
    assert filtered == ["9 of 9 nodes", "1 of 9 nodes", ["gpu-h100-slow"], "5 of 9 nodes", "gpu-dgx1"]
    title, third_gpu, charts, without, fleet_shown, hostile, gaps, gone = opened
    assert (title, charts, fleet_shown) == ("fail gpu-h100-slow", 4, False)
    assert third_gpu == ["NV6", "NV6", "X", "NV6", "NV6", "NV6", "NV6", "NV6"]
    assert (hostile, gone) == (demo.HOSTILE, "This page has no node of that name.")
    assert without == ["no data"]
    assert {"not read", "not measured", "The matrix was not read."} <= {*gaps}
    count, heading, sections, charts, gaps = of_hosts
    assert (count, heading, charts) == ("8 of 8 hosts", "Host", 0)
    assert sections[1:3] == ["What is known of it", "Findings"]
    assert "no data: hosts outside of a cluster have no NodeHistory" in gaps
    at_first, failing, shown = all_of_many
    assert (at_first <= 300, failing, shown) == (True, "2,223 of 5,000 nodes", 2_223)
