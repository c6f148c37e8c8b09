"""Values of Kubernetes objects as JSON, whoever wrote them: what has another type counts as absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]


def name_of(body: Object) -> str:
    """`metadata.name`."""
    return word(mapping(body.get("metadata")).get("name"))


def word(value: object) -> str:
    """A text, else an empty one."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Object:
    """A mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> Iterable[Any]:
    """A list, else an empty one."""
    return value if isinstance(value, list) else ()


def of_status(report: Object, *path: str) -> Any:
    """A value of another node's status; None if it is not there."""
    value: Any = report.get("status")
    for name in path:
        value = mapping(value).get(name)
    return value
