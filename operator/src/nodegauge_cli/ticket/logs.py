"""What to save before a reboot or a reset takes it away, and what Kubernetes cannot know, with commands.

Sources: NVIDIA asks for `nvidia-bug-report.sh` as soon as the fault is seen, again after a power cycle if it
hangs, and for the field diagnostic (<https://docs.nvidia.com/deploy/rma-process/index.html>,
<https://docs.nvidia.com/deploy/hw-field-diag/index.html>); part numbers and InfoROM are rows of
`nvidia-smi -q`; the version of the fabric manager comes from `nv-fabricmanager -v` (NVIDIA's release notes).
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from nodegauge_cli.ticket.facts import Ask, Board, Log, Machine, Problem, TicketFacts
from nodegauge_judge import Cause

_NO_FILE = re.compile(r"[^A-Za-z0-9.-]")
_LINKS = {Cause.P2P, Cause.NVLINK, Cause.NCCL, Cause.BUSBW}
_SILENT = {Cause.GPU_LOST, Cause.RESET_REQUIRED, Cause.UNREADABLE, Cause.RECOVERY_ACTION}
"""Causes with which a diagnostic would hang, or find no GPU."""
SHELL = "kubectl debug node/{} -it --profile=sysadmin --image=IMAGE -- chroot /host bash"
"""A root shell on a node without SSH; `IMAGE` is any that the node can pull, such as busybox."""


def with_commands(facts: TicketFacts, *, nvswitch: bool) -> TicketFacts:
    """With what only commands on the node can tell; they are our own words, and are not cleaned."""
    return replace(
        facts,
        ask=asks_for(facts.machine, facts.boards, nvswitch=nvswitch),
        logs=logs_for(facts.node, facts.fault, nvswitch=nvswitch),
    )


def logs_for(node: str, fault: Problem | None, *, nvswitch: bool) -> list[Log]:
    """In the order in which they should be taken."""
    name = _NO_FILE.sub("-", node)
    cause = fault.cause if fault is not None else ""
    logs = [
        Log(
            what="driver, GPUs and system",
            command=f"nvidia-bug-report.sh --output-file nvidia-bug-report-{name}",
            note="First of all. If it hangs, stop it and add --safe-mode. After a power cycle run it again, "
            "and send both files.",
        ),
        Log(
            what="kernel log of this boot",
            command=f"journalctl --dmesg --boot --output=short-iso > kernel-{name}.log",
            note="Without systemd: dmesg --time-format=iso.",
        ),
        Log(what="every value of NVML", command=f"nvidia-smi -q > nvidia-smi-{name}.txt"),
        Log(what="PCIe, with AER", command=f"lspci -vvv > lspci-{name}.txt"),
    ]
    if nvswitch or cause in _LINKS:
        logs += [
            Log(
                what="NVLink state and errors",
                command=f"(nvidia-smi nvlink -s; nvidia-smi nvlink -e) > nvlink-{name}.txt",
            ),
            Log(
                what="fabric manager",
                command=f"cp /var/log/fabricmanager.log fabricmanager-{name}.log",
                note="Machines with NVSwitch.",
            ),
        ]
    logs.append(
        Log(
            what="BMC's event log (SEL)",
            command=f"ipmitool sel elist > sel-{name}.txt",
            note="Bare metal. From elsewhere add -I lanplus -H BMC -U USER -E, with the password in the "
            "environment as IPMI_PASSWORD.",
        )
    )
    if cause not in _SILENT:
        logs.append(
            Log(
                what="DCGM's diagnostic",
                command=f"dcgmi diag -r 3 -j > dcgmi-diag-{name}.json",
                note="Drain the node first: it takes all GPUs for half an hour.",
            )
        )
    logs.append(
        Log(
            what="NVIDIA's field diagnostic",
            command="./fieldiag",
            note="Last of all, on a drained machine without the driver. Your vendor has the program, with a "
            "name of its own for HGX. A replacement needs its log.",
        )
    )
    return logs


def asks_for(machine: Machine, boards: list[Board], *, nvswitch: bool) -> list[Ask]:
    """What a vendor asks for and nobody read."""
    asks = [
        Ask(
            field="part numbers of the boards",
            command="nvidia-smi -q | grep -E '^GPU |Serial Number|Part Number'",
            why="nodegauge does not read them",
        ),
        Ask(
            field="InfoROM versions",
            command="nvidia-smi --query-gpu=index,serial,inforom.img,inforom.ecc --format=csv",
            why="nodegauge does not read them",
        ),
    ]
    if nvswitch:
        asks.append(
            Ask(
                field="version of the fabric manager",
                command="nv-fabricmanager -v",
                why="nodegauge does not read it",
            )
        )
    if any(not board.serial for board in boards if board.accused) or not boards:
        asks.append(
            Ask(
                field="serial number of the GPU",
                command="nvidia-smi --query-gpu=index,serial,pci.bus_id,uuid --format=csv",
                why="the driver did not give it",
            )
        )
    if not machine.serial:
        asks.append(
            Ask(
                field="serial number of the machine",
                command="dmidecode -s system-serial-number",
                why="no BMC was read",
            )
        )
    asks.append(
        Ask(
            field="firmware of BIOS and BMC",
            command="dmidecode -s bios-version; ipmitool mc info",
            why="nodegauge does not read it",
        )
    )
    return asks
