"""Memory errors, repairs, fans, throttle counters and Xids, through the real binding."""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from msgspec.structs import asdict

from nodegauge_contract import (
    Counters,
    Ecc,
    Fan,
    Growth,
    Int,
    LinkErrors,
    LinkGroup,
    Pcie,
    Unavailable,
    XidCount,
    Xids,
)
from nodegauge_probes.collectors import counters, telemetry
from nodegauge_probes.collectors.counters import Snapshot, choose, growth
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder
from support.library import Library

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
MISSING = Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND")
SUCCESS, INSUFFICIENT_SIZE, NOT_SUPPORTED = 0, 7, 3
UNSIGNED_INT, ULL = 1, 3


def fields(values: dict[Any, int], *, kind: int = ULL) -> Callable[..., int]:
    """nvmlDeviceGetFieldValues that knows these, by id or (id, scope); all others are not supported."""

    def answer(handle: Any, count: Any, array: Any) -> int:
        for element in array._obj:
            key = element.fieldId if element.fieldId in values else (element.fieldId, element.scopeId)
            element.nvmlReturn = SUCCESS if key in values else NOT_SUPPORTED
            element.valueType = kind
            element.value.ullVal = values.get(key, 0)
        return SUCCESS

    return answer


def written(*values: int) -> Callable[..., int]:
    def answer(*arguments: Any) -> int:
        for reference, value in zip(arguments[-len(values) :], values, strict=True):
            reference._obj.value = value
        return SUCCESS

    return answer


def test_remapped_rows_and_the_recovery_action(nvml: Nvml, library: Library, device: Device) -> None:
    gpu = GpuBuilder(3)
    library.has("nvmlDeviceGetRemappedRows", written(5, 2, 1, 0))
    library.has("nvmlDeviceGetFieldValues", fields({230: 4}, kind=UNSIGNED_INT))
    counters.repair(nvml, device, gpu)
    repair = gpu.repair.value
    rows = (repair.rows_corrected, repair.rows_uncorrected, repair.rows_pending, repair.rows_failed)
    assert rows == (5, 2, 1, 0)
    assert repair.action == 4
    assert repair.pages_single_bit == repair.channels_pending == MISSING


def test_retired_pages_are_counted_by_cause(nvml: Nvml, library: Library, device: Device) -> None:
    """Boards before Ampere: how many for single-bit errors, for double-bit errors, and whether one waits."""

    def pages(handle: Any, cause: Any, count: Any, addresses: Any) -> int:
        count._obj.value = {0: 3, 1: 1}[cause.value]
        return INSUFFICIENT_SIZE if addresses is None else SUCCESS

    gpu = GpuBuilder(3)
    library.has("nvmlDeviceGetRetiredPages", pages)
    library.has("nvmlDeviceGetRetiredPagesPendingStatus", written(1))
    counters.repair(nvml, device, gpu)
    assert (gpu.repair.value.pages_single_bit, gpu.repair.value.pages_double_bit) == (3, 1)
    assert gpu.repair.value.pages_pending == 1
    assert gpu.repair.value.rows_failed == MISSING


def test_pending_repairs_and_unrepairable_memory(nvml: Nvml, library: Library, device: Device) -> None:
    gpu = GpuBuilder(3)
    library.fills("nvmlDeviceGetRepairStatus", bChannelRepairPending=1, bTpcRepairPending=0)
    library.fills("nvmlDeviceGetUnrepairableMemoryFlag_v1", unrepairableMemory=1)
    counters.repair(nvml, device, gpu)
    assert (gpu.repair.value.channels_pending, gpu.repair.value.tpcs_pending) == (1, 0)
    assert gpu.repair.value.unrepairable == 1


def test_memory_errors_by_kind_and_age(nvml: Nvml, library: Library, device: Device) -> None:
    def total(handle: Any, kind: Any, since: Any, count: Any) -> int:
        count._obj.value = 1000 + kind.value * 10 + since.value
        return SUCCESS

    def of_memory(handle: Any, kind: Any, since: Any, memory: Any, count: Any) -> int:
        count._obj.value = 2000 + kind.value * 100 + since.value * 10 + memory.value
        return SUCCESS

    gpu = GpuBuilder(3)
    library.has("nvmlDeviceGetEccMode", written(1, 0))
    library.has("nvmlDeviceGetTotalEccErrors", total)
    library.has("nvmlDeviceGetMemoryErrorCounter", of_memory)
    library.fills("nvmlDeviceGetSramEccErrorStatus", bThresholdExceeded=1)
    counters.ecc(nvml, device, gpu)
    since_load = {"volatile_corrected": 1000, "volatile_uncorrected": 1010}
    ever = {"aggregate_corrected": 1001, "aggregate_uncorrected": 1011}
    by_memory = {"sram_threshold": 1, "aggregate_sram": 2117, "aggregate_dram": 2112}
    assert gpu.ecc.value == Ecc(mode=1, **since_load, **ever, **by_memory)


