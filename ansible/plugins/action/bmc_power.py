# nodegauge: Apache-2.0, see LICENSE
"""The controller's half of bmc_power: brings the archive to where the task runs, and judges what it read."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.nodegauge.gpu.plugins.module_utils.bmc import ARGUMENTS
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import archive as archives
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.judging import CannotJudge, judge


class ActionModule(ActionBase):
    """Reads there, judges here."""

    TRANSFERS_FILES = True
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The task's result."""
        super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(
            argument_spec=dict(ARGUMENTS), mutually_exclusive=[["ca", "ca_content"]]
        )
        archive = archives.on_controller(options["archive"])
        given = {name: value for name, value in options.items() if value is not None and name != "policy"}
        path = archives.copy_to_host(self, archive)
        result = self._execute_module(module_args={**given, "archive": path}, task_vars=task_vars or {})
        result["changed"] = False
        if result.get("failed") or "reading" not in result:
            return {**result, "failed": True}
        result.pop("invocation", None)
        node = {"suppliesNeeded": options["needed"]} if options["needed"] else None
        try:
            judgement = judge(archive, result["reading"], policy=options["policy"], node=node)
        except CannotJudge as error:
            raise AnsibleActionFail(str(error), result=result) from error
        watts = {"now": "loadWatts", "peak": "peakWatts", "capacity": "capacityWatts"}
        return {
            **result,
            **{key: judgement[key] for key in ("verdict", "summary", "findings", "page", "judge_version")},
            **{key: judgement.get(key) for key in ("psu", "power", "coverage")},
            "watts": {name: judgement.get(key) for name, key in watts.items()},
        }
