# nodegauge: Apache-2.0, see LICENSE
"""What the actions of all probes do: bring the archive to the host, measure there, judge here.

Must not judge by itself: the verdict is the judge's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import archive as archives
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import host_python
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.judging import CannotJudge, judge, with_steps

STEPS = {
    "library-not-found": [
        "Run `nvidia-smi` on the host: if it fails too, install the NVIDIA driver.",
        "If it works, the library is in a folder that only it knows: set LD_LIBRARY_PATH in the task's "
        "`environment`.",
    ],
    "driver-not-loaded": [
        "`lsmod | grep nvidia`, then `modprobe nvidia` on the host; `dmesg | tail` says why it fails.",
        "After an update of the kernel: build the module again (`dkms status`), or reboot.",
    ],
    "probe-crashed": ["Report it with the task's result, the driver's version and the GPU's model."],
    "probe-terminated": [
        "Somebody or the kernel ended the probe: `dmesg | tail -50` on the host. Then repeat."
    ],
    "probe-problem": ["Read the message; `dmesg | grep -iE 'NVRM|Xid'` on the host has more."],
    "probe-deadline": [
        "With persistence off, the first call takes seconds for each GPU: `nvidia-smi -pm 1`.",
        "Raise `timeout` of the task.",
    ],
    "NoEngine": [
        "With nccl-tests on the host: `engine: nccl-tests` and `nccl_tests: FOLDER` of all_reduce_perf.",
        "Without: build an archive that contains NCCL, and name it with `archive`.",
    ],
    "NoCuda": ["Run `nvidia-smi` on the host. The driver's package with libcuda.so.1 must be installed."],
}
"""What to do on a host that Ansible manages, where the judge's steps are about pods."""
CANNOT_LOAD = ("NoEngine", "NoCuda")
OTHER_KEYS = ("matrix", "labels", "read", "page", "busbw", "tflops", "reason")
"""What a judgement has beside what every probe's has, if it has it."""
SHOWN_CHARACTERS = 400
"""Of a message its beginning, which names the cause, and of a module's output its end, which does."""
SHOWN = ("index", "name", "uuid", "serial", "pci")
"""What the facts say of each GPU."""