def test_pcie_error_counters(nvml: Nvml, library: Library, device: Device) -> None:
    """Replays and errors by kind, each by its own field."""
    gpu = GpuBuilder(3)
    library.has("nvmlDeviceGetPcieReplayCounter", written(17))
    library.has("nvmlDeviceGetFieldValues", fields({95: 1, 173: 40, 169: 6}))
    counters.pcie_errors(nvml, device, gpu)
    assert gpu.pcie.value == Pcie(replays=17, replay_rollovers=1, correctable=40, recoveries=6)


def linked(*states: int) -> GpuBuilder:
    gpu = GpuBuilder(3)
    gpu.links = [LinkGroup(links=[link], state=state) for link, state in enumerate(states)]
    return gpu


def test_nvlink_errors_are_summed_over_active_links(nvml: Nvml, library: Library, device: Device) -> None:
    """Link 1 is down and does not count; what one link does not tell is not known of the GPU."""

    def errors(handle: Any, link: Any, counter: Any, count: Any) -> int:
        count._obj.value = 65535 if (link, counter) == (2, 1) else 10 ** int(link) * (int(counter) + 1)
        return NOT_SUPPORTED if (link, counter) == (2, 4) else SUCCESS

    numbers = {(n, link): n for n in range(206, 212) for link in (0, 2)}
    numbers |= {(214, 0): 1, (214, 2): 2, (221, 0): 5}
    gpu = linked(1, 0, 1)
    library.has("nvmlDeviceGetNvLinkErrorCounter", errors)
    library.has("nvmlDeviceGetFieldValues", fields(numbers))
    counters.link_errors(nvml, device, gpu)
    counted = {"replay": 101, "recovery": 65537, "crc_flit": 303, "crc_data": 404, "recovery_failed": 3}
    counted |= {"received": 2080, "integrity": 422, "full": 1}
    assert gpu.link_errors.value == LinkErrors(**counted, ecc=NO, recoveries=NO, effective=NO, symbol=NO)


def test_a_gpu_without_active_links_has_no_link_errors(nvml: Nvml, library: Library, device: Device) -> None:
    gpu = linked(0, 0)
    counters.link_errors(nvml, device, gpu)
    assert set(asdict(gpu.link_errors.value).values()) == {Unavailable("no active NVLink")}
    assert library.calls == []


def test_every_fan_is_asked_by_its_number(nvml: Nvml, library: Library, device: Device) -> None:
    """The binding's own call for rpm asks for the first fan alone."""

    def rpm(handle: Any, info: Any) -> int:
        assert info._obj.version == 0x100000C
        info._obj.speed = 1000 + info._obj.fan
        return SUCCESS

    def percent(handle: Any, fan: Any, value: Any) -> int:
        value._obj.value = 40 + int(fan)
        return SUCCESS

    gpu = GpuBuilder(3)
    library.has("nvmlDeviceGetNumFans", written(2))
    library.has("nvmlDeviceGetFanSpeed_v2", percent)
    library.has("nvmlDeviceGetTargetFanSpeed", percent)
    assert nvml.fan_rpm(device, 1) == MISSING
    library.has("nvmlDeviceGetFanSpeedRPM", rpm)
    telemetry.fans(nvml, device, gpu)
    assert gpu.fans == [Fan(percent=40, target=40, rpm=1000), Fan(percent=41, target=41, rpm=1001)]


def test_old_drivers_know_one_fan_or_none(nvml: Nvml, library: Library, device: Device) -> None:
    old, passive, neither = GpuBuilder(0), GpuBuilder(1), GpuBuilder(2)
    telemetry.fans(nvml, device, neither)
    library.has("nvmlDeviceGetFanSpeed", written(55))
    telemetry.fans(nvml, device, old)
    library.has("nvmlDeviceGetNumFans", written(0))
    telemetry.fans(nvml, device, passive)
    assert (old.fans, passive.fans, neither.fans) == ([Fan(percent=55)], [], [])


SILENT = [NO, NO, NO]
OLD, NEW = [1, 2, 3], [11, 12, 13]


