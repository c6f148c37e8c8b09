"""What a page of `nodegauge report --html`, or of the Ansible role, shows."""

from __future__ import annotations

import json
import re
from typing import Any

from nodegauge_cli.page.html import SHARED


def data_in(html: str) -> dict[str, Any]:
    """Its data element."""
    [text] = re.findall(r'id="data">(.*?)</script>', html, re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    for value in data["shared"]:
        if isinstance(value, dict | list):
            whole(value, data["shared"])
    return {**data, "nodes": whole(data["nodes"], data["shared"])}


def whole(value: Any, shared: list[Any]) -> Any:
    """As `whole` of dom.js: with each reference replaced by what is in the table."""
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(part, str) and part.startswith(SHARED):
            value[key] = shared[int(part[1:])]
        elif isinstance(part, dict | list):
            whole(part, shared)
    return value
