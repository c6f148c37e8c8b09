"""Changes in the text of a YAML or JSON file, so that it says something else and keeps comments and order.

Text in, text out; must not know what the file is for.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import yaml
from ansible.errors import AnsibleFilterError

EDITS = 100
"""More changes than any file needs: then the text cannot be brought to what is wanted."""


class Edit(NamedTuple):
    """Characters of the text to replace."""

    start: int
    end: int
    text: str


def loaded(text: str, name: str) -> list[Any]:
    """The documents of a file; AnsibleFilterError names the file and the line of what is wrong."""
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        why = getattr(error, "problem", None) or str(error)
        raise AnsibleFilterError(f"{name}: {line}no YAML: {why}. Correct it first.") from error


def edited(text: str, wanted: list[Any], name: str) -> str:
    """The text whose documents are these.  Keys of mappings are added and changed, never removed.

    Raises AnsibleFilterError where that cannot be done without touching anything else.
    """
    for _edit in range(EDITS):
        now = loaded(text, name)
        if now == wanted:
            return text
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        edits = (_edit_of(text, *each) for each in zip(nodes, now, wanted, strict=False))
        edit = next(filter(None, edits), None)
        if edit is None:
            break
        text = text[: edit.start] + edit.text + text[edit.end :]
        try:
            loaded(text, name)
        except AnsibleFilterError:
            break
    raise AnsibleFilterError(f"{name} cannot be edited safely. Write it by hand: {json.dumps(wanted)}")


def _edit_of(text: str, node: yaml.Node, now: Any, wanted: Any) -> Edit | None:
    """The first change that brings this node nearer to what is wanted."""
    if now == wanted:
        return None
    if isinstance(node, yaml.MappingNode) and isinstance(wanted, dict):
        values = {key.value: value for key, value in node.value}
        for key, value in wanted.items():
            if key not in values:
                return _put(text, node, key, value)
            if edit := _edit_of(text, values[key], now.get(key), value):
                return edit
        return None
    if isinstance(node, yaml.SequenceNode) and isinstance(wanted, list):
        return _edit_of_list(text, node, now, wanted)
    at, written = node.start_mark.index, json.dumps(wanted)
    gap = "" if text[at - 1 : at].isspace() else " "
    return Edit(at, _end(node), gap + written)


def _edit_of_list(text: str, node: yaml.SequenceNode, now: list[Any], wanted: list[Any]) -> Edit | None:
    """An item that goes, one that comes as the first, or a change within one."""
    if len(now) > len(wanted):
        kept = next(
            (i for i, (one, other) in enumerate(zip(now, wanted, strict=False)) if one != other), len(wanted)
        )
        return _without(text, node, kept)
    if len(now) == len(wanted):
        edits = (_edit_of(text, *each) for each in zip(node.value, now, wanted, strict=True))
        return next(filter(None, edits), None)
    item, at = json.dumps(wanted[0]), node.start_mark.index
    if node.flow_style:
        return Edit(at + 1, at + 1, item + (", " if node.value else ""))
    return Edit(at, at, f"- {item}{_newline(text)}{' ' * node.start_mark.column}")


def _put(text: str, node: yaml.MappingNode, key: str, value: Any) -> Edit:
    """A key as the mapping's first, its value on one line."""
    at = node.start_mark.index
    if node.flow_style:
        comma = ", " if node.value else ""
        return Edit(at + 1, at + 1, f"{json.dumps(key)}: {json.dumps(value)}{comma}")
    return Edit(at, at, f"{key}: {json.dumps(value)}{_newline(text)}{' ' * node.start_mark.column}")


def _without(text: str, node: yaml.SequenceNode, index: int) -> Edit:
    """Without one item; the last one leaves an empty list, which may mean something else than none."""
    items = node.value
    start, end = items[index].start_mark.index, _end(items[index])
    if not node.flow_style and len(items) == 1:
        return Edit(node.start_mark.index, end, "  []")  # further in than its key
    if not node.flow_style:
        start = text.rfind("\n", 0, text.rfind("-", 0, start)) + 1
        line_end = text.find("\n", end)
        return Edit(start, line_end + 1 if line_end >= 0 else len(text), "")
    if index + 1 < len(items):
        end = items[index + 1].start_mark.index
    elif index:
        start = _end(items[index - 1])
    return Edit(start, end, "")


def _end(node: yaml.Node) -> int:
    """Where a node's own text ends; PyYAML's mark of a block lies behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