@pytest.mark.parametrize(
    ("driver", "old", "new", "trio", "values"),
    [
        ("595.84", OLD, NEW, "269-271", NEW),
        ("590.44.01", OLD, [11, NO, 13], "269-271", [11, NO, 13]),
        ("580.82.07", SILENT, NEW, "269-271", NEW),
        ("580.65.06", OLD, SILENT, "251-253", OLD),
        ("580.65.06", OLD, [0, NO, 0], "251-253", OLD),
        ("575.57.08", OLD, SILENT, "251-253", OLD),
        pytest.param("580.65.06", OLD, [0.5, 1, 2], "251-253", OLD, id="a value of another type"),
        ("570.124.06", OLD, NEW, None, None),
        ("580.65.06", OLD, NEW, None, None),
        ("575.57.08", SILENT, SILENT, None, None),
        (Unavailable("NVML_ERROR_UNKNOWN"), OLD, NEW, None, None),
        ("unknown", OLD, NEW, None, None),
    ],
)
def test_counter_ids_follow_drivers(
    driver: str, old: list[int], new: list[int], trio: str | None, values: list[int] | None
) -> None:
    """New ids past 580, from 575 on those that answer in integers; a driver that may be either has none."""
    chosen, read = choose(driver, old=old, new=new)
    assert isinstance(chosen, Unavailable) == (trio is None)
    assert (chosen, read) == ((chosen, [chosen] * 3) if trio is None else (trio, values))


def test_counters_whose_field_ids_never_moved(nvml: Nvml, library: Library, device: Device) -> None:
    library.has("nvmlDeviceGetFieldValues", fields({(74, 0): 5, (75, 0): 6}))
    read = counters.snapshot(nvml, device, GpuBuilder(3), driver="535.129.03").counters
    assert (read.sw_power_cap_ns, read.thermal_violation_ns) == (5, 6)
    assert isinstance(read.sw_thermal_ns, Unavailable)


def snapshot(began_ms: int, energy: Int = 0, *, took_ms: int = 0, **values: Int) -> Snapshot:
    counters = Counters(**dict.fromkeys(Counters.__struct_fields__, NO) | values)
    return Snapshot(began_ms, began_ms + took_ms, counters, energy)


def test_growth_is_what_was_added_between_two_readings() -> None:
    """From before the first to after the second: the probe may stand still within either."""
    grown = growth(
        snapshot(1_000, 5_000, took_ms=300, sw_thermal_ns=10, power_brake_ns=7),
        snapshot(4_000, 905_000, took_ms=12, sw_thermal_ns=1_500_000_010, power_brake_ns=7),
    )
    unread = dict.fromkeys(("sw_power_cap_ns", "hw_thermal_ns", "thermal_violation_ns"), NO)
    added = {"sw_thermal_ns": 1_500_000_000, "power_brake_ns": 0, "energy_mj": 900_000}
    assert grown == Growth(elapsed_ms=3_012, **added, **unread)


def test_a_reading_that_stood_still_for_long_has_no_growth() -> None:
    """Ten minutes within one: the slowdown of the window would be a small share of them, and pass."""
    after = snapshot(700_000, sw_thermal_ns=5 * 10**9)
    assert growth(snapshot(0, took_ms=600_000, sw_thermal_ns=0), after) == Growth()
    late = snapshot(0, took_ms=1_000, sw_thermal_ns=0)
    assert growth(late, snapshot(4_000, sw_thermal_ns=5 * 10**8)).sw_thermal_ns == 5 * 10**8


def test_a_counter_that_decreased_has_no_growth() -> None:
    grown = growth(snapshot(0, sw_thermal_ns=9, hw_thermal_ns=5), snapshot(1, sw_thermal_ns=8))
    assert grown.sw_thermal_ns == Unavailable("the counter decreased: it was reset")
    assert grown.hw_thermal_ns == NO


TIMEOUT, LOST = 10, 15
XID, CLOCK = 0x8, 0x10

Event = tuple[Device, int, int]
Gpus = list[tuple[Device, GpuBuilder]]


def handle(number: int) -> Any:
    """A device handle, as the binding makes a new one for every answer."""
    return ctypes.cast(number, pynvml.c_nvmlDevice_t)


@pytest.fixture
def gpus() -> Gpus:
    return [(Device(n, handle(4096 * (n + 1))), GpuBuilder(n)) for n in range(3)]


def with_events(library: Library, *events: Event, supported: int = XID | CLOCK) -> None:
    queue = list(events)

    def wait(events: Any, data: Any, milliseconds: Any) -> int:
        assert milliseconds.value == 0, "nobody may wait for an event"
        if not queue:
            return TIMEOUT
        device, kind, code = queue.pop(0)
        data._obj.device = handle(ctypes.cast(device.handle, ctypes.c_void_p).value or 0)
        data._obj.eventType, data._obj.eventData = kind, code
        return 0

    library.has("nvmlEventSetCreate", lambda events: 0)
    library.answers("nvmlDeviceGetSupportedEventTypes", 0, number=supported)
    library.has("nvmlDeviceRegisterEvents", lambda device, kinds, events: 0)
    library.has("nvmlEventSetWait_v2", wait)
    library.has("nvmlEventSetFree", lambda events: 0)
    library.has("nvmlShutdown", lambda: 0)


