"""The registration taint and node labels in the configuration of k3s and RKE2.

Both read `config.yaml`, then `config.yaml.d/*.yaml` and `*.yml` by name; a key with `+` appends, another
replaces.  Source: k3s, pkg/configfilearg/parser.go.  Text in, text out; must not read or write files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubelet_config import OURS, is_closing, is_ours
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.yaml_edit import loaded

TAINTS, LABELS = "node-taint", "node-label"
HEADER = "# Written by the role nodegauge.gpu.join_gate. nodegauge opens the node at its first pass.\n"


def rancher_config_gate(
    files: Mapping[str, str], own: str, state: str = "present", labels: Mapping[str, Any] | None = None
) -> str:
    """What the file `own` has to hold, so that the node registers with our taint and these labels; empty if
    it is not needed.

    `files`: the text of config.yaml and of config.yaml.d, by path.  What they set already is not repeated: a
    kubelet does not start with a taint that is there twice.  Raises AnsibleFilterError if a file cannot be
    read, or one that comes later undoes what is written here.
    """
    others = {path: _sets(text, path) for path, text in files.items() if path != own}
    wanted = [f"{key}={value}" for key, value in (labels or {}).items()]
    taints = _effective(others, TAINTS)
    if state == "absent":
        for taint, path in taints:
            if is_ours(taint):
                raise AnsibleFilterError(f"{path} sets {taint}. Remove it there; nothing was changed.")
        return ""
    lists = {
        TAINTS: [] if any(is_closing(taint) for taint, _path in taints) else [OURS],
        LABELS: [item for item in wanted if item not in _labels(others)],
    }
    with_ours = {**others, own: {f"{key}+": items for key, items in lists.items() if items}}
    _check(with_ours, own, wanted)
    lines = [
        line
        for key, items in lists.items()
        if items
        for line in (f"{key}+:", *(f"  - {_quoted(item)}" for item in items))
    ]
    return HEADER + "\n".join([*lines, ""]) if lines else ""


def _check(files: Mapping[str, Mapping[str, Any]], own: str, wanted: list[str]) -> None:
    closed = any(is_closing(taint) for taint, _path in _effective(files, TAINTS))
    lost = [] if closed else [TAINTS]
    lost += [LABELS] if set(wanted) - set(_labels(files)) else []
    for key in lost:
        later = _ordered(files)[_ordered(files).index(own) + 1 :]
        culprit = next((path for path in later if key in files[path] or f"{key}+" in files[path]), own)
        raise AnsibleFilterError(
            f"{culprit} is read after {own.rpartition('/')[2]} and sets {key} anew. Write `{key}+` there"
            " without what this role sets, or give the file a name that comes before it."
        )


def _sets(text: str, path: str) -> dict[str, Any]:
    [document, *more] = loaded(text, path) or [None]
    if more or not isinstance(document or {}, dict):
        raise AnsibleFilterError(f"{path}: line 1: no mapping of options. Correct it first.")
    return {str(key): value for key, value in (document or {}).items()}


def _ordered(files: Mapping[str, Any]) -> list[str]:
    """As they are read: `config.yaml` has no folder that ends in `.d`."""
    return sorted(files, key=lambda path: (path.rpartition("/")[0].endswith(".d"), path))


def _effective(files: Mapping[str, Mapping[str, Any]], key: str) -> list[tuple[str, str]]:
    """What a key has in the end, each item with its file."""
    result: list[tuple[str, str]] = []
    for path in _ordered(files):
        for name, value in files[path].items():
            if name.removesuffix("+") == key:
                items = value if isinstance(value, list) else [value or ""]
                given = [item for each in items for item in str(each).split(",") if item]
                result = [*(result if name.endswith("+") else ()), *((item, path) for item in given)]
    return result


def _labels(files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The last value of each label counts."""
    labels = {item.partition("=")[0]: item for item, _path in _effective(files, LABELS)}
    return list(labels.values())


def _quoted(item: str) -> str:
    return item if item == OURS else json.dumps(item)
