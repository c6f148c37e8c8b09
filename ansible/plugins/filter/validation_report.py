"""The rows of a report over many hosts, from what the role `validate` says about each.

Must not judge, and must not depend on the time: equal facts give equal bytes.  The page is made by the
archive, with the code of `nodegauge report --html`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleFilterError
from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import archive as archives
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import judging

VERDICTS = ("fail", "unknown", "warn", "pass")
LEGEND = "\n\nLegend:\n\n"
NIC_LEGEND = "\n\nNIC Legend:\n\n"
TIMES = ("since", "measured_at")
NO_ANSWER = {
    "probe": "",
    "code": "no-answer",
    "severity": "unknown",
    "message": "The role validate did not end on this host: an earlier task failed, the host was unreachable "
    "there, or the play stopped before it.",
    "what_to_do": [
        "Read this host's first error in the output of `ansible-playbook`.",
        "Then run the play again with `--limit HOST`.",
    ],
}


def validation_report(
    facts: Mapping[str, Any],
    previous: str | Mapping[str, Any] = "",
    inventory: Iterable[str] = (),
    measured: bool = True,
) -> dict[str, Any]:
    """What the pages show.

    `facts`: by host, its `nodegauge_validation`, or nothing if it has none; `previous`: the JSON of the last
    report, whose times stay while nothing else changed; rows of other hosts of the `inventory` stay.
    `measured`: whether this run asked for measurements; if not, a host without a fact keeps its row too.
    """
    before = _before(previous)
    earlier = {row["host"]: row for row in before.get("hosts", [])}
    asked = {host: fact for host, fact in facts.items() if fact or measured or host not in earlier}
    kept = [name for name in earlier if name not in asked and name in {*inventory, *facts}]
    rows = [
        _dated(_row(host, fact) if fact else _no_answer(host), fact, earlier) for host, fact in asked.items()
    ]
    rows += [{**earlier[name], "this_run": False} for name in kept]
    rows.sort(key=lambda row: (VERDICTS.index(row["verdict"]), _natural(row["host"])))
    report = {
        "version": 1,
        "counts": {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS},
        "judge_versions": sorted({row["judge_version"] for row in rows} - {""}),
        "hosts": rows,
        **_topologies(asked, before, kept),
    }
    if _without(report, *TIMES) == _without(before, *TIMES):
        rows[:] = [{**row, "measured_at": earlier[row["host"]]["measured_at"]} for row in rows]
    measured_at = max((row["measured_at"] for row in rows), default="")
    since = _since(before, report) or measured_at
    return wrap_var({**report, "since": since, "measured_at": measured_at})


def validation_page(report: Mapping[str, Any], title: str = "GPU hosts", archive: str = "") -> str:
    """The HTML page of what `validation_report` returned; `archive`: "" for the collection's."""
    try:
        plain = json.loads(json.dumps(report, default=str))
        return wrap_var(judging.page(archives.on_controller(archive), plain, title=str(title)))
    except (AnsibleActionFail, judging.CannotJudge) as error:
        raise AnsibleFilterError(f"nodegauge.gpu.validation_page: {error}") from error


def validation_report_changes(report: Mapping[str, Any], previous: str | Mapping[str, Any] = "") -> list[str]:
    """A line for each row that a report changes, adds or removes."""
    before = {row["host"]: _in_words(row) for row in _before(previous).get("hosts", [])}
    after = {row["host"]: _in_words(row) for row in report["hosts"]}
    return [
        f"{host}: {before.get(host, 'no row')} -> {after.get(host, 'no row')}"
        for host in sorted({*before, *after}, key=_natural)
        if before.get(host) != after.get(host)
    ]


def _in_words(row: Mapping[str, Any]) -> str:
    cause = f" ({row['cause']})" if row["cause"] else ""
    return f"{row['verdict']}{cause}{'' if row['this_run'] else ', not measured in this run'}"


def _before(previous: str | Mapping[str, Any]) -> dict[str, Any]:
    """The last report, with the rows that this version can show; nothing if it cannot be read."""
    shape = _dated(_no_answer(""), {}, {}).keys()
    try:  # ansible-core 2.18 and older hand over JSON as what it contains
        before = dict(previous) if isinstance(previous, Mapping) else json.loads(previous)
        before = json.loads(json.dumps(before, default=str))
        rows = [row for row in before["hosts"] if shape == row.keys() and row["verdict"] in VERDICTS]
        rows = [row for row in rows if all(isinstance(row[time], str) for time in TIMES)]
        return {**before, "hosts": rows, "topologies": before["topologies"], "legend": before["legend"]}
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}


