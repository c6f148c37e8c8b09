"""An API server's check of structural schemas, as far as our CRDs use it; no CEL."""

import re
from functools import cache
from typing import Any

from support.crds import version

KEEP = "x-kubernetes-preserve-unknown-fields"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
SIZES = (
    ("maxLength", str, 1),
    ("maxItems", list, 1),
    ("maxProperties", dict, 1),
    ("minLength", str, -1),
    ("minItems", list, -1),
)
BOUNDS = {*(word for word, *_ in SIZES), "enum", "pattern", "minimum", "maximum", "format"}


@cache
def schema(plural: str) -> dict[str, Any]:
    return version(plural)["schema"]["openAPIV3Schema"]


def prune(value: Any, rules: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [prune(v, rules.get("items", {})) for v in value]
    if not isinstance(value, dict) or rules.get(KEEP):
        return value
    more = rules.get("additionalProperties")
    if isinstance(more, dict):
        return {k: prune(v, more) for k, v in value.items()}
    known = rules.get("properties")
    if known is None:
        return value
    return {k: prune(v, known[k]) for k, v in value.items() if k in known}


def errors(value: Any, rules: dict[str, Any], path: str = "") -> list[str]:
    if value is None:
        return [] if rules.get("nullable") else [f"{path}: null"]
    kind = rules.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path}: {value!r:.80} is no {kind}"]
    result = []
    if not BOUNDS.isdisjoint(rules):
        result += [f"{path}: {value!r:.80} breaks {word}" for word in _bounds(value, rules)]
    if isinstance(value, list):
        for i, item in enumerate(value):
            result += errors(item, rules.get("items", {}), f"{path}[{i}]")
    elif isinstance(value, dict):
        known, more = rules.get("properties", {}), rules.get("additionalProperties")
        result += [f"{path}.{name}: required" for name in rules.get("required", ()) if name not in value]
        for name, item in value.items():
            inner = known.get(name) or (more if isinstance(more, dict) else {})
            result += errors(item, inner, f"{path}.{name}")
    return result


def _bounds(value: Any, rules: dict[str, Any]) -> list[str]:
    broken = [
        word
        for word, kind, sign in SIZES
        if word in rules and isinstance(value, kind) and sign * len(value) > sign * rules[word]  # type: ignore[arg-type]
    ]
    if "enum" in rules and value not in rules["enum"]:
        broken.append("enum")
    if isinstance(value, str) and "pattern" in rules and not re.search(rules["pattern"], value):
        broken.append("pattern")
    if isinstance(value, int | float) and not isinstance(value, bool):
        broken += ["minimum"] if value < rules.get("minimum", value) else []
        broken += ["maximum"] if value > rules.get("maximum", value) else []
        broken += ["int64"] if rules.get("format") == "int64" and not -(2**63) <= value < 2**63 else []
    return broken
