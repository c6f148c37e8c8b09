"""Which Xid means what, and what NVIDIA advises: the data behind the rule `xid`.

Sources: NVIDIA's Xid catalogue for Ampere and newer (docs.nvidia.com/deploy/xid-errors,
analyzing-xid-catalog.html, tables 1 and 2): text, and the resolution bucket of the immediate action.  For
Volta and older, NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp.

An Xid whose bucket takes the GPU out of service fails; every other one warns, and so does a number that is
not here.  NVML reports the number alone, so the catalogue's subcodes are out of reach; where they decide, the
driver's own request for a recovery stands for them (`Bucket.by_action`).

Xids 144 to 150 are those of NVLink 5.  Table 2 decides them by the subcode, and by the reason in bits 20 to
25 of IntrInfo, the first number in the brackets of the log line:

- 144, 146: errors in the GPU that logs them.  Fatal ones come with a 48.
- 145: also what every GPU of a partition logs after a link of one of them went down.  In an NVL72 rack, 63 of
  64 GPUs logged it after the 149 of one (marin-community/marin issue 9086).
- 147, 148: never fatal.
- 149: a link went down.  The reason accuses the signal or the cable, software or a person, the host, or the
  device at the other end (`LINK_DOWN_BLAME`); bit errors below the link's own limit need nothing.
- 150: firmware of the GPU that logs it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from nodegauge_judge.model import Severity


class Bucket(Struct, frozen=True):
    """Xids with one resolution: `name` as in the catalogue, `advice` in words, `xids` with their texts."""

    name: str
    severity: Severity
    advice: str
    xids: dict[int, str]
    by_action: bool = False
    """Whether it only warns of a GPU whose driver asks for no recovery (`Repair.action`)."""


LINK_DOWN_BLAME = {
    "the other end": (21, *range(32, 38)),
    "signal or cable": (2, 4, 10, 42, 43),
    "software or a person": (15, 16, 17, 18, 22, 38),
    "the host": (40,),
}
"""What the reason of an Xid 149 (NETIR_LINK_DOWN) accuses.  Source: as above, table 2, investigatory action
(INVESTIGATE_PEER_DEVICE, _LINK_SI, _SW_USER, _HOST)."""


LINK_DOWN = 149
_INTERRUPT = re.compile(r"\(0x([0-9A-Fa-f]{1,8})\b(?: 0x[0-9A-Fa-f]{1,8}){2}")
"""IntrInfo, the first of the numbers in the brackets of an NVLink 5 line."""


def _numbered(prefix: str, engines: dict[int, int]) -> dict[int, str]:
    """Errors of numbered engines: Xid to the engine's number."""
    return {xid: f"{prefix}{number} error" for xid, number in engines.items()}


_PROGRAM = "restart the program"
_LOOK = "nothing at once; contact support if it returns"
_BLAME = "; ".join(f"{', '.join(map(str, reasons))} accuse {who}" for who, reasons in LINK_DOWN_BLAME.items())

