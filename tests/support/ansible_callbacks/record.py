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
from functools import partialmethod  # noqa: E402
from pathlib import Path  # noqa: E402

from ansible.plugins.callback import CallbackBase  # noqa: E402


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "record"

    def _record(self, status, result, ignore_errors=False):
        line = {"host": result._host.get_name(), "name": result._task.get_name().strip()}
        line |= {"status": status, "result": result._result}
        with Path(os.environ["RECORD_TASKS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")

    v2_runner_on_ok = partialmethod(_record, "ok")
    v2_runner_on_skipped = partialmethod(_record, "skipped")
    v2_runner_on_unreachable = partialmethod(_record, "unreachable")
    v2_runner_on_failed = partialmethod(_record, "failed")
