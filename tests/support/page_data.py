"""What a page of `nodegauge report --html`, or of the Ansible role, shows."""

from __future__ import annotations

import json
import re
from typing import Any


def data_in(html: str) -> dict[str, Any]:
    """Its data element."""
    [text] = re.findall(r'id="data">(.*?)</script>', html, re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    return data