BUCKETS = (
    Bucket(
        "RESET_GPU",
        Severity.FAIL,
        "reset the GPU",
        {
            46: "GPU stopped processing",
            62: "internal micro-controller halt",
            64: "row remap or page retirement could not be recorded",
            95: "uncontained memory error",
            109: "context switch timeout",
            110: "security fault",
            119: "GSP firmware timeout",
            120: "GSP firmware error",
            136: "NVLink training failed",
            140: "unrecovered ECC error",
            143: "GPU initialization error",
            155: "NVLink taken down by software",
            156: "resource retired",
            158: "GPU fatal timeout",
        },
    ),
    Bucket("RESTART_BM", Severity.FAIL, "reboot the node", {79: "GPU has fallen off the bus"}),
    Bucket("RESTART_VM", Severity.FAIL, "restart the virtual machine", {151: "key rotation error"}),
    Bucket(
        "CHECK_MECHANICALS",
        Severity.FAIL,
        "check power cables and seating",
        {54: "auxiliary power is not connected"},
    ),
    Bucket(
        # The catalogue has no bucket for 171 and 172, which come with a 48 and say which memory it was.
        "WORKFLOW_XID_48",
        Severity.FAIL,
        "reset the GPU, and replace it if its SRAM threshold is exceeded",
        {
            48: "double bit ECC error",
            171: "uncorrectable DRAM error",
            172: "uncorrectable SRAM error",
        },
    ),
    Bucket(
        "WORKFLOW_NVLINK_ERR",
        Severity.FAIL,
        "reset the GPU; if it returns, check both ends of the link",
        {74: "NVLink error"},
    ),
    Bucket(
        "WORKFLOW_NVLINK5_ERR",
        Severity.FAIL,
        f"decode the line in the kernel log, for the cause may lie elsewhere: of its reasons {_BLAME}",
        {149: "NVLink 5 NETIR error: a link went down"},
        by_action=True,
    ),
    Bucket(
        "WORKFLOW_NVLINK5_ERR",
        Severity.FAIL,
        "reset the GPU; contact support",
        {150: "NVLink 5 MSE error: firmware of this GPU"},
    ),
    Bucket(
        # Table 2: the fatal subcodes of these come with a 48 or with a recovery action (154), which fail.
        "WORKFLOW_NVLINK5_ERR",
        Severity.WARN,
        "a reset only if the driver asks for one (recovery-action) or Xid 48 came with it",
        {
            144: "NVLink 5 SAW error",
            145: "NVLink 5 RLW error, often after a link of another GPU went down",
            146: "NVLink 5 TLW error",
            147: "NVLink 5 TREX error",
            148: "NVLink 5 NVLPW_CTRL error",
        },
    ),
    Bucket(
        # DCGM has it among the fatal ones; the catalogue adds "reset the GPU when convenient".
        "RESTART_APP",
        Severity.FAIL,
        "restart the program, then reset the GPU",
        {94: "contained memory error"},
    ),
    Bucket(
        "RESTART_APP",
        Severity.WARN,
        _PROGRAM,
        {
            8: "GPU stopped processing",
            11: "invalid or corrupted push buffer",
            13: "graphics engine exception, usually of a program",
            25: "invalid push buffer",
            31: "memory page fault, usually of a program",
            32: "invalid or corrupted push buffer",
            39: "copy engine exception",
            40: "copy engine exception",
            41: "copy engine exception",
            60: "video processor exception",
            69: "graphics engine class error",
            80: "corrupted data sent to the GPU",
        }
        | _numbered("copy engine ", {70: 3, 71: 4, 72: 5, 75: 6, 76: 7, 77: 8, 85: 9})
        | _numbered("copy engine ", {126 + n: 10 + n for n in range(10)})
        | _numbered("video decoder ", {68: 0, 83: 1, 84: 2, 88: 3, 89: 4, 96: 5, 97: 6, 98: 7})
        | _numbered("JPEG decoder ", {82: 0} | {99 + n: 1 + n for n in range(7)})
        | _numbered("optical flow ", {86: 0, 139: 1}),
    ),
    Bucket(
        "IGNORE",
        Severity.WARN,
        _LOOK,
        {
            14: "injected test error",
            37: "driver firmware error",
            38: "driver firmware error",
            43: "GPU stopped processing, usually of a program",
            44: "graphics engine fault during a context switch",
            63: "row remap or page retirement recorded",
            66: "illegal access by the driver",
            67: "illegal access by the driver",
            92: "many single bit ECC errors",
            93: "too many writes to the InfoROM",
            106: "SMBPBI test message",
            107: "SMBPBI test message",
            121: "C2C link error, corrected",
            137: "NVLink fault while a program accessed a peer",
            141: "CUDA fast path error",
            157: "a resource could not be retired",
            160: "channel retired",
            161: "a channel could not be retired",
        },
    ),
    Bucket(
        "WORKFLOW_XID_45",
        Severity.WARN,
        "look at the Xid that came before it; alone, restart the fabric manager",
        {45: "cleanup after an earlier error, or a program was ended"},
    ),
    Bucket("UPDATE_SWFW", Severity.WARN, "update driver and firmware", {78: "vGPU start error"}),
    Bucket("CHECK_UVM", Severity.WARN, "look for a page fault of a program", {159: "CHI non-data error"}),
    Bucket(
        "XID_154",
        Severity.WARN,
        "do what the recovery action says (recovery-action)",
        {154: "GPU recovery action changed"},
    ),
    Bucket("CONTACT_SUPPORT", Severity.WARN, "contact support", {142: "video encoder 3 error"}),
    Bucket(
        "none in the catalogue",
        Severity.WARN,
        "look it up in the catalogue",
        {
            162: "power smoothing engaged again",
            163: "power smoothing disengaged",
            164: "power smoothing hardware is nearly worn out",
            165: "power smoothing hardware is worn out",
            166: "NVLink traffic before encryption was set up",
            167: "PCIe fatal timeout",
            168: "less GPU memory: errors in a protected region",
            169: "internal micro-controller halt",
            170: "NVLink interrupt in confidential computing",
        },
    ),
    Bucket(
        # DCGM's warnings that the catalogue of newer GPUs marks as unused.
        "none for newer GPUs",
        Severity.WARN,
        "look it up in the catalogue for Volta and older",
        {
            42: "video processor exception",
            56: "display engine error",
            57: "memory interface error while training",
            58: "memory clock error while training",
            61: "internal micro-controller breakpoint or warning",
            73: "video encoder exception",
        },
    ),
)
UNLISTED = Bucket("not in the catalogue", Severity.WARN, "look it up in the kernel log", {})

_BUCKET_OF = {xid: bucket for bucket in BUCKETS for xid in bucket.xids}


def bucket_of(xid: int) -> Bucket:
    """The bucket of an Xid; `UNLISTED` for a number that this version does not know."""
    return _BUCKET_OF.get(xid, UNLISTED)


def blamed_elsewhere(xid: int, line: str) -> str:
    """Whom the line of an Xid 149 accuses instead of its own GPU; empty for nobody, and for other Xids."""
    match = _INTERRUPT.search(line) if xid == LINK_DOWN else None
    reason = int(match[1], 16) >> 20 & 0x3F if match is not None else None
    return next((who for who, reasons in LINK_DOWN_BLAME.items() if reason in reasons), "")


def is_of_program(xid: int) -> bool:
    """Whether a program alone causes it, so that it says nothing against the hardware: the catalogue restarts
    the program, or it is what follows when one is ended (43, 45)."""
    bucket = bucket_of(xid)
    return bucket.severity is Severity.WARN and (bucket.advice == _PROGRAM or xid in (43, 45))


def numbers(severity: Severity) -> list[int]:
    """The listed Xids of this severity, sorted."""
    return sorted(xid for xid, bucket in _BUCKET_OF.items() if bucket.severity is severity)
