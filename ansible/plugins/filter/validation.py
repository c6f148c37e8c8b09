"""What the role `validate` decides from the results of its probes.

Must not judge a reading: each probe's verdict comes from nodegauge's judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.utils.unsafe_proxy import wrap_var

JUDGED = ("pass", "warn", "fail")
VERDICTS = ("fail", "unknown", "warn", "pass")
"""The worst first; `unknown` before `warn`, because nobody knows what is behind it."""
KEPT = (
    "document",
    "reading",
    "verdict",
    "summary",
    "findings",
    "interconnect",
    "facts",
    "psu",
    "matrix",
    "read",
    "page",
    "judge_version",
    "msg",
    "unreachable",
    "skip_reason",
)
"""What the fact keeps of a module's result."""
SHOWN = 600
"""Characters of what Ansible says."""
MISSED = {"board-incomplete", "gpu-lost"}
"""Findings by which the judge itself misses a GPU."""
NEXT = " Next: "
"""Between a finding's measurement and its first step, which the list of steps repeats."""
WHAT_TO_DO = " What to do: "
"""Between a module's message and its steps."""
CANNOT_MEASURE = (
    (
        re.compile(r"timed out|timedout", re.IGNORECASE),
        "The host did not answer in time.",
        [
            "Log in and run `timeout 30 nvidia-smi`: if it hangs too, reboot the host.",
            "If the host is only slow, raise `validate_health_timeout` (or `validate_nccl_timeout`).",
        ],
    ),
    (
        re.compile(
            r"interpreter|minimum of python|python version|unsupported python"
            r"|from __future__ import annotations|f-string|SyntaxError|not found.*python|python.*not found",
            re.IGNORECASE,
        ),
        "No Python on the host can run the probe.",
        [
            "Install Python 3.9 or newer on the host, from its distribution's packages.",
            "If it has one in an unusual path, set `ansible_python_interpreter` for this host.",
        ],
    ),
)
"""By what Ansible says about a module that did not run: what is wrong, and what to do."""


def validation(
    results: Mapping[str, Mapping[str, Any]],
    host: str,
    expected: Mapping[str, Any] | None = None,
    not_run: Mapping[str, str] | None = None,
    finished_at: str = "",
) -> dict[str, Any]:
    """The fact `nodegauge_validation` of one host.

    `results`: by probe, what its module returned; `not_run`: by probe, why it was left out. `expected`: the
    inventory's `gpus`, `model`, `interconnect`, `nvlink_gbps`; empty values expect nothing.
    """
    if "health" not in results:
        raise AnsibleFilterError("nodegauge.gpu.validation: the result of the probe `health` is missing")
    asked = [{"verdict": _verdict(result), **_names(probe, result)} for probe, result in results.items()]
    reasons = [reason for probe, result in results.items() for reason in _reasons(probe, result, host)]
    verdicts = [answer["verdict"] for answer in asked]
    if verdicts[0] in JUDGED:
        for verdict, reason in _differences(results["health"], expected or {}):
            verdicts.append(verdict)
            reasons.append(reason)
    verdict = min(verdicts, key=VERDICTS.index)
    reasons.sort(key=lambda reason: VERDICTS.index(reason["severity"]))
    reasons += [
        _reason("pass", probe, "not-run", f"Not run: {why}") for probe, why in (not_run or {}).items()
    ]
    fact = {
        "host": host,
        "verdict": verdict,
        "summary": _summary(verdict, reasons, results["health"]),
        "reasons": reasons,
        "probes": {probe: _kept(result) for probe, result in results.items()},
        "judge_version": next((answer["judge_version"] for answer in asked if answer["judge_version"]), ""),
        "finished_at": finished_at,
    }
    # What a host says is never a template (ansible-core 2.18 and older would evaluate it).
    return wrap_var(fact)


def _names(probe: str, result: Mapping[str, Any]) -> dict[str, str]:
    return {"probe": probe, "judge_version": str(result.get("judge_version") or "")}


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(result[key]) for key in KEPT if key in result}


