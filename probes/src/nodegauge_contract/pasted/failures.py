"""Messages with which drivers, tools and programs fail: one table of patterns.

A pattern's group `gpu` is what the message is about.  Sources: strings of nvidia-smi, of the kernel module,
of nv-fabricmanager and of CUDA (cudaGetErrorString), and forum and issue threads that quote them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from nodegauge_contract.paste import StatementKind as Kind
from nodegauge_contract.pasted import kernel
from nodegauge_contract.pasted.statements import Gathered, address, near

_SMI, _FM, _CUDA, _NIC = "nvidia-smi", "fabric manager", "message of a program", "kernel log of a NIC"


class _Message(NamedTuple):
    kind: Kind
    source: str
    pattern: str
    following: int = 0
    """Lines after it that belong to its sentence."""


_MESSAGES = (
    _Message(Kind.NOT_LOADED, _SMI, r"NVIDIA-SMI has failed because it could(?:n't|n’t| not) communicate"),
    _Message(Kind.NOT_LOADED, _SMI,
        r"modprobe: FATAL: Module nvidia\S* not found|"
        r"(?:Failed to initialize NVML|nvml error): Driver Not Loaded"),
    _Message(Kind.MISMATCH, _SMI, r"Driver/library version mismatch", 1),
    _Message(Kind.MISMATCH, kernel.SOURCE, r"API mismatch: the (?:client|NVIDIA)", 2),
    _Message(Kind.NVML_FAILED, _SMI, r"Failed to initialize NVML: (?!Driver)\w|Failed to initialize NVML$"),
    _Message(Kind.NVML_FAILED, _SMI, r"GPU access blocked by the operating system"),
    _Message(Kind.NO_DEVICES, _SMI, r"No devices were found"),
    _Message(Kind.NOT_FOUND, _SMI, r"nvidia-smi['’]?:? (?:command )?not found|nvidia-smi' is not recognized"),
    _Message(Kind.NO_DEVICES, kernel.SOURCE,
        r"NVRM:\s*No NVIDIA (?:GPU|graphics adapter)s? found|None of the NVIDIA devices were initialized"),
    _Message(Kind.DEVICE_HANDLE, _SMI,
        r"Unable to determine the device handle for (?P<gpu>gpu ?\d{1,3}):? (?![0-9a-f]{4})"),
    _Message(Kind.FALLEN_OFF, "lspci",  # a laptop switches its GPU off
        r"^(?P<gpu>[0-9a-f:.]{7,12}) .{1,40}NVIDIA (?!.{0,90}(?:Mobile|Max-Q|\dMX?\])).{1,100}"
        r"\(rev ff\)"),
    _Message(Kind.FALLEN_OFF, kernel.SOURCE,
        r"fallen off the bus|NV_ERR_GPU_IS_LOST|GPU lost from the bus"),
    _Message(Kind.RESET_REQUIRED, kernel.SOURCE, r"NV_ERR_RESET_REQUIRED|(?<!: )GPU requires (?:a )?reset"),
    _Message(Kind.NVLINK_FATAL, kernel.SOURCE, r"NVLink: fatal error detected on link \d+"),
    _Message(Kind.INIT_FAILED, kernel.SOURCE,
        r"RmInitAdapter failed|rm_init_adapter failed|probe (?:routine|"
        r"with driver nvidia) failed"),
    _Message(Kind.BAR_INVALID, kernel.SOURCE,
        r"PCI I/O region assigned to your NVIDIA device is invalid", 1),
    _Message(Kind.GSP_FAILED, kernel.SOURCE,
        r"Cannot initialize GSP firmware|GSP firmware (?:boot|load)\w* failed|"
        r"Timeout .{0,40}waiting for RPC (?:response )?from (?:GPU\d+ )?GSP"),
    _Message(Kind.UNHEALTHY_DEVICE, "device plugin",
        r"device marked unhealthy|marking device as unhealthy|the device will go unhealthy"),
    _Message(Kind.FM_MISMATCH, _FM, r"fabric manager .{0,80}(?:don't|doesn't|does not) match"),
    _Message(Kind.FM_FAILED, _FM,
        r"nvidia-fabricmanager\.service: (?:Failed|Main process exited)|"
        r"nv-fabricmanager\S* .{0,80}failed! Exit code"),
    _Message(Kind.FABRIC_NOT_READY, _CUDA,
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|"
        r"(?:CUDA )?error 802\b"),
    _Message(Kind.FABRIC_NOT_READY, _SMI, r"Fabric\b.{0,40}State\W{1,4}In Progress"),
    _Message(Kind.FABRIC_LOST, kernel.SOURCE,
        r"NV_ERR_FABRIC_STATE_OUT_OF_SYNC|Failed to send inband data"),
    _Message(Kind.CUDA_ECC, _CUDA,
        r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"),
    _Message(Kind.CUDA_NVLINK, _CUDA,
        r"uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorNvlinkUncorrectable"),
    _Message(Kind.CUDA_PROGRAM, _CUDA,
        r"an illegal memory access was encountered|device-side assert triggered|"
        r"(?:misaligned address|illegal instruction was encountered)|unspecified launch failure"),
    _Message(Kind.CUDA_FAILED, _CUDA,
        r"failed to initialize CUDA|no CUDA-capable device is detected|"
        r"all CUDA-capable devices are busy or unavailable|"
        r"CUDA driver version is insufficient|CUDA error: unknown error|"
        r"CUDA_ERROR_UNKNOWN|CUDA unknown error"),
    _Message(Kind.NETWORK_FAILED, _CUDA,
        r"NET/IB ?: Got completion from peer \S{1,64} with (?:error|status)[ =]\d+", 1),
    _Message(Kind.NCCL_FAILED, _CUDA,
        r"Watchdog caught collective operation timeout|\bnccl(?:UnhandledCuda|System|Internal|Remote)Error\b|"
        r"NCCL error in:"),
    _Message(Kind.NCCL_FAILED, _CUDA, r"^\W{0,4}(?:\[rank\d+\]: *)?Cuda failure \d* ?'"),
    _Message(Kind.INFOROM, _SMI, r"infoROM is corrupted at gpu (?P<gpu>[0-9a-f:.]{7,16})"),
    _Message(Kind.NIC_DOWN, _NIC,
        r"\b(?:mlx5_core|bnxt_en|ice|irdma) [0-9a-f:.]{7,12} (?P<gpu>\w{2,16}): Link down"),
    _Message(Kind.NOT_JUDGED, "lspci",
        r"^[0-9a-f:.]{7,12} (?:3D|VGA compatible) controller: NVIDIA"),
    _Message(Kind.NOT_JUDGED, "nvidia-smi nvlink -c", r"^Link \d+, P2P is supported: (?:true|false)"),
    _Message(Kind.NOT_JUDGED, "nvidia-smi's table of MIG devices", r"^\s*MIG devices:"),
    _Message(Kind.NOT_JUDGED, "a test that mpirun did not start", r"^There are not enough slots available"),
    _Message(Kind.NOT_JUDGED, "nvidia-smi dmon", r"^#\s*gpu\s.*\b(?:pwr|sm|pid)\b"),
    _Message(Kind.NOT_JUDGED, "nvidia-smi --query-gpu",
        r"^\s*(?:index|name|uuid|timestamp|pci\.bus_id|pcie\.link\.gen\.\w+), .*\b"
        r"(?:name|\w+\.gpu|power\.draw|memory\.(?:used|total)|pcie\.link\.width\.\w+)"),
    _Message(Kind.NOT_JUDGED, "dcgmi discovery", r"^\s*\d{1,3} (?:GPUs|NvSwitches|CPUs) found\.$"),
    _Message(Kind.NOT_JUDGED, "nvbandwidth", r"^nvbandwidth Version|^SUM \w+_(?:ce|sm|total) "),
    _Message(Kind.NOT_JUDGED, "p2pBandwidthLatencyTest",
        r"^\[?P2P \(?Peer-to-Peer\)? GPU Bandwidth|\bP2P=(?:En|Dis)abled (?:Bandwidth|Latency) "),
    _Message(Kind.NOT_JUDGED, "NCCL's log, without results", r"\bNCCL (?:INFO|WARN) "),
    _Message(Kind.NOT_JUDGED, "nvcc --version", r"^nvcc: NVIDIA \(R\) Cuda compiler"),
    _Message(Kind.NOT_JUDGED, "ibstat", r"^CA 'mlx\w+'$"),
    _Message(Kind.NOT_JUDGED, "a command without output",
        r"[$#] (?:sudo )?(?:dmesg|journalctl)\b.{0,80}(?:xid|nvrm|nvidia)"),
)  # fmt: skip
_SHORT = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_RANK = re.compile(r"\[(rank\s?\d{1,5})\]|\b(rank \d{1,5})\b", re.IGNORECASE)
_FM_UNIT = re.compile(
    r"nvidia-fabricmanager\.service - |\bnv-fabricmanager\[|\bmulticast (?:group|team)|"
    r"Successfully configured all the available NVSwitches"
)
_FM_STATE = re.compile(r"\s*Active: (failed|inactive)\b")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """When the first line is read: a probe that reads none need not wait for it."""
    return re.compile(pattern, re.IGNORECASE)


def _folded(pattern: str) -> str:
    """The pattern for folded text, without names of groups and with its letters in lower case."""
    unnamed = pattern.replace("?P<gpu>", "")
    return re.sub(r"\\.|[A-Z]", lambda match: match[0] if match[0][0] == "\\" else match[0].lower(), unnamed)


@cache
def _any() -> re.Pattern[str]:
    """Any of the messages, in folded text: to ignore case takes `re` twice as long."""
    return re.compile("|".join(f"(?:{_folded(each.pattern)})" for each in _MESSAGES))


def read(lines: Sequence[str], gathered: Gathered) -> None:
    """Add the messages of failures."""
    unit = 0
    for index, line in enumerate(lines):
        number = index + 1
        if _FM_UNIT.search(line):
            gathered.seen(_FM, number)
            unit = number
        elif unit and number - unit < 8 and _FM_STATE.match(line):
            gathered.add(Kind.FM_FAILED, number, line, source=_FM)
        if not _any().search(line.casefold()):
            continue
        for message in _MESSAGES:
            if match := _compiled(message.pattern).search(line):
                text = " ".join([line, *lines[number : number + message.following]])
                subject = _subject(message, match, lines, index)
                gathered.add(message.kind, number, text, source=message.source, subject=subject)


def _subject(message: _Message, match: re.Match[str], lines: Sequence[str], index: int) -> str:
    """What a message is about: a GPU's address, or the rank of a program, in it or in the lines beside it."""
    if "gpu" in match.groupdict():
        named = match["gpu"].strip().rstrip(":").strip()
        return f"0000:{named}" if _SHORT.fullmatch(named) else named
    if message.source == kernel.SOURCE and message.kind not in (
        Kind.MISMATCH,
        Kind.NO_DEVICES,
    ):
        after = message.following
        return next((slot for line in near(lines, index, after=after) if (slot := address(line))), "")
    if message.source == _CUDA:
        ranks = (_RANK.search(line) for line in near(lines, index))
        return next(((rank[1] or rank[2]).lower().replace(" ", "") for rank in ranks if rank), "")
    return ""
