"""NVLinks that `nvidia-smi nvlink` and `dcgmi nvlink` list: states and error counters.

Sources: nvidia-smi's own help, NVIDIA/DCGM, dcgmi/Nvlink.cpp (letters U, D, X and _).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from nodegauge_contract.paste import StatementKind
from nodegauge_contract.pasted.statements import Gathered

SMI, DCGM = "nvidia-smi nvlink", "dcgmi nvlink"
_GPU = re.compile(r"\s*GPU\s+(\d{1,2})(?:: (.{1,100}?) \(UUID)?")
_STATE = re.compile(r"\s*Link (\d{1,2}): (<inactive>|inactive|[\d.]{1,8} GB/s)", re.IGNORECASE)
_ERRORS = re.compile(
    r"\s*Link (\d{1,2}): (\w[\w ]{1,40} (?:Errors?|recovery failed events|recovery successful events)):"
    r"\s*(\d{1,19})",
    re.IGNORECASE,
)
_DCGM_GPU = re.compile(r"\s*gpuId (\d{1,2}):?\s*$")
_DCGM_LINKS = re.compile(r"\s*((?:[UDX_]\s+){0,71}[UDX_])\s*$")
_DCGM_LINK = re.compile(r"\s*(Link \d{1,2})\s*$")
_DCGM_ERRORS = re.compile(r"\s*->\s*(\w[\w ]{1,40} Errors?)\s+(\d{1,19})")


def read(lines: Sequence[str], gathered: Gathered) -> None:
    """Add links that are down and counters that are not zero."""
    gpu = name = dcgm_gpu = link = ""
    states: dict[str, tuple[int, str, dict[int, bool]]] = {}
    for number, line in enumerate(lines, 1):
        if match := _DCGM_GPU.match(line):
            dcgm_gpu = f"gpuId {match[1]}"
        elif match := _GPU.match(line):
            gpu, name = f"GPU {match[1]}", match[2] or ""
        elif match := _STATE.match(line):
            gathered.seen(SMI, number)
            states.setdefault(gpu, (number, name, {}))[2][int(match[1])] = "inactive" not in match[2].lower()
        elif match := _ERRORS.match(line):
            _count(gathered, number, SMI, gpu, f"Link {match[1]}", match[2], int(match[3]))
        elif dcgm_gpu and (match := _DCGM_LINKS.match(line)):
            _letters(gathered, number, dcgm_gpu, match[1].split())
            dcgm_gpu = ""
        elif match := _DCGM_LINK.match(line):
            link = match[1]
        elif link and (match := _DCGM_ERRORS.match(line)):
            _count(gathered, number, DCGM, gpu, link, match[1], int(match[2]))
    _inactive(gathered, states)
    _dcgm_json("\n".join(lines), gathered)


def _inactive(gathered: Gathered, states: dict[str, tuple[int, str, dict[int, bool]]]) -> None:
    """Inactive links of a GPU with others that are active, or with a sibling that has some; and whether none
    is active on any GPU."""
    if states and not any(any(links.values()) for _, _, links in states.values()):
        number, text = min(number for number, _, _ in states.values()), f"{len(states)} GPUs: all <inactive>"
        gathered.add(StatementKind.LINKS_ALL_OFF, number, text, source=SMI)
    most: dict[str, int] = {}
    for _, name, links in states.values():
        most[name] = max(most.get(name, 0), sum(links.values()))
    for gpu, (number, name, links) in states.items():
        down, up = [link for link, active in links.items() if not active], sum(links.values())
        if down and most[name]:
            kind = StatementKind.LINK_DOWN if up < most[name] else StatementKind.LINK_OFF
            numbers = ", ".join(map(str, down))
            text = f"{gpu}: links {numbers} <inactive>, {up} active; the most of its model: {most[name]}"
            gathered.add(kind, number, text, source=SMI, subject=gpu)


def _letters(gathered: Gathered, number: int, gpu: str, letters: list[str]) -> None:
    gathered.seen(DCGM, number)
    for letter, kind, state in (
        ("D", StatementKind.LINK_DOWN, "down"),
        ("X", StatementKind.LINK_OFF, "disabled"),
    ):
        links = [str(link) for link, state_of in enumerate(letters) if state_of == letter]
        if links:
            text = f"{gpu}: links {', '.join(links)} {state}"
            gathered.add(kind, number, text, source=DCGM, subject=gpu)


def _count(gathered: Gathered, number: int, source: str, gpu: str, link: str, what: str, count: int) -> None:
    gathered.seen(source, number)
    if count:
        subject = f"{gpu} {link}".strip()
        text = f"{subject}: {count} {what}"
        kind = StatementKind.LINK_ERRORS if "CRC" in what.upper() else StatementKind.LINK_FAULTS
        gathered.add(kind, number, text, source=source, subject=f"{subject} {what}", code=count)


def _dcgm_json(text: str, gathered: Gathered) -> None:
    if "NVLINK Error Counts" not in text or '"body"' not in text:
        return
    try:
        document, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return
    header, body = (
        (document.get("header"), document.get("body")) if isinstance(document, dict) else (None, None)
    )
    gpu = str(header[-1]) if isinstance(header, list) and header else ""
    gathered.seen(DCGM, 1)
    for link, entry in body.items() if isinstance(body, dict) else ():
        for what, value in _children(entry).items():
            number = value.get("value") if isinstance(value, dict) else None
            if isinstance(number, str | int) and str(number).isdecimal():
                _count(gathered, 1, DCGM, gpu, str(link), what, int(number))


def _children(entry: Any) -> dict[str, Any]:
    children = entry.get("children") if isinstance(entry, dict) else None
    return children if isinstance(children, dict) else {}
