"""Xids and SXids in kernel logs, as dmesg, journals, syslog, agents and people write them.

Sources: NVRM and nvidia-nvswitch lines of drivers 340 to 595; NVIDIA/k8s-device-plugin, internal/rm/health.go
(XidCriticalError).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodegauge_contract.paste import StatementKind
from nodegauge_contract.pasted.statements import Gathered, address

SOURCE = "kernel log"
_KERNEL = re.compile(
    r"\bNVRM\b|\bnvidia-(?:nvswitch\d*|nvlink|modeset|peermem|uvm|drm)\b|\bnvidia: ", re.IGNORECASE
)
_XID = re.compile(
    r"(?<!S)Xid\s*\((?:PCI:)?(?P<gpu>[^)\s]{1,40})\):?\s*(?P<code>\d{1,4})\b|"
    r"\bXid[ =:]{1,3}(?P<code2>\d{1,4})\b"
    r"(?:\s+on\s+Device=(?P<uuid>[\w.-]{1,80})|\s*\((?:PCI:)?(?P<gpu2>[^)\s]{1,40})\))?",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:no|without|not an?|any)\s+Xid", re.IGNORECASE)
_ACTION = re.compile(r"recovery action changed from [^,;]{1,60}? to 0x([0-9A-Fa-f]{1,2})\b", re.IGNORECASE)
_SXID = re.compile(
    r"(?:(nvidia-nvswitch\d{1,3}):\s*)?SXid\s*\((?:PCI:)?([^)\s]{1,40})\):?\s*(\d{4,6}),?\s*(Non-fatal|Fatal)?",
    re.IGNORECASE,
)
_SWITCH_ERROR = re.compile(
    r"detected NVSwitch (non-fatal|fatal) error (\d{4,6})\b.{0,80}?bus id (\S{1,20})", re.IGNORECASE
)
_TROUBLE = re.compile(
    r"\b(?:error|fail\w*|timeout|timed out|lost|invalid|corrupt\w*|assert\w*|hung|halt\w*)\b", re.IGNORECASE
)
_KNOWN = re.compile(r"invalid context, skipping|module verification failed|NVRM:\s+entry function")
"""Lines with such a word that say nothing of a GPU: nvidia-peermem's about a context that has ended (the
process freed its memory), the kernel's about an unsigned module, the head of a table of RPCs."""


def read(lines: Sequence[str], gathered: Gathered) -> None:
    """Add what the driver logged."""
    for number, line in enumerate(lines, 1):
        logged = _KERNEL.search(line) is not None
        if logged:
            gathered.seen(SOURCE, number)
        numbered = _xid(line, number, gathered) or _switch(line, number, gathered)
        if logged and not numbered and _TROUBLE.search(line) and not _KNOWN.search(line):
            gathered.add(StatementKind.DRIVER_LINE, number, line, source=SOURCE)


def _xid(line: str, number: int, gathered: Gathered) -> bool:
    numbered = False
    for match in _XID.finditer(line) if not _DENIED.search(line) else ():
        numbered = True
        code = int(match["code"] or match["code2"])
        where = match["gpu"] or match["gpu2"] or ""
        subject = address(where) or match["uuid"] or ""
        action = _ACTION.search(line)
        if code == 154 and action is not None:
            gathered.add(
                StatementKind.ACTION, number, line, source=SOURCE, subject=subject, code=int(action[1], 16)
            )
        else:
            gathered.add(StatementKind.XID, number, line, source=SOURCE, subject=subject, code=code)
    return numbered


def _switch(line: str, number: int, gathered: Gathered) -> bool:
    if match := _SXID.search(line):
        subject = match[1] or f"NVSwitch {address(match[2])}"
        if match[4] is not None:  # severity and data follow in lines of their own
            kind = StatementKind.SXID_FATAL if match[4].lower() == "fatal" else StatementKind.SXID
            gathered.add(kind, number, line, source=SOURCE, subject=subject, code=int(match[3]))
        return True
    if match := _SWITCH_ERROR.search(line):
        kind = StatementKind.SXID_FATAL if match[1].lower() == "fatal" else StatementKind.SXID
        subject = f"NVSwitch {address(match[3])}"
        gathered.add(kind, number, line, source="fabric manager", subject=subject, code=int(match[2]))
        return True
    return False