def heard(nvml: Nvml, gpus: Gpus) -> list[Xids]:
    counters.register_xids(nvml, gpus)
    counters.collect_xids(nvml, gpus)
    return [gpu.xids.value for _, gpu in gpus]


def test_xids_are_told_of_their_gpu(
    nvml: Nvml, library: Library, gpus: Gpus, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "boottime_ms", iter(range(7_000, 11_000, 1_000)).__next__)
    one, two = gpus[1][0], gpus[2][0]
    with_events(library, (one, XID, 79), (two, XID, 31), (one, XID, 79), (one, XID, 48), (two, CLOCK, 99))
    two_kinds = [XidCount(count=2, first=7, last=9), XidCount(count=1, first=10, last=10)]
    assert heard(nvml, gpus) == [
        Xids(registered=True),
        Xids(registered=True, seen=[79, 48], counts=two_kinds),
        Xids(registered=True, seen=[31], counts=[XidCount(count=1, first=8, last=8)]),
    ]
    assert pauses == []
    assert library.calls.count("nvmlEventSetCreate") == 1
    assert library.calls.count("nvmlEventSetWait_v2") == 6


def test_endless_events_end(nvml: Nvml, library: Library, gpus: Gpus) -> None:
    """A GPU that throws Xids all the time does not keep the probe, nor fill the document."""
    with_events(library, *((gpus[0][0], XID, code) for code in range(1000)))
    assert len(heard(nvml, gpus)[0].seen) == 32
    assert library.calls.count("nvmlEventSetWait_v2") == counters.MAX_EVENTS


def test_the_event_set_is_freed_before_the_driver_is_left(nvml: Nvml, library: Library, gpus: Gpus) -> None:
    with_events(library)
    nvml.close()
    assert library.calls == ["nvmlShutdown"]
    nvml.open()
    counters.register_xids(nvml, gpus)
    nvml.close()
    nvml.close()
    assert library.calls.count("nvmlEventSetFree") == 1
    assert library.calls[-2:] == ["nvmlEventSetFree", "nvmlShutdown"]


def test_a_gpu_without_xids_says_so(nvml: Nvml, library: Library, gpus: Gpus) -> None:
    with_events(library, supported=CLOCK)
    assert {xids.registered for xids in heard(nvml, gpus)} == {False}
    assert "nvmlEventSetWait_v2" not in library.calls


@pytest.mark.parametrize(
    "call",
    [
        *("nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"),
        "nvmlEventSetWait_v2",
    ],
)
def test_a_driver_without_events_is_a_reason(nvml: Nvml, library: Library, gpus: Gpus, call: str) -> None:
    with_events(library)
    del library.functions[call]
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert heard(nvml, gpus) == [Xids(registered=MISSING)] * 3


def test_a_lost_gpu_does_not_deafen_the_others(nvml: Nvml, library: Library, gpus: Gpus) -> None:
    """The driver refuses a whole set for one lost GPU: the rest are registered anew, in a set without it."""
    with_events(library)
    counters.register_xids(nvml, gpus)
    with_events(library, (gpus[2][0], XID, 48))
    refused: list[int] = []
    wait = library.functions["nvmlEventSetWait_v2"]

    def wait_once_lost(*arguments: Any) -> int:
        refused.append(LOST)
        return LOST if len(refused) == 1 else wait(*arguments)

    def supported(device: Any, kinds: Any) -> int:
        kinds._obj.value = XID
        return LOST if ctypes.cast(device, ctypes.c_void_p).value == 4096 else 0

    library.has("nvmlEventSetWait_v2", wait_once_lost)
    library.has("nvmlDeviceGetSupportedEventTypes", supported)
    counters.collect_xids(nvml, gpus)
    counters.collect_xids(nvml, gpus)
    lost, *others = (gpu.xids.value for _, gpu in gpus)
    assert lost.registered == Unavailable("NVML_ERROR_GPU_IS_LOST")
    assert [other.registered for other in others] == [True, True]
    assert others[1].seen == [48]
    assert "nvmlEventSetFree" in library.calls


@pytest.mark.parametrize(("address", "code", "seen"), [(99_999_744, 79, []), (4096, 2**64 - 1, [2**63 - 1])])
def test_an_event_that_no_document_holds(
    nvml: Nvml, library: Library, gpus: Gpus, address: int, code: int, seen: list[int]
) -> None:
    """One without a GPU, and one too large: the driver's has 64 bits without a sign."""
    with_events(library, (Device(9, handle(address)), XID, code))
    assert heard(nvml, gpus)[0].seen == seen
