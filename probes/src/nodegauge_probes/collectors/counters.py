"""Counters: throttled time, errors and repairs of memory, PCIe and NVLinks, and the window's Xids.

Only growth between two readings is judged.  Throttle counters are read at both ends of the sampling window,
each time with CLOCK_BOOTTIME, so that the first run has a growth, too.

The field ids of three of them moved.  SW thermal, HW thermal and HW power brake did not exist before driver
575, were fields 251 to 253 in 575 to 580.65, and are 269 to 271 since 580.82; 269 to 271 used to be power-
smoothing constants.  The wrong numbers read as "never throttled" without any error, so near the change both
trios are read, and one is used only if it answers and the other does not.  Source: nvidia-ml-py wheels of
those releases compared, and a trace of nvidia-smi 580.65.06 in NVIDIA/k8s-test-infra.

NVLink counters are summed over the active links: a message is too small for eighteen links with eight
counters each.  A probe that runs for seconds misses nearly every Xid, but not its marks: uncorrectable
errors, rows and pages that wait for a reset, the recovery action.  Older boards retire pages where newer
ones remap rows, so one half of `Repair` is always unavailable.  Only Xids between `register_xids` and the
end of the window count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from nodegauge_contract import Counters, Growth, Int, LinkErrors, Text, Unavailable, XidCount
from nodegauge_contract.gpu import MAX_XIDS, SATURATED
from nodegauge_probes.collectors.telemetry import energy
from nodegauge_probes.host.kernel import boottime_ms
from nodegauge_probes.host.kernel import growth as difference
from nodegauge_probes.nvml import results
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.results import ULL
from nodegauge_probes.result_builder import GpuBuilder

OLD_TRIO, NEW_TRIO = (251, 252, 253), (269, 270, 271)
FIRST_WITH_COUNTERS, LAST_IN_DOUBT = 575, 580
"""Field ids of SW thermal, HW thermal and power brake; the drivers between which they moved."""

FI_POWER, FI_THERMAL, FI_SYNC_BOOST, FI_LOW_UTILIZATION = 74, 75, 76, 78
"""NVML_FI_DEV_PERF_POLICY_*: time below application clocks, by cause (nvml.h, nvmlPerfPolicyType_t); fields
whose numbers never changed."""

PERF_POLICY_THERMAL = 1

Reading = int | float | Unavailable


LONGEST_READING_MS = 1000
"""Of one GPU's counters, some twenty calls.  Chosen by this project: a busy machine takes less."""


class Snapshot(Struct, frozen=True):
    """One reading of a GPU's counters, with CLOCK_BOOTTIME in ms from just before and just after it."""

    began_ms: int
    ended_ms: int
    counters: Counters
    energy_mj: Int


def snapshot(nvml: Nvml, device: Device, gpu: GpuBuilder, *, driver: Text) -> Snapshot:
    """Read all counters of one GPU, in nanoseconds, and its energy, into the result and for comparison."""
    began, read, energy_mj = boottime_ms(), _read(nvml, device, driver=driver), energy(nvml, device)
    taken = Snapshot(began, boottime_ms(), read, energy_mj)
    gpu.counters = taken.counters
    gpu.power.set(energy_mj=taken.energy_mj)
    return taken