def _plain(value: Any) -> Any:
    """Without Ansible's lazy containers, which cannot be wrapped."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _measured(result: Mapping[str, Any]) -> bool:
    """Whether a judge saw what the probe read, which may be too little."""
    return bool(result.get("verdict")) and not result.get("unreachable")


def _verdict(result: Mapping[str, Any]) -> str:
    """What was asked for and not measured is unknown: `skipped` and `no-load` accept nothing."""
    return result["verdict"] if _measured(result) and result["verdict"] in JUDGED else "unknown"


def _reason(severity: str, probe: str, code: str, message: str, steps: Iterable[str] = ()) -> dict[str, Any]:
    message = " ".join(str(message).split())
    return {
        "probe": probe,
        "code": code,
        "severity": severity,
        "message": message,
        "what_to_do": [str(step) for step in steps],
    }


def _reasons(probe: str, result: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """Why a probe's verdict is not `pass`; at least one reason then."""
    if result.get("unreachable"):
        steps = [
            f"`ansible -m ansible.builtin.ping {host}`: if it fails too, check network, sshd and key.",
            "If it works, the probe lost its connection: look at the host's console and kernel log.",
            f"Then run the play again with `--limit {host}`.",
        ]
        return [_reason("unknown", probe, "unreachable", _text(result) or "The host is unreachable.", steps)]
    if not _measured(result):
        return [_not_measured(probe, result)]
    verdict = _verdict(result)
    if verdict == "pass":
        return []
    reasons = [
        _of_finding(probe, finding, verdict)
        for finding in result.get("findings") or []
        if finding.get("severity") in ("fail", "warn")
    ]
    code = result["verdict"] if verdict == "unknown" else "summary"
    summary = result.get("summary") or "No reason was given."
    return reasons or [_reason(verdict, probe, code, summary, result.get("steps") or [])]


def _of_finding(probe: str, finding: Mapping[str, Any], verdict: str) -> dict[str, Any]:
    """A finding as a reason; a warning may be why nothing could be judged."""
    severity = "unknown" if verdict == "unknown" else finding["severity"]
    steps = finding.get("steps") or []
    message = str(finding.get("message", ""))
    if steps:
        message = message.partition(NEXT)[0]
    subject = str(finding.get("subject", ""))
    if subject not in ("", "node"):
        message = f"{subject}: {message}"
    return _reason(severity, probe, str(finding.get("code", "")), message, steps)


def _text(result: Mapping[str, Any]) -> str:
    """What Ansible says: how the message begins, for it names the cause first, and the last lines of a module
    that crashed, for they do."""
    message, *output = (
        str(result.get(key) or "").strip() for key in ("msg", "module_stderr", "module_stdout")
    )
    if len(message) > SHOWN:
        message = f"{message[:SHOWN].rstrip()} ..."
    return "\n".join(part for part in (message, *(part[-SHOWN:] for part in output)) if part)


