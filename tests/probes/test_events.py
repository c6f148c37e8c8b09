"""Xids: events are asked for once, taken without waiting, told of the right GPU, and let go of at the end."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from nodegauge_contract import Unavailable, XidCount, Xids
from nodegauge_probes.collectors import counters
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder
from support.library import Library

TIMEOUT, LOST = 10, 15
XID, CLOCK = 0x8, 0x10
MISSING = Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND")

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
