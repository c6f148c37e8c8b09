"""The machine and its boards: who they are, and what their counters say."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from nodegauge_cli.ticket.facts import Board, Machine, Xid
from nodegauge_cli.ticket.raw import Object, mapping, word
from nodegauge_contract import Gpu, Result, Unavailable
from nodegauge_contract.chassis import ChassisReading
from nodegauge_contract.gpu import XidCount
from nodegauge_contract.model import KernelEvent, RepeatedXid
from nodegauge_judge import GpuIdentity
from nodegauge_operator import names
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.api.times import stamp, unstamp

COUNTERS = {
    "ecc.mode": "ECC (1 is on)",
    "ecc.volatile_uncorrected": "uncorrectable ECC errors since driver load",
    "ecc.volatile_corrected": "correctable ECC errors since driver load",
    "ecc.aggregate_uncorrected": "uncorrectable ECC errors of its life",
    "ecc.aggregate_sram": "uncorrectable ECC errors in SRAM",
    "ecc.aggregate_dram": "uncorrectable ECC errors in DRAM",
    "ecc.aggregate_corrected": "correctable ECC errors of its life",
    "ecc.sram_threshold": "SRAM errors above their limit (1 is yes)",
    "repair.rows_uncorrected": "rows remapped, uncorrectable",
    "repair.rows_corrected": "rows remapped, correctable",
    "repair.rows_pending": "row remap pending (1 is yes)",
    "repair.rows_failed": "row remap failed (1 is yes)",
    "repair.pages_double_bit": "pages retired, double bit",
    "repair.pages_single_bit": "pages retired, single bit",
    "repair.pages_pending": "page retirement pending (1 is yes)",
    "repair.unrepairable": "memory beyond repair (1 is yes)",
    "repair.action": "recovery action (0 is none)",
    "pcie.replays": "PCIe replays",
    "pcie.replay_rollovers": "PCIe replay rollovers",
    "pcie.correctable": "PCIe correctable errors",
    "pcie.recoveries": "PCIe link recoveries",
    "link_errors.replay": "NVLink replays",
    "link_errors.recovery": "NVLink recoveries",
    "link_errors.crc_flit": "NVLink CRC errors, flits",
    "link_errors.crc_data": "NVLink CRC errors, data",
    "link_errors.recovery_failed": "NVLink recoveries that failed",
    "link_errors.effective": "NVLink errors let through",
    "link_errors.symbol": "NVLink symbol errors",
    "link_errors.received": "NVLink packets received in error",
    "link_errors.integrity": "NVLink integrity errors",
}
"""Paths into `nodegauge_contract.Gpu`, and what they are called in a ticket."""
_GETTERS = {path: attrgetter(path) for path in COUNTERS}


def machine_of(
    status: ReportStatus, body: Object, chassis: ChassisReading | None, health: Result | None
) -> Machine:
    """The computer; `body`: its Node, empty if it was not read."""
    info = mapping(mapping(body.get("status")).get("nodeInfo"))
    labels = mapping(mapping(body.get("metadata")).get("labels"))
    kernel = text_of(health.host.kernel) if health is not None else ""
    return Machine(
        provider_id=word(mapping(body.get("spec")).get("providerID")),
        machine_id=word(info.get("machineID")),
        system_uuid=word(info.get("systemUUID")),
        boot_id=status.probe[names.PROBE_HEALTH].boot_id or word(info.get("bootID")),
        instance_type=word(labels.get("node.kubernetes.io/instance-type")),
        zone=word(labels.get("topology.kubernetes.io/zone")),
        os_image=word(info.get("osImage")),
        kernel=kernel or status.versions.kernel or word(info.get("kernelVersion")),
        vendor=text_of(chassis.vendor) if chassis is not None else "",
        product=text_of(chassis.product) if chassis is not None else "",
        serial=text_of(chassis.serial) if chassis is not None else "",
    )


def boards_of(status: ReportStatus, health: Result | None, *, accused: Sequence[GpuIdentity]) -> list[Board]:
    """Every GPU of the node, those of the reading whole, then lost ones; `accused`: those of the fault."""
    read = list(health.gpus) if health is not None else []
    known = [_of_reading(gpu) for gpu in read]
    for lost, gpus in ((False, status.gpus.items), (True, status.gpus.missing)):
        for gpu in gpus:
            at = next((i for i, board in enumerate(known) if same(gpu, board)), None)
            if at is None:
                known.append(Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci, lost=lost))
            elif lost:
                known[at] = _identified(replace(known[at], lost=True), gpu)
    known += [
        Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci)
        for gpu in accused
        if not any(same(gpu, board) for board in known)
    ]
    return [
        replace(
            board,
            accused=any(same(gpu, board) for gpu in accused),
            product=board.product or status.gpus.product,
        )
        for board in known
    ]


def _of_reading(gpu: Gpu) -> Board:
    read = ((path, getter(gpu)) for path, getter in _GETTERS.items())
    return Board(
        index=gpu.index,
        serial=text_of(gpu.serial),
        uuid=text_of(gpu.uuid),
        pci=text_of(gpu.pci),
        module=gpu.module_id if isinstance(gpu.module_id, int) else None,
        product=text_of(gpu.name),
        vbios=text_of(gpu.vbios),
        memory_mib=gpu.memory_mib if isinstance(gpu.memory_mib, int) else None,
        counters={path: value for path, value in read if isinstance(value, int)},
    )


def _identified(board: Board, gpu: GpuIdentity) -> Board:
    """The board with what its last reading no longer says: a lost GPU tells its index alone."""
    return replace(
        board, serial=board.serial or gpu.serial, uuid=board.uuid or gpu.uuid, pci=board.pci or gpu.pci
    )


def same(gpu: GpuIdentity, board: Board) -> bool:
    """By the UUID, or its start, where both have one; else by the address; else by the index."""
    if gpu.uuid and board.uuid:
        return board.uuid.startswith(gpu.uuid)
    if gpu.pci and board.pci:
        return gpu.pci == board.pci
    return gpu.index is not None and gpu.index == board.index


def xids_of(status: ReportStatus, health: Result | None) -> list[Xid]:
    """Those of the last health reading, the newest first.  Its times are seconds since boot; the report knows
    when it was."""
    if health is None:
        return []
    read_at, uptime = unstamp(status.probe[names.PROBE_HEALTH].read_at), health.host.boottime_ms
    booted = read_at - uptime / 1000 if read_at and isinstance(uptime, int) else 0.0
    pci = {gpu.index: text_of(gpu.pci) for gpu in health.gpus}
    xids = []
    for gpu in health.gpus:
        counts: list[XidCount | None] = [*gpu.xids.counts, *(None for _ in gpu.xids.seen)]
        xids += [
            _xid(code, seen, booted, gpu=gpu.index, pci=pci[gpu.index])
            for code, seen in zip(gpu.xids.seen, counts, strict=False)
        ]
    for again in health.watch.repeated if health.watch is not None else ():
        xids.append(_xid(again.code, again, booted, gpu=again.gpu, pci=pci.get(again.gpu, "")))
    for event in health.kernel_log.events if health.kernel_log is not None else ():
        if event.code is not None:
            xids.append(_xid(event.code, event, booted, pci=event.subject, source="kernel log"))
    return sorted(xids, key=lambda xid: xid.last, reverse=True)


def _xid(
    code: int,
    seen: XidCount | RepeatedXid | KernelEvent | None,
    booted: float,
    *,
    gpu: int | None = None,
    pci: str = "",
    source: str = "driver",
) -> Xid:
    """One Xid with its times; `booted`: when the boot began, epoch seconds, 0 if unknown."""
    if seen is None:  # from a probe before version 1.5
        return Xid(code=code, gpu=gpu, pci=pci, source=source)
    first, last = (stamp(booted + at) if booted else "" for at in (seen.first, seen.last))
    return Xid(code=code, gpu=gpu, pci=pci, count=seen.count, first=first, last=last, source=source)


def cuda_of(health: Result | None) -> str:
    """The CUDA version that the driver supports; empty if unread."""
    number = health.system.cuda if health is not None else None
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else ""


def nvswitch_of(health: Result | None) -> bool:
    """Whether a GPU has a link to an NVSwitch."""
    links = [gpu.switch_links for gpu in health.gpus] if health is not None else []
    return any(isinstance(count, int) and count > 0 for count in links)


def text_of(value: str | Unavailable) -> str:
    """A text that was read, else an empty one."""
    return "" if isinstance(value, Unavailable) else value
