"""Supplies and fans in output of ipmitool (the event log's last word on each, and the table of sensors), and
the lanes of GPUs in output of lspci.

Sources: pciutils, ls-caps.c (`downgraded`: less than the link's own capability); IPMI 2.0, table 42-3
(offsets of power supplies: 1 failure, 3 input lost); ipmitool's own columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodegauge_contract.paste import StatementKind
from nodegauge_contract.pasted.statements import Gathered, address

SEL, SENSORS, PCI = "ipmitool sel", "ipmitool sensor", "lspci"
_FUNCTION = re.compile(r"(?:\S{1,8} )?((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) (\w.{1,200})")
_GPU = re.compile(r"(?:VGA compatible|3D) controller: NVIDIA")
_NARROW = re.compile(r"\s*LnkSta:.{1,40}\bWidth x\d{1,2} \(downgraded\)")
_EVENT = re.compile(
    r"\s*[0-9a-f]{1,4}\s{2,}\d\d/\d\d/\d{2,4}\s{2,}\d\d:\d\d:\d\d(?: \w{3,4})?\s{2,}"
    r"(\S.{0,60}?)\s{2,}(.{0,80}?)\s{2,}"
    r"(Asserted|Deasserted)\s*$",
    re.IGNORECASE,
)
_FAILED = re.compile(r"Failure detected|AC lost|input lost|Power Supply Failure", re.IGNORECASE)
_SUPPLY = re.compile(r"\b(?:Power Supply|PSU?\d)", re.IGNORECASE)
_SENSOR = re.compile(
    r"\s*(\S.{0,30}?)\s{2,}(\S{1,12})\s{2,}(degrees C|RPM|Watts|Volts|Amps|discrete|percent)\s+(\w{1,8})\b",
    re.IGNORECASE,
)
_PRESENT, _TROUBLE = 0x0100, 0x0E00
"""Bits of a supply's discrete reading, as ipmitool prints it: present; failure, failure ahead, no input."""


def read(lines: Sequence[str], gathered: Gathered) -> None:
    """Add supplies and fans that are out, and GPUs with fewer lanes than they could have."""
    last: dict[tuple[str, str], tuple[int, str, bool]] = {}
    gpu = ""
    for number, line in enumerate(lines, 1):
        if match := _FUNCTION.match(line):
            gpu = address(f"0000:{match[1]}"[-12:]) if _GPU.match(match[2]) else ""
        elif gpu and _NARROW.match(line):
            gathered.add(StatementKind.PCIE_NARROW, number, line, source=PCI, subject=gpu)
        elif match := _EVENT.match(line):
            gathered.seen(SEL, number)
            if _FAILED.search(match[2]) and _SUPPLY.search(match[1]):
                last[match[1], match[2]] = (number, line, match[3].lower() == "asserted")
        elif match := _SENSOR.match(line):
            gathered.seen(SENSORS, number)
            _sensor(gathered, number, line, match)
    for (name, _), (number, line, asserted) in last.items():
        if asserted:
            gathered.add(StatementKind.SUPPLY, number, line, source=SEL, subject=name)


def _sensor(gathered: Gathered, number: int, line: str, match: re.Match[str]) -> None:
    name, value, unit, state = match[1], match[2], match[3].lower(), match[4].lower()
    if unit == "rpm" and state in ("cr", "nc", "nr"):
        gathered.add(StatementKind.FAN, number, line, source=SENSORS, subject=name)
    elif unit == "discrete" and _SUPPLY.search(name) and re.fullmatch(r"0x[0-9a-f]{1,4}", state):
        bits = int(state, 16)
        if bits & _PRESENT and bits & _TROUBLE:
            gathered.add(StatementKind.SUPPLY, number, f"{line} ({value})", source=SENSORS, subject=name)
