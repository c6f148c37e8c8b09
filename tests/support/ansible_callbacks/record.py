"""A callback plugin for tests: each task's result on each host is a line of JSON in $RECORD_TASKS."""

from __future__ import annotations

DOCUMENTATION = """
name: record
type: notification
short_description: Write each task's result to a file
description: For tests.
requirements: [RECORD_TASKS in the environment]
"""

import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

from ansible.plugins.callback import CallbackBase  # noqa: E402


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "record"

    def _record(self, status, result):
        line = {"host": result._host.get_name(), "name": result._task.get_name().strip()}
        line |= {"status": status, "result": result._result}
        with Path(os.environ["RECORD_TASKS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def v2_runner_on_ok(self, result):
        self._record("ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._record("failed", result)

    def v2_runner_on_skipped(self, result):
        self._record("skipped", result)

    def v2_runner_on_unreachable(self, result):
        self._record("unreachable", result)
