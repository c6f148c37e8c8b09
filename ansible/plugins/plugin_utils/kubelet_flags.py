"""The registration taint and node labels in the flags of a kubelet: the file that sets KUBELET_EXTRA_ARGS.

Text in, text out; comments, other flags, taints and labels stay. Must not read or write files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible.errors import AnsibleFilterError
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubelet_config import (
    FIELD,
    OURS,
    as_flag,
    configuration,
    is_closing,
    is_ours,
    newline_of,
)

VARIABLE = "KUBELET_EXTRA_ARGS"
KUBEADM = "KUBELET_KUBEADM_ARGS"
TAINTS = "--register-with-taints"
LABELS = "--node-labels"

# The value of an assignment in an EnvironmentFile (systemd.exec): quotes, escapes, continued lines.
VALUE = re.compile(r"""(?:\\\r?\n|\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\\'"\r\n])*""", re.DOTALL)
WORD = re.compile(r"""(?:\\[^\r\n]|'[^']*'|"[^"]*"|[^\s\\'"])+""")


class Flag(NamedTuple):
    """One flag with its value in the text of a variable, from `start` to `end`."""

    name: str
    items: list[str]
    start: int
    end: int


class Span(NamedTuple):
    """A variable's value in a file: `text[start:end]`, with its quotes."""

    start: int
    end: int


def kubelet_flags_gate(
    text: str,
    state: str = "present",
    labels: Mapping[str, Any] | None = None,
    other_taints: Iterable[str] = (),
    kubeadm_flags: str = "",
    config: str = "",
) -> str:
    """The file that sets KUBELET_EXTRA_ARGS, with or without our taint and these node labels.

    A kubelet takes the last `--register-with-taints` alone, and it overrides the KubeletConfiguration:
    taints of `kubeadm_flags` (kubeadm-flags.env) or else of `config` are repeated; `other_taints` are added.
    Node labels of several flags add up.
    """
    wanted = {str(key): str(value) for key, value in (labels or {}).items()}
    if state == "absent":
        result = _edit(text, TAINTS, lambda items: [item for item in items if not is_ours(item)])
        ours = [f"{key}={value}" for key, value in wanted.items()]
        return _edit(result, LABELS, lambda items: [item for item in items if item not in ours], last=False)
    below = _last(_flags(kubeadm_flags, KUBEADM), TAINTS)
    if below is None and config.strip():
        below = [as_flag(entry) for entry in configuration(config).get(FIELD) or []]
    result = _edit(text, TAINTS, lambda items: closed([*items, *other_taints]), start=below or [])
    return _edit(result, LABELS, lambda items: labelled(items, wanted, known=_labels(result)))


def closed(taints: Iterable[str]) -> list[str]:
    """These taints, each once, with ours."""
    result = list(dict.fromkeys(taints))
    if any(is_closing(taint) for taint in result):
        return result
    return [*(taint for taint in result if not is_ours(taint)), OURS]


def _labels(text: str) -> dict[str, str]:
    """The node labels that the file's flags set together."""
    items = [item for flag in _flags(text, VARIABLE) if flag.name == LABELS for item in flag.items]
    return {item.partition("=")[0]: item.partition("=")[2] for item in items}


def labelled(items: Sequence[str], wanted: Mapping[str, str], *, known: Mapping[str, str]) -> list[str]:
    """These labels with the wanted ones; `known`: what all flags set together."""
    missing = {key: value for key, value in wanted.items() if known.get(key) != value}
    kept = [item for item in items if item.partition("=")[0] not in missing]
    return [*kept, *(f"{key}={value}" for key, value in missing.items())]


def _assignment(text: str, variable: str) -> Span | None:
    """The last assignment, which is the one that counts."""
    span = None
    for head in re.finditer(rf"^[ \t]*{variable}[ \t]*=[ \t]*", text, re.MULTILINE):
        match = VALUE.match(text, head.end())
        end = match.end() if match else head.end()
        if text[end : end + 1] not in ("", "\r", "\n"):
            line = text.count("\n", 0, head.start()) + 1
            raise AnsibleFilterError(
                f"line {line} sets {variable}, and a quote in it is not closed. Close it."
            )
        span = Span(head.end(), end)
    return span


def _inner(raw: str) -> tuple[str, str]:
    """A value without the quotes around the whole of it, and the quote."""
    bare = raw.rstrip()
    for quote, pattern in (('"', r'"(?:\\.|[^"\\])*"'), ("'", r"'[^']*'")):
        if re.fullmatch(pattern, bare, re.DOTALL):
            return bare[1:-1], quote
    return bare, ""


def _flags(text: str, variable: str) -> list[Flag]:
    span = _assignment(text, variable)
    return _flags_in(_inner(text[span.start : span.end])[0]) if span else []


def _flags_in(value: str) -> list[Flag]:
    """The flags of ours in a variable's value, as `--flag=value` or `--flag value`."""
    arguments = list(WORD.finditer(value))
    result = []
    for number, word in enumerate(arguments):
        name, equals, given = re.sub(r"""[\\'"]""", "", word[0]).partition("=")
        name = name.replace("_", "-")
        if name not in (TAINTS, LABELS):
            continue
        end = word.end()
        if not equals and number + 1 < len(arguments) and not arguments[number + 1][0].startswith("-"):
            given, end = re.sub(r"""[\\'"]""", "", arguments[number + 1][0]), arguments[number + 1].end()
        result.append(Flag(name, [item for item in given.split(",") if item], word.start(), end))
    return result


def _last(flags: Iterable[Flag], name: str) -> list[str] | None:
    return next((flag.items for flag in reversed(list(flags)) if flag.name == name), None)


def _edit(
    text: str,
    name: str,
    change: Callable[[list[str]], list[str]],
    *,
    start: Sequence[str] = (),
    last: bool = True,
) -> str:
    """The file with one flag's list changed: in its last place, or in all flags (`last=False`).

    Without the flag it begins with `start`. A flag with an empty list goes.
    """
    span = _assignment(text, VARIABLE)
    raw = text[span.start : span.end] if span else ""
    value, quote = _inner(raw)
    flags = [flag for flag in _flags_in(value) if flag.name == name]
    changed = value
    for flag in reversed(flags[-1:] if last else flags):
        items = change(flag.items)
        if items != flag.items:
            flag_text = f"{name}={','.join(items)}" if items else ""
            after = changed[flag.end :] if items else changed[flag.end :].lstrip(" ")
            changed = changed[: flag.start] + flag_text + after
    if not flags and (items := change(list(start))):
        changed = f"{value.rstrip()} {name}={','.join(items)}".lstrip()
    if changed == value:
        return text
    changed = changed.rstrip() if changed.strip() else ""
    if changed and not quote and not re.search(r"""[\\'"]""", changed):
        quote = '"'
    written = f"{quote}{changed}{quote}" if changed else ""
    if span:
        return text[: span.start] + written + text[span.end :]
    newline = newline_of(text)
    gap = newline if text and not text.endswith("\n") else ""
    return f"{text}{gap}{VARIABLE}={written}{newline}"