class ProbeAction(ActionBase):
    """One probe; `load_on_gpus`: in check mode it is skipped."""

    TRANSFERS_FILES = False  # no temporary folder before it is known that the host can be measured
    _supports_check_mode = True
    _supports_async = False
    load_on_gpus: ClassVar[bool] = False
    arguments: ClassVar[Mapping[str, Any]] = {}

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The task's result."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, options = self.validate_argument_spec(argument_spec=dict(self.arguments))
        if self.load_on_gpus and self._task.check_mode:
            reason = "check mode: this probe puts load on the GPUs"
            return {
                "changed": False,
                "skipped": True,
                "skip_reason": reason,
                "verdict": "skipped",
                "summary": reason,
            }
        archive = archives.on_controller(options["archive"])
        options["name"] = options["name"] or variables.get("inventory_hostname", "")
        result = self._measured(archive, options, variables)
        if result.get("failed"):
            return result
        try:
            return {**result, **self._judged(archive, options, result["document"])}
        except CannotJudge as error:
            raise AnsibleActionFail(str(error), result=result) from error

    def _measured(self, archive: Path, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """The module's result: `document`, or why there is none."""
        try:
            python = self._python(archive, options, variables)
        except host_python.NoPython as none:
            return {"failed": True, "msg": with_steps(str(none), none.steps), "steps": none.steps}
        if python:
            variables = host_python.using(python, self, variables)
        kept = options["keep_archive"]
        if kept:
            path, changed = archives.keep_on_host(self, archive, kept, variables)
        else:
            path, changed = archives.copy_to_host(self, archive), False
        given = {name: value for name, value in options.items() if name not in ("policy", "before")}
        result = self._execute_module(module_args={**given, "archive": path}, task_vars=variables)
        result["changed"] = changed
        if python:
            result["python"] = python._asdict()
        if result.get("failed") or "document" not in result:
            return {**result, "failed": True, "msg": _why_not(result)}
        result.pop("invocation", None)
        return result

    def _python(
        self, archive: Path, options: dict[str, Any], variables: dict[str, Any]
    ) -> host_python.HostPython | None:
        """What runs module and probe on the host: one of its own, else the one of `bring_python`."""
        nccl = options.get("engine") == "nccl4py"
        tarball = options["bring_python"]
        try:
            return host_python.find(self, archive, variables, nccl=nccl)
        except host_python.NoPython:
            if not tarball:
                raise
        return host_python.bring(self, Path(tarball).expanduser(), host_python.fitting(archive, nccl=nccl))

    def _judged(self, archive: Path, options: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        node = {"name": options["name"], "expectedGpus": options["expected_gpus"]}
        judgement = judge(archive, document, policy=options["policy"], before=options["before"], node=node)
        result = {
            "verdict": judgement["verdict"],
            "summary": judgement["summary"],
            "findings": [
                {**finding, "steps": STEPS.get(finding["code"], finding["steps"])}
                for finding in judgement["findings"]
            ],
            "interconnect": judgement.get("interconnect"),
            "facts": facts(document, judgement),
            "judge_version": judgement["judge_version"],
            "probe_version": judgement["judge_version"],  # the same file
            **{key: judgement[key] for key in OTHER_KEYS if judgement.get(key)},
        }
        if _unmeasured(document, judgement):
            steps = [step for finding in result["findings"] for step in finding["steps"]]
            steps = steps or STEPS.get(judgement.get("reason", ""), [])
            result.update(failed=True, steps=steps, msg=with_steps(judgement["summary"], steps))
        return result


def facts(document: Mapping[str, Any], judgement: Mapping[str, Any]) -> dict[str, Any]:
    """What the host has, for `set_fact`; null or empty where it could not be read."""
    system = document.get("system") or {}
    judged = judgement.get("gpus")  # a count in the judgement of some probes
    gpus = _records(judged if judged and isinstance(judged, list) else document.get("gpus"))
    interconnect = judgement.get("interconnect") or {}
    return {
        "driver": _text(system.get("driver")) or "",
        "cuda": _cuda(system.get("cuda")),
        "gpu_count": len(gpus),
        "gpus_expected": (judgement.get("coverage") or {}).get("stated") or None,
        "models": sorted({name for gpu in gpus if (name := _text(gpu.get("name")))}),
        "gpus": [{key: _text(gpu[key]) for key in SHOWN if key in gpu} for gpu in gpus],
        "interconnect": interconnect.get("class"),
        "nvlink_gbps": interconnect.get("nvlinkGbps"),
    }


def _records(gpus: Any) -> list[Mapping[str, Any]]:
    """The GPUs one by one, with what is shown of them: a document has them by column."""
    if not isinstance(gpus, Mapping):
        return [gpu for gpu in gpus or () if isinstance(gpu, Mapping)]
    columns = {key: gpus[key] for key in SHOWN if key in gpus}
    return [{key: _cell(column, row) for key, column in columns.items()} for row in range(gpus["rows"])]


def _cell(column: Any, row: int) -> Any:
    """The value of one GPU: of a list, of a list in which values repeat, or of all."""
    if isinstance(column, Mapping) and "of" in column:
        at = column["at"][row]
        return None if at is None else column["of"][at]
    return column[row] if isinstance(column, list) else column


def _text(value: Any) -> Any:
    """A value of a document: null where it says why there is none."""
    return None if isinstance(value, Mapping) else value


def _cuda(version: Any) -> str:
    """NVML's number: 12040 is 12.4."""
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) and version > 0 else ""


def _unmeasured(document: Mapping[str, Any], judgement: Mapping[str, Any]) -> bool:
    """Whether nothing could be judged because of the host or the archive, rather than because it is busy."""
    problem = judgement["verdict"] == "unknown" and document.get("problem")
    return bool(problem) or judgement.get("reason") in CANNOT_LOAD


def _why_not(result: Mapping[str, Any]) -> str:
    """The module's message with its steps; a module that did not even run has Ansible's words in it."""
    if "steps" in result:
        return with_steps(str(result.get("msg", "")), result["steps"])
    message, *output = (
        str(result.get(key) or "").strip() for key in ("msg", "module_stderr", "module_stdout")
    )
    parts = (message[:SHOWN_CHARACTERS], *(part[-SHOWN_CHARACTERS:] for part in output))
    text = " ".join(" ".join(part.split()) for part in parts if part)
    return text or "The module returned nothing."