def _since(before: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """The time of the last report if it says the same, whatever else was read, else nothing."""
    since = before.get("since")
    same = _without(report, *TIMES, "page") == _without(before, *TIMES, "page")
    return since if same and isinstance(since, str) else ""


def _without(report: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """As JSON has it, without these keys of the report and of its rows."""
    plain = json.loads(json.dumps(report, default=str))
    rows = [{key: value for key, value in row.items() if key not in keys} for row in plain.get("hosts", [])]
    return {**{key: value for key, value in plain.items() if key not in keys}, "hosts": rows}


def _dated(row: dict[str, Any], fact: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """A row of this run, with the time of the first run that said the same of its host."""
    row = {**row, "this_run": True}
    old = earlier.get(row["host"]) or {}
    now, then = (_without({"hosts": [each]}, *TIMES, "page") for each in (row, {**old, "this_run": True}))
    since = old["since"] if now == then else (fact or {}).get("finished_at", "")
    return {**row, "since": str(since)}


def _natural(host: str) -> list[tuple[int, int, str]]:
    """gpu-2 before gpu-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", host)]


def _no_answer(host: str) -> dict[str, Any]:
    steps = [step.replace("HOST", host) for step in NO_ANSWER["what_to_do"]]
    return {**_row(host, {}), "cause": "no-answer", "reasons": [{**NO_ANSWER, "what_to_do": steps}]}


def _row(host: str, fact: Mapping[str, Any]) -> dict[str, Any]:
    verdict = fact.get("verdict", "unknown")
    probes = fact.get("probes") or {}
    health = probes.get("health") or {}
    reasons = [_reason(reason) for reason in fact.get("reasons") or []]
    decisive = [reason["code"] for reason in reasons if reason["severity"] == verdict]
    facts = health.get("facts") or {}
    names = [gpu.get("name") for gpu in facts.get("gpus") or []]
    interconnect = health.get("interconnect") or {}
    gbps = interconnect.get("nvlinkGbps")
    driver = facts.get("driver")
    return {
        "host": host,
        "verdict": verdict,
        "cause": ", ".join(dict.fromkeys(decisive)) if verdict != "pass" else "",
        "summary": str(fact.get("summary", "")),
        "gpus": len(names),
        "read": str(health.get("read") or ""),
        "models": sorted({name for name in names if isinstance(name, str)}),
        "interconnect": interconnect.get("class") or "",
        "nvlink_gbps": gbps if isinstance(gbps, (int, float)) else None,
        "driver": driver if isinstance(driver, str) else "",
        "probes": {probe: str(result.get("verdict") or "unknown") for probe, result in probes.items()},
        "reasons": reasons,
        "notes": [note for probe, result in probes.items() for note in _notes(probe, result)],
        "judge_version": str(fact.get("judge_version", "")),
        "measured_at": str(fact.get("finished_at", "")),
        "page": {probe: result["page"] for probe, result in probes.items() if result.get("page")},
    }


def _reason(reason: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: str(reason.get(key, "")) for key in ("probe", "code", "severity", "message")},
        "what_to_do": [str(step) for step in reason.get("what_to_do") or []],
    }


def _notes(probe: str, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Findings of severity info: they are in no verdict."""
    findings = [finding for finding in result.get("findings") or [] if finding.get("severity") == "info"]
    return [
        {
            "probe": probe,
            "code": str(finding.get("code", "")),
            "message": f"{finding.get('subject', '')}: {_measured(finding)}",
        }
        for finding in findings
    ]


def _measured(finding: Mapping[str, Any]) -> str:
    """A finding's message without its first step."""
    return str(finding.get("message", "")).partition(" Next: ")[0]


def _topologies(facts: Mapping[str, Any], before: Mapping[str, Any], kept: Iterable[str]) -> dict[str, Any]:
    """Each matrix once, with its hosts, the most common first; and the legend that all share.  `kept`: hosts
    whose matrix is that of the last report."""
    stays = set(kept)
    hosts = {
        str(each["matrix"]): own
        for each in before.get("topologies", [])
        if (own := [name for name in each["hosts"] if name in stays])
    }
    legend: dict[str, None] = dict.fromkeys(before["legend"]) if hosts else {}
    for host in sorted(facts, key=_natural):
        health = ((facts[host] or {}).get("probes") or {}).get("health") or {}
        text = str(health.get("matrix") or "")
        if not text:
            continue
        matrix, _mark, rest = text.partition(LEGEND)
        lines, nics, names = rest.partition(NIC_LEGEND)
        legend.update(dict.fromkeys(line.rstrip() for line in lines.splitlines() if line.strip()))
        hosts.setdefault((matrix + nics + names).rstrip(), []).append(host)
    hosts = {matrix: sorted(names, key=_natural) for matrix, names in hosts.items()}
    ordered = sorted(hosts.items(), key=lambda item: (-len(item[1]), _natural(item[1][0])))
    return {
        "topologies": [{"hosts": names, "matrix": matrix} for matrix, names in ordered],
        "legend": list(legend),
    }


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "validation_report": validation_report,
            "validation_report_changes": validation_report_changes,
            "validation_page": validation_page,
        }