def _not_measured(probe: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A module that ran names its steps; CANNOT_MEASURE has those for what Ansible says."""
    text = _text(result) or "The module returned no verdict."
    steps = result.get("steps") or []
    if steps:
        return _reason("unknown", probe, "not-measured", text.partition(WHAT_TO_DO)[0], steps)
    for pattern, what, usual in CANNOT_MEASURE:
        if pattern.search(text):
            return _reason("unknown", probe, "not-measured", f"{what} {text.partition(WHAT_TO_DO)[0]}", usual)
    return _reason("unknown", probe, "not-measured", text)


def _differences(health: Mapping[str, Any], expected: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Where a readable host is not what the inventory says: the verdict, and its reason."""
    checks = (_gpu_count, _model, _interconnect, _nvlink)
    differences = [check(health, expected) for check in checks]
    return [difference for difference in differences if difference is not None]


def _differs(verdict: str, code: str, message: str, variable: str) -> tuple[str, dict[str, Any]]:
    steps = [
        "Compare with the order and with `nvidia-smi topo -m` on the host.",
        f"If the host is as it should be, correct `validate_expected_{variable}` in the inventory.",
    ]
    return verdict, _reason(verdict, "health", code, message, steps)


def _names_of_gpus(health: Mapping[str, Any]) -> list[Any]:
    return [gpu.get("name") for gpu in (health.get("facts") or {}).get("gpus") or []]


def _gpu_count(health: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    wanted = int(expected.get("gpus") or 0)
    seen = len(_names_of_gpus(health))
    counted = "1 GPU" if seen == 1 else f"{seen} GPUs"
    if not wanted:
        return _nobody_says(health, seen, counted)
    if wanted == seen:
        return None
    return _differs("fail", "unexpected-gpu-count", f"{counted}, {wanted} expected", "gpus")


def _nobody_says(health: Mapping[str, Any], seen: int, counted: str) -> tuple[str, dict[str, Any]] | None:
    """A host of any number of GPUs would pass: that is a gap, unless the policy or the model's boards tell
    how many there are, or the judge misses one already."""
    stated = (health.get("facts") or {}).get("gpus_expected") or 0
    codes = {finding.get("code") for finding in health.get("findings") or []}
    if codes & MISSED or 0 < stated <= seen:
        return None
    boards = f"; boards of this model have {stated}" if stated else ""
    message = f"{counted} found, and nothing says how many there must be{boards}"
    steps = ["Set `validate_expected_gpus` of this host, or of its group, to the number that was ordered."]
    return "warn", _reason("warn", "health", "gpu-count-unstated", message, steps)


def _model(health: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    wanted = str(expected.get("model") or "")
    if not wanted:
        return None
    names = _names_of_gpus(health)
    unread = sum(not isinstance(name, str) for name in names)
    other = sorted({n for n in names if isinstance(n, str) and not fnmatchcase(n.lower(), wanted.lower())})
    if other:
        return _differs(
            "fail", "unexpected-model", f"GPUs are {', '.join(other)}; {wanted} expected", "model"
        )
    if unread or not names:
        return _differs("unknown", "unread-model", f"{unread} GPUs did not say their model", "model")
    return None


def _interconnect(
    health: Mapping[str, Any], expected: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    wanted = str(expected.get("interconnect") or "")
    seen = health.get("interconnect") or {}
    if not wanted or seen.get("class") == wanted:
        return None
    why = f" ({seen['message']})" if seen.get("message") else ""
    if seen.get("class"):
        message = f"The interconnect is {seen['class']}{why}; {wanted} expected"
        return _differs("fail", "unexpected-interconnect", message, "interconnect")
    message = f"No interconnect class could be read{why}; {wanted} expected"
    return _differs("unknown", "unread-interconnect", message, "interconnect")


def _nvlink(health: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    wanted = float(expected.get("nvlink_gbps") or 0)
    seen = (health.get("interconnect") or {}).get("nvlinkGbps")
    if not wanted or (isinstance(seen, (int, float)) and seen >= wanted):
        return None
    if isinstance(seen, (int, float)):
        message = f"NVLink has {seen:g} GB/s per GPU one way; at least {wanted:g} expected"
        return _differs("fail", "unexpected-nvlink", message, "nvlink_gbps")
    message = f"No NVLink rate could be read; at least {wanted:g} GB/s expected"
    return _differs("unknown", "unread-nvlink", message, "nvlink_gbps")


def _summary(verdict: str, reasons: list[dict[str, Any]], health: Mapping[str, Any]) -> str:
    """One sentence: the judge's if health decides, else the first reason's."""
    own = str(health.get("summary") or "") if _measured(health) else ""
    decisive = [reason for reason in reasons if reason["severity"] == verdict]
    if own and (_verdict(health) == verdict or not decisive):
        return own
    return decisive[0]["message"] if decisive else own


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"validation": validation}
