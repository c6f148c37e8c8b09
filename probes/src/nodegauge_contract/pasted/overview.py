"""The table that plain `nvidia-smi` prints: which GPUs there are, and which of them do not answer.

It has no UUID, no reason why a clock is low and no history of errors, so it never says that a GPU is healthy.
Lines come from `cleaning`, without their bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from nodegauge_contract.gpu import Ecc, Gpu, Power, Temperature
from nodegauge_contract.pasted import fields
from nodegauge_contract.values import NOT_READ, Int, Problem, ProblemKind, Unavailable

_HEADER = re.compile(r"NVIDIA-SMI\s+\S{1,32}\s+(?:Driver|KMD) Version:\s*([\d.]{3,32})(.*)")
_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s*(\d{1,2}\.\d{1,2})")
_FIRST = re.compile(
    r"\s*(\d{1,2})\s+(\S.{0,60}?)\s+(?:On|Off|N/A|ERR!|WDDM|TCC|MCDM)\s+"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+(?:(?:On|Off|N/A|ERR!)\s+(\d{1,19}|Off|N/A|ERR!)\s*$)?"
)
"""Index, name (drivers before 535 end long ones with `...`), PCI address and uncorrected memory errors since
the driver was loaded: the first line of a GPU."""
_SECOND = re.compile(
    r"\s*\S{1,8}\s+(\d{1,3}C|ERR!|N/A)\s+(?:P\d{1,2}|ERR!|N/A|\?)\s+(\d{1,4}W|ERR!|N/A)\s*/\s*(\d{1,4}W|\S{1,8})"
)
"""Fan, temperature, performance state, power draw and its limit: the second line of a GPU."""
_DEAD, MIG_MODE, POWER = "ERR!", "MIG mode", ("power draw", "power limit")


_RULER = re.compile(r"\s*\+-")


class Again(ValueError):
    """A second table with other GPUs or values; the message names the line."""


def versions(lines: Sequence[str]) -> tuple[str, str]:
    """Versions of driver and CUDA in the table's header; empty where it has none."""
    for line in lines:
        if match := _HEADER.search(line):
            cuda = _CUDA.search(match[2])
            return match[1], cuda[1] if cuda is not None else ""
    return "", ""


def gpus(lines: Sequence[str]) -> list[Gpu]:
    """The GPUs of the table, in its order.  Raises `Again`.

    One whose temperature or count of memory errors is `ERR!` has an error: the driver cannot read it.  `ERR!`
    for its power draw or fan alone may pass (Azure/azhpc-diagnostics, issue 77): `failed` names it.
    """
    by_index: dict[int, Gpu] = {}
    number = 0
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        number += 1
        first = _FIRST.match(line)
        if first is None:
            continue
        gpu = _gpu(first, _SECOND.match(below))
        if by_index.setdefault(gpu.index, gpu) is not gpu:
            raise Again(f"line {number}: GPU {gpu.index} again: judge outputs of different times separately")
    return list(by_index.values())


def failed(lines: Sequence[str]) -> Iterator[tuple[int, Gpu, list[str]]]:
    """Every GPU of which a value is `ERR!`: its first line, from 1, and the names of those values.

    The cell of MIG fails on a GPU that waits for a reset, and has no other reason to.
    """
    for index, line in enumerate(lines):
        first = _FIRST.match(line)
        if first is None:
            continue
        below = list(takewhile(_same_gpu, lines[index + 1 : index + 8]))
        second = _SECOND.match(below[0]) if below else None
        names = {"fan": bool(below) and below[0].strip().startswith(_DEAD)}
        names |= {name: second is not None and second[n] == _DEAD for n, name in enumerate(POWER, 2)}
        names |= {MIG_MODE: any(_DEAD in each.split()[-1:] for each in below[1:])}
        if any(names.values()):
            yield index + 1, _gpu(first, second), [name for name, dead in names.items() if dead]


def _same_gpu(line: str) -> bool:
    return _RULER.match(line) is None and _FIRST.match(line) is None


def _gpu(first: re.Match[str], second: re.Match[str] | None) -> Gpu:
    temperature, draw, limit = (second[1], second[2], second[3]) if second is not None else ("", "", "")
    error = None
    if _DEAD in (temperature, first[4]):
        what = "temperature" if temperature == _DEAD else "memory errors"
        message = f"{_DEAD} instead of its {what}"
        error = Problem(kind=ProblemKind.NVML_ERROR, call="nvidia-smi", message=message)
    return Gpu(
        index=int(first[1]),
        name=first[2],
        pci=fields.pci(first[3]),
        error=error,
        ecc=_ecc(first[4] or ""),
        temperature=Temperature(gpu=_number(temperature, 1)),
        power=Power(usage_mw=_number(draw, 1000), enforced_limit_mw=_number(limit, 1000)),
    )


def _ecc(cell: str) -> Ecc:
    """`0` counts and is on; `Off` and `N/A` count nothing."""
    if cell.isdigit():
        return Ecc(mode=1, volatile_uncorrected=int(cell))
    refused = Unavailable(cell) if cell else NOT_READ
    return Ecc(mode=0 if cell == "Off" else refused, volatile_uncorrected=refused)


def _number(text: str, factor: int) -> Int:
    if not text:
        return NOT_READ
    return int(text[:-1]) * factor if text[:-1].isdigit() else Unavailable(text)