def growth(before: Snapshot, after: Snapshot) -> Growth:
    """The growth between two snapshots of one GPU.

    Its time spans both readings: a probe that stood still within one of them claims no faster growth.  If it
    stood still for long, the growth would look slower than it was, and counts as unread."""
    reading_ms = max(each.ended_ms - each.began_ms for each in (before, after))
    if reading_ms > max(LONGEST_READING_MS, (after.began_ms - before.ended_ms) // 4):
        return Growth()
    old, new = before.counters, after.counters
    return Growth(
        elapsed_ms=after.ended_ms - before.began_ms,
        sw_power_cap_ns=difference(old.sw_power_cap_ns, new.sw_power_cap_ns),
        sw_thermal_ns=difference(old.sw_thermal_ns, new.sw_thermal_ns),
        hw_thermal_ns=difference(old.hw_thermal_ns, new.hw_thermal_ns),
        power_brake_ns=difference(old.power_brake_ns, new.power_brake_ns),
        thermal_violation_ns=difference(old.thermal_violation_ns, new.thermal_violation_ns),
        energy_mj=difference(before.energy_mj, after.energy_mj),
    )


def _read(nvml: Nvml, device: Device, *, driver: Text) -> Counters:
    def stable(field: int) -> Int:
        return _whole(nvml.fields(device, field, only=ULL)[0])

    power_cap, thermal, boost, low = map(stable, (FI_POWER, FI_THERMAL, FI_SYNC_BOOST, FI_LOW_UTILIZATION))
    if isinstance(thermal, Unavailable):
        call = "nvmlDeviceGetViolationStatus"
        answer = nvml.integer(device, call, PERF_POLICY_THERMAL, pick=lambda status: status.violationTime)
        thermal = thermal if isinstance(answer, Unavailable) else answer
    old, new = (nvml.fields(device, *trio, only=ULL) for trio in (OLD_TRIO, NEW_TRIO))
    trio, (sw_thermal, hw_thermal, brake) = choose(driver, old=old, new=new)
    return Counters(
        trio=trio,
        sw_power_cap_ns=power_cap,
        sync_boost_ns=boost,
        sw_thermal_ns=sw_thermal,
        hw_thermal_ns=hw_thermal,
        power_brake_ns=brake,
        thermal_violation_ns=thermal,
        low_utilization_ns=low,
    )


def choose(driver: Text, *, old: Sequence[Reading], new: Sequence[Reading]) -> tuple[Text, list[Int]]:
    """The name of this driver's trio and its values; or why it is unknown."""
    major = _major(driver)
    if major is None:
        return _none("the driver version is unknown, and the counters' field ids depend on it")
    if major < FIRST_WITH_COUNTERS:
        return _none(f"driver {driver} has no such counters (they came with {FIRST_WITH_COUNTERS})")
    if major > LAST_IN_DOUBT:
        return _named(NEW_TRIO), [_whole(value) for value in new]
    old_answers, new_answers = _is_readable(old), _is_readable(new)
    if old_answers == new_answers:
        which, ending = ("both sets", "") if old_answers else ("neither set", "s")
        return _none(f"driver {driver}: {which} of field ids answer{ending}, so the right one is unknown")
    trio, values = (OLD_TRIO, old) if old_answers else (NEW_TRIO, new)
    return _named(trio), [_whole(value) for value in values]


def _is_readable(trio: Sequence[Reading]) -> bool:
    return all(isinstance(value, int) for value in trio)


def _none(reason: str) -> tuple[Text, list[Int]]:
    return Unavailable(reason), [Unavailable(reason)] * 3


def _named(trio: tuple[int, ...]) -> str:
    return f"{trio[0]}-{trio[-1]}"


def _major(driver: Text) -> int | None:
    head = driver.partition(".")[0] if isinstance(driver, str) else ""
    return int(head) if head.isdigit() else None


def _whole(value: Reading) -> Int:
    return Unavailable("not a whole number") if isinstance(value, float) else value


CORRECTED, UNCORRECTED = 0, 1
"""NVML_MEMORY_ERROR_TYPE_*."""
VOLATILE, AGGREGATE = 0, 1
"""NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC."""
DRAM, SRAM = 2, 7
"""NVML_MEMORY_LOCATION_DRAM, NVML_MEMORY_LOCATION_SRAM."""
SINGLE_BIT, DOUBLE_BIT = 0, 1
"""NVML_PAGE_RETIREMENT_CAUSE_*."""
FI_RECOVERY_ACTION = 230

FI_REPLAY_ROLLOVERS, FI_CORRECTABLE, FI_RECOVERIES = 95, 173, 169
"""NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, _COUNT_CORRECTABLE_ERRORS, _L0_TO_RECOVERY_COUNTER."""

DL_REPLAY, DL_RECOVERY, DL_CRC_FLIT, DL_CRC_DATA, DL_ECC = range(5)
"""NVML_NVLINK_ERROR_DL_*: links up to NVLink 4."""
FI_RECOVERY_FAILED = 214
OLDER = {"replay": DL_REPLAY, "recovery": DL_RECOVERY, "crc_flit": DL_CRC_FLIT, "crc_data": DL_CRC_DATA}
NVLINK5 = {
    FI_RECOVERY_FAILED: "recovery_failed",
    215: "recoveries",
    **dict.fromkeys(range(206, 211), "received"),
    211: "integrity",
    219: "effective",
}
"""A link's counters of what a sound link makes none of.  Those of NVLink 5 are fields
(NVML_FI_DEV_NVLINK_COUNT_*), by the member that they add up to."""
FI_SYMBOL = 221
ACTIVE = 1
NO_LINK = Unavailable("no active NVLink")

XID_CRITICAL_ERROR = 0x8
"""nvmlEventTypeXidCriticalError."""
LOST = Unavailable(results.name_of(results.GPU_IS_LOST))
MAX_EVENTS = 64
"""A GPU with an endless stream of errors must not keep the probe from sampling."""


def repair(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Repairs that are done or wait for a reset, a reboot or a technician."""
    out = gpu.repair
    out.set(action=nvml.whole_field(device, FI_RECOVERY_ACTION))
    rows = _members(nvml.value(device, "nvmlDeviceGetRemappedRows"), count=4)
    out.set(rows_corrected=rows[0], rows_uncorrected=rows[1], rows_pending=rows[2], rows_failed=rows[3])
    out.set(pages_pending=nvml.integer(device, "nvmlDeviceGetRetiredPagesPendingStatus"))
    # Not the call's version 2: pynvml counts the pages with a call that lacks an argument.
    out.set(pages_single_bit=nvml.integer(device, "nvmlDeviceGetRetiredPages", SINGLE_BIT, pick=len))
    out.set(pages_double_bit=nvml.integer(device, "nvmlDeviceGetRetiredPages", DOUBLE_BIT, pick=len))
    out.set(unrepairable=nvml.integer(device, "nvmlDeviceGetUnrepairableMemoryFlag_v1"))
    channels, tpcs = _members(nvml.value(device, "nvmlDeviceGetRepairStatus"), count=2)
    out.set(channels_pending=channels, tpcs_pending=tpcs)


def _members(answer: Any, *, count: int) -> list[Int]:
    """The numbers of an answer, or its refusal for each of them."""
    values = [answer] * count if isinstance(answer, Unavailable) else list(answer)
    assert len(values) == count
    return values


def ecc(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Error counts; if ECC is off the driver refuses them, and the mode shows why."""

    def errors_of(kind: int, period: int) -> Int:
        return nvml.integer(device, "nvmlDeviceGetTotalEccErrors", kind, period)

    def of_life(memory: int) -> Int:
        return nvml.integer(device, "nvmlDeviceGetMemoryErrorCounter", UNCORRECTED, AGGREGATE, memory)

    gpu.ecc.set(mode=nvml.integer(device, "nvmlDeviceGetCurrentEccMode"))
    gpu.ecc.set(volatile_uncorrected=errors_of(UNCORRECTED, VOLATILE))
    gpu.ecc.set(volatile_corrected=errors_of(CORRECTED, VOLATILE))
    gpu.ecc.set(aggregate_uncorrected=errors_of(UNCORRECTED, AGGREGATE))
    gpu.ecc.set(aggregate_corrected=errors_of(CORRECTED, AGGREGATE))
    gpu.ecc.set(sram_threshold=nvml.sram_threshold(device))
    gpu.ecc.set(aggregate_sram=of_life(SRAM))
    gpu.ecc.set(aggregate_dram=of_life(DRAM))


def pcie_errors(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    gpu.pcie.set(replays=nvml.integer(device, "nvmlDeviceGetPcieReplayCounter"))
    gpu.pcie.set(replay_rollovers=nvml.whole_field(device, FI_REPLAY_ROLLOVERS))
    gpu.pcie.set(correctable=nvml.whole_field(device, FI_CORRECTABLE))
    gpu.pcie.set(recoveries=nvml.whole_field(device, FI_RECOVERIES))


def link_errors(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Sums over the active links; a counter that one of them does not report is unavailable."""
    active = [link for group in gpu.links if group.state == ACTIVE for link in group.links]
    if not active:
        gpu.link_errors.value = LinkErrors(**dict.fromkeys(LinkErrors.__struct_fields__, NO_LINK))
        return

    def errors(link: int) -> list[Int]:
        call = "nvmlDeviceGetNvLinkErrorCounter"
        return [nvml.integer(device, call, link, number) for number in (*OLDER.values(), DL_ECC)]

    def fields(link: int) -> list[Int]:
        return [_whole(value) for value in nvml.fields(device, *((n, link) for n in (*NVLINK5, FI_SYMBOL)))]

    older, newer = (_by_link(active, read) for read in (errors, fields))
    names = (*NVLINK5.values(), "symbol")
    of_name = {name: [n for n, each in enumerate(names) if each == name] for name in names}
    sums = {name: _sum(row[n] for row in older) for n, name in enumerate((*OLDER, "ecc"))}
    sums |= {name: _sum(row[n] for row in newer for n in columns) for name, columns in of_name.items()}
    full = {n for rows in (older, newer) for n, row in enumerate(rows) if SATURATED.intersection(row[:-1])}
    gpu.link_errors.set(**sums, full=len(full))


def _by_link(links: Sequence[int], read: Callable[[int], list[Int]]) -> list[list[Int]]:
    """What `read` answers for each link; for the first one alone if that has none of the counters."""
    rows = [read(links[0])]
    known = any(isinstance(count, int) for count in rows[0])
    return [*rows, *map(read, links[1:])] if known else rows


def _sum(counts: Iterator[Int]) -> Int:
    """The sum, or the first reason, after which no further link is read."""
    total = 0
    for count in counts:
        if isinstance(count, Unavailable):
            return count
        total += count
    return total


def register_xids(nvml: Nvml, gpus: list[tuple[Device, GpuBuilder]]) -> None:
    """Ask the driver to report Xids of these GPUs from now on."""
    for device, gpu in gpus:
        gpu.xids.set(registered=nvml.register_events(device, XID_CRITICAL_ERROR))


def collect_xids(nvml: Nvml, gpus: list[tuple[Device, GpuBuilder]]) -> None:
    """Record the Xids that the driver has queued, without waiting for more."""
    for _ in range(MAX_EVENTS):
        event = nvml.next_event()
        if event is None:
            return
        if event == LOST:
            # One lost GPU makes a set answer this for all its GPUs: the others get a new set.
            nvml.free_events()
            register_xids(nvml, gpus)
            return
        if isinstance(event, Unavailable):
            for _, gpu in gpus:
                gpu.xids.set(registered=event)
            return
        device, kind, code = event
        if kind & XID_CRITICAL_ERROR:
            for known, gpu in gpus:
                if known is device:
                    _count_xid(gpu, code, now=boottime_ms() // 1000)


def _count_xid(gpu: GpuBuilder, code: int, *, now: int) -> None:
    xids = gpu.xids.value
    before = dict(zip(xids.seen, xids.counts, strict=True)).get(code, XidCount(count=0, first=now, last=now))
    set_xid(gpu, code, XidCount(count=before.count + 1, first=before.first, last=now))


def set_xid(gpu: GpuBuilder, code: int, count: XidCount) -> None:
    """Record how often an Xid came, up to the document's limit of codes."""
    counts = dict(zip(gpu.xids.value.seen, gpu.xids.value.counts, strict=True))
    if code in counts or len(counts) < MAX_XIDS:
        counts[code] = count
        gpu.xids.set(seen=list(counts), counts=list(counts.values()))
