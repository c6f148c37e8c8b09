"""Results as the modules return them, and simulated modules for tests of the roles."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nodegauge_cli.judging_service import judgements
from nodegauge_contract import Result, text

ACTION = '''
import json
from pathlib import Path

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Returns what the file in the host's variable `simulated` holds for this module."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        name = self._task.action.rpartition(".")[2]
        results = json.loads(Path(task_vars["simulated"]).read_text())
        result = results.get(name) or {"failed": True, "msg": f"no simulated {name}"}
        return {"changed": False, "asked": dict(self._task.args), **result}
'''
MODULES = ("gpu_health", "gpu_nccl", "gpu_load", "bmc_power")
MATRIX = (
    "      GPU0  GPU1\nGPU0   X    NV1\nGPU1  NV1    X\n\nLegend:\n\n  X    = Self\n  NV#  = bonded NVLinks"
)


def simulate(collection: Path) -> None:
    for module in MODULES:
        (collection / "plugins" / "action" / f"{module}.py").write_text(ACTION, encoding="utf-8")
        (collection / "plugins" / "modules" / f"{module}.py").write_text("", encoding="utf-8")


def host(folder: Path, name: str, **values: Any) -> dict[str, Any]:
    """A host's variables: its modules return these results; those of the role `validate` are as they are."""
    path = folder / f"simulated-{name}.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    own = {key: value for key, value in values.items() if key.startswith("validate_")}
    return {"simulated": str(path), **own}


def finding(code: str = "link-down", severity: str = "fail", **more: Any) -> dict[str, Any]:
    return {
        "code": code,
        "severity": severity,
        "subject": "GPU 1",
        "message": "One link is down. Next: look at it.",
        "steps": ["Look at the link.", "Reseat the bridge."],
        **more,
    }


def health(verdict: str = "pass", *findings: Mapping[str, Any], gpus: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "summary": f"{gpus}x TITAN RTX: {verdict}.",
        "findings": list(findings),
        "interconnect": {"class": "nvlink", "nvlinkGbps": 50, "message": "both GPUs are joined"},
        "facts": {"gpus": [{"name": "TITAN RTX"}] * gpus, "gpus_expected": gpus, "driver": "460.32.03"},
        "matrix": MATRIX,
        "read": f"{gpus} of {gpus} GPUs, 6 of 6 subjects",
        "judge_version": "0.1.0",
        **more,
    }


def nccl(verdict: str = "pass", *findings: Mapping[str, Any]) -> dict[str, Any]:
    result = {"verdict": verdict, "summary": f"NCCL: {verdict}.", "findings": list(findings)}
    return result | {"judge_version": "0.1.0"}


def judged(document: Any, *, name: str) -> dict[str, Any]:
    """What the module of its probe returns of a result or a BMC's reading, by the archive's own judge."""
    request = {"documents": [msgspec.json.encode(document).decode()], "node": {"name": name}}
    if isinstance(document, Result):
        request["documents"] = [text(document)]
    [judgement] = judgements(msgspec.json.encode(request))
    findings = [{**each, "steps": judgement["steps"].get(each["code"], [])} for each in judgement["findings"]]
    gpus = judgement.get("gpus") if judgement["probe"] == "health" else None
    facts = {"gpus": gpus or [], "gpus_expected": len(gpus or []), "driver": judgement.get("driver", "")}
    return {**judgement, "findings": findings, "facts": facts, "judge_version": "0.1.0"}
