"""`nvidia-smi -q` and `nvidia-smi -q -x`, as people paste them, as one flat set of values per GPU.

A value has the keys `section/name` and `*/name`, in the words of the output, lower case, with underscores.
Text is read by the order of its headings, not by its indentation, which pastes lose; so both forms are read
alike, and `fields` maps their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from msgspec import Struct, field

from nodegauge_contract.model import MAX_GPUS
from nodegauge_contract.pasted.cleaning import unquoted

NESTED = frozenset({"volatile", "aggregate"})
"""Sections whose name is needed in the key of what is two levels below them (ECC errors)."""
_GPU = re.compile(r"\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_VALUE = re.compile(r"\s*([A-Za-z][^:]{0,80}?)\s*:(?:\s+(.*))?$")
_MARK = re.compile(r"\s+(?:<[-=]{2,}|←|<<|#).*$")
"""An arrow or a comment that somebody put behind a value."""
_HEADING = re.compile(r"\s*[A-Za-z][\w ./()-]{1,60}\s*$")
_SECTION = re.compile(
    r"\s*(?:Clocks (?:Throttle|Event) Reasons|Temperature|(?:GPU )?Power Readings|ECC (?:Mode|Errors)|"
    r"Remapped Rows|Retired Pages|Fabric)\s*:?\s*$",
    re.IGNORECASE,
)
"""What starts a part of the output that somebody cut out with grep, without the line of its GPU."""
_START = re.compile(r"=+\s*NVSMI LOG\s*=+")
_COMMAND = re.compile(r"(?:[$#%>]|PS .*>)\s*\S+|.*\bnvidia-smi\s+\S")
_LOST = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU)\s*(\d{0,3}):?\s*"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]):\s*(.{1,120})"
)
"""What nvidia-smi prints instead of a GPU that does not answer."""
_XML, _XML_END = "<nvidia_smi_log", "</nvidia_smi_log>"


class QueryError(ValueError):
    """Output that cannot be read; the message names the line and what to paste."""


class QueryAgain(QueryError):
    """The same GPU twice: outputs of different times or machines."""


class LostGpu(Struct, frozen=True, kw_only=True):
    """A GPU of which nvidia-smi printed only an error.  `index`: as it names it, None if it does not."""

    line: int
    index: int | None
    message: str


class GpuText(Struct, kw_only=True):
    """One GPU's values.  `line`: where it starts.  `whole`: its last section is there, or only some sections
    were asked for (`-d`).  `index`: as the text numbers it; None if it does not."""

    line: int
    pci: str
    values: dict[str, str] = {}
    whole: bool = False
    index: int | None = None


class Query(Struct, kw_only=True):
    """Everything that `-q` printed.  `attached`: how many GPUs it says there are.  `lost`: GPUs that do not
    answer, by address."""

    gpus: list[GpuText] = field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    attached: int | None = None
    lost: dict[str, LostGpu] = field(default_factory=dict)


def query(text: str, lines: Sequence[str]) -> Query:
    """All outputs of `-q` in a paste; `lines` is the cleaned text.  Raises `QueryError`."""
    output = Query()
    if _XML in text or _XML.replace("<", "&lt;") in text:
        _read_xml(output, unquoted(text))
    else:
        _read_text(output, lines)
    for number, line in enumerate(lines, 1):
        if match := _LOST.search(line):
            index = int(match[1]) if match[1] else None
            output.lost[match[2].lower()] = LostGpu(line=number, index=index, message=match[3].strip())
    _check(output)
    return output


def _check(output: Query) -> None:
    seen: dict[str, int] = {}
    for gpu in output.gpus:
        if gpu.pci and gpu.pci in seen:
            raise QueryAgain(
                f"line {gpu.line}: GPU {gpu.pci} again, after line {seen[gpu.pci]}: judge outputs of "
                "different times or machines separately"
            )
        seen[gpu.pci] = gpu.line
    if len(output.gpus) > MAX_GPUS:
        raise QueryError(f"line {output.gpus[MAX_GPUS].line}: more than {MAX_GPUS} GPUs")


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _read_text(output: Query, lines: Sequence[str]) -> None:
    gpu: GpuText | None = None
    section = outer = ""
    started = False
    for number, line in enumerate(lines, 1):
        if _START.search(line):
            started, gpu = True, None
        elif match := _GPU.match(line):
            gpu, section, outer, started = GpuText(line=number, pci=match[1].lower()), "", "", True
            output.gpus.append(gpu)
        elif _SECTION.match(line) and (gpu is None or _is_next(gpu, _name(line))):
            gpu, section, outer, started = GpuText(line=number, pci=""), _name(line), "", True
            output.gpus.append(gpu)
        elif started and (match := _VALUE.match(line)) and not _COMMAND.match(line):
            if gpu is not None and _name(match[1]) == "gpu_uuid" and "*/gpu_uuid" in gpu.values:
                raise QueryError(
                    f"line {number}: a second GPU without its line `GPU 00000000:3B:00.0` above it"
                )
            _add_value(output, gpu, (outer, section, _name(match[1])), _MARK.sub("", match[2] or "").strip())
        elif gpu is not None and _HEADING.match(line):
            section = _name(line)
            outer = section if section in NESTED else outer
            gpu.whole |= section in ("processes", "compute_processes")
        elif line.strip() and _COMMAND.match(line):
            gpu, started = None, False
    for gpu in output.gpus:
        gpu.whole |= "*/product_name" not in gpu.values


def _is_next(gpu: GpuText, section: str) -> bool:
    """Whether a section belongs to the next GPU, where grep left no line between two."""
    return not gpu.pci and any(key.startswith(f"{section}/") for key in gpu.values)


def _add_value(output: Query, gpu: GpuText | None, key: tuple[str, str, str], value: str) -> None:
    outer, section, name = key
    if gpu is not None:
        _put(gpu.values, (outer, section), name, value)
        gpu.whole |= name in ("processes", "compute_processes")
    elif name == "driver_version":
        output.driver = value
    elif name == "cuda_version":
        output.cuda = value
    elif name in ("attached_gpus", "attached_vgpus") and value.isdecimal():
        output.attached = max(int(value), output.attached or 0)


def _put(values: dict[str, str], sections: tuple[str, str], name: str, value: str) -> None:
    """The first value of a key counts: what follows a section may reuse its names."""
    outer, section = sections
    values.setdefault(f"*/{name}", value)
    values.setdefault(f"{section}/{name}", value)
    if outer and section != outer:
        values.setdefault(f"{outer}/{section}/{name}", value)


def _read_xml(output: Query, text: str) -> None:
    starts = [match.start() for match in re.finditer(_XML, text)]
    for start, following in zip_longest(starts, starts[1:]):
        part = text[start:following]
        end = part.find(_XML_END)
        line = text.count("\n", 0, start) + 1
        _read_log(output, part[: end + len(_XML_END)] if end >= 0 else part, line)


def _read_log(output: Query, text: str, line: int) -> None:
    """One document; one that is cut gives what was complete before the cut."""
    parser: XMLPullParser[Any] = XMLPullParser(("end",))
    try:
        parser.feed(text)
        elements: list[Any] = [event[-1] for event in parser.read_events()]
    except ParseError as error:
        raise QueryError(
            f"line {line + error.position[0] - 1}: not XML ({error.msg}): paste `nvidia-smi -q` without `-x`"
        ) from None
    for element in elements:
        value = (element.text or "").strip()
        if element.tag == "gpu" and "id" in element.attrib:
            gpu = GpuText(line=line, pci=element.attrib["id"].lower(), values=_flat(element), whole=True)
            output.gpus.append(gpu)
        elif element.tag in ("driver_version", "cuda_version", "attached_gpus"):
            _add_value(output, None, ("", "", element.tag), value)
    if not text.endswith(_XML_END) and output.attached is None:
        output.attached = len(output.gpus) + 1


def _flat(gpu: Element) -> dict[str, str]:
    values: dict[str, str] = {}

    def walk(element: Element, path: tuple[str, ...]) -> None:
        outer = next((name for name in path if name in NESTED), "")
        section = path[-1] if path else ""
        children: Iterable[Element] = list(element)
        if not children:
            _put(values, (outer, section), _name(element.tag), (element.text or "").strip())
        for child in children:
            walk(child, (*path, _name(element.tag)))

    for child in gpu:
        walk(child, ())
    return values
