"""The registration taint as text and in a KubeletConfiguration.

Text in, text out; comments, other fields and other taints stay. Must not read or write files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.yaml_edit import loaded

KEY = "nodegauge.dev/unvalidated"
OURS = f"{KEY}=:NoSchedule"
FIELD = "registerWithTaints"
NAME = "the KubeletConfiguration"


def kubelet_config_gate(text: str, state: str = "present", name: str = NAME) -> str:
    """A KubeletConfiguration (YAML or JSON) that registers the node with our taint, or without it.

    `name`: the file, for errors.

    Raises AnsibleFilterError if `text` is no KubeletConfiguration, or the taint cannot be set without
    touching anything else.
    """
    before = configuration(text, name)
    present = [as_flag(entry) for entry in before.get(FIELD) or []]
    closed = any(is_closing(taint) for taint in present)
    others = [entry for entry in before.get(FIELD) or [] if not is_ours(as_flag(entry))]
    if (state == "present" and closed) or (state == "absent" and len(others) == len(present)):
        return text
    result = text
    while (index := _first_of_ours(result)) is not None:
        result = _without_item(result, index)
    if state == "present":
        result = _with_item(result, {"key": KEY, "effect": "NoSchedule"})
        others = [{"key": KEY, "effect": "NoSchedule"}, *others]
    wanted = {**before, FIELD: others}
    if _plain(wanted) != _plain(configuration(result)):
        raise AnsibleFilterError(
            f"{FIELD} of this KubeletConfiguration cannot be edited safely. Set it by hand:"
            f" {json.dumps(others)}"
        )
    return result


def is_ours(taint: str) -> bool:
    """Whether this is our taint, with whatever value and effect."""
    return taint.replace(":", "=").partition("=")[0] == KEY


def is_closing(taint: str) -> bool:
    """Whether this is our taint with an effect that keeps pods off: a node with it is closed already."""
    return is_ours(taint) and taint.rpartition(":")[2] in ("NoSchedule", "NoExecute")


def newline_of(text: str) -> str:
    """How lines of this text end."""
    return "\r\n" if "\r\n" in text else "\n"


def configuration(text: str, name: str = NAME) -> dict[str, Any]:
    """The KubeletConfiguration in a file.  Raises AnsibleFilterError if it is none."""
    documents = loaded(text, name)
    result = documents[0] if len(documents) == 1 else None
    if not isinstance(result, dict) or result.get("kind", "KubeletConfiguration") != "KubeletConfiguration":
        raise AnsibleFilterError(
            f"{name} is empty or no KubeletConfiguration. Name the kubelet's --config file."
        )
    entries = result.get(FIELD)
    if entries is not None and not (isinstance(entries, list) and all(isinstance(e, dict) for e in entries)):
        raise AnsibleFilterError(
            f"{FIELD} of the KubeletConfiguration is no list of taints. Correct it first."
        )
    return result


def as_flag(entry: Mapping[str, Any]) -> str:
    """A taint of the KubeletConfiguration as `--register-with-taints` writes it."""
    return f"{entry.get('key', '')}={entry.get('value') or ''}:{entry.get('effect', '')}"


def _plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Where an empty list of taints is the same as none."""
    return {key: value for key, value in configuration.items() if key != FIELD or value}


def _field(text: str) -> tuple[yaml.MappingNode, yaml.Node | None]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise AssertionError("the caller has read a mapping")
    return root, next((value for key, value in root.value if key.value == FIELD), None)


def _first_of_ours(text: str) -> int | None:
    entries = configuration(text).get(FIELD) or []
    return next((i for i, entry in enumerate(entries) if is_ours(as_flag(entry))), None)


def _with_item(text: str, item: Mapping[str, str]) -> str:
    """Our taint as the list's first."""
    root, node = _field(text)
    newline, flow = newline_of(text), json.dumps(item)
    if node is None and root.flow_style:
        comma = ", " if root.value else ""
        at = root.start_mark.index + 1
        return f'{text[:at]}"{FIELD}": [{flow}]{comma}{text[at:]}'
    if node is None:
        at, pad = root.start_mark.index, " " * root.start_mark.column
        return f"{text[:at]}{newline.join((f'{FIELD}:', *_block(item, pad)))}{newline}{pad}{text[at:]}"
    at = node.start_mark.index
    if not isinstance(node, yaml.SequenceNode):
        gap = "" if text[at - 1 : at].isspace() else " "
        return f"{text[:at]}{gap}[{flow}]{text[node.end_mark.index :]}"
    if node.flow_style:
        comma = ", " if node.value else ""
        return f"{text[: at + 1]}{flow}{comma}{text[at + 1 :]}"
    pad = " " * node.start_mark.column
    return f"{text[:at]}{newline.join(_block(item, pad)).lstrip()}{newline}{pad}{text[at:]}"


def _block(item: Mapping[str, str], pad: str) -> list[str]:
    lines = [f"{key}: {value}" for key, value in item.items()]
    return [f"{pad}- {lines[0]}", *(f"{pad}  {line}" for line in lines[1:])]


def _without_item(text: str, index: int) -> str:
    """Without one taint of the list; the whole field goes with the last one of a block."""
    root, node = _field(text)
    if not isinstance(node, yaml.SequenceNode):
        raise AssertionError("the caller has found a list")
    items = node.value
    if node.flow_style:
        start, end = items[index].start_mark.index, items[index].end_mark.index
        if index + 1 < len(items):
            end = items[index + 1].start_mark.index
        elif index:
            start = items[index - 1].end_mark.index
        return text[:start] + text[end:]
    if len(items) == 1:
        start = next(key.start_mark.index for key, value in root.value if value is node)
    else:
        start = text.rfind("-", 0, items[index].start_mark.index)
    start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", _end(items[index]))
    return text[:start] + (text[line_end + 1 :] if line_end >= 0 else "")


def _end(node: yaml.Node) -> int:
    """Where a node's own text ends; PyYAML's mark of a block lies behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _end(node.value[-1][1])
    return int(node.end_mark.index)
