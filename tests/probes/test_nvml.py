"""The binding to NVML over a library made of Python functions, and its raw answers as values."""

import ctypes
from typing import Any

import pynvml
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodegauge_contract import ProblemKind, Unavailable
from nodegauge_probes.nvml import library as binding
from nodegauge_probes.nvml import results
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.results import NvmlUnusable
from support.library import Library, Watched

NOT_SUPPORTED, TIMEOUT, LOST, UNKNOWN = 3, 10, 15, 999


def test_an_answer_is_its_value_and_a_refusal_its_name(nvml: Nvml, library: Library, device: Device) -> None:
    library.answers("nvmlDeviceGetPowerUsage", 0, number=71_000)
    assert nvml.integer(device, "nvmlDeviceGetPowerUsage") == 71_000
    library.answers("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    assert nvml.integer(device, "nvmlDeviceGetPowerUsage") == Unavailable("NVML_ERROR_NOT_SUPPORTED")
    missing = nvml.integer(device, "nvmlDeviceGetEnforcedPowerLimit")
    assert missing == Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND")
    assert nvml.integer(device, "nvmlNotInThisBinding") == missing
    assert device.fault is None


def test_an_older_call_replaces_a_missing_one(nvml: Nvml, library: Library, device: Device) -> None:
    call, older = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    library.answers(older, 0, number=5)
    assert nvml.integer(device, call, fallbacks=((older,),)) == 5
    library.answers(call, NOT_SUPPORTED)
    assert nvml.integer(device, call, fallbacks=((older,),)) == Unavailable("NVML_ERROR_NOT_SUPPORTED")


def test_a_timeout_is_retried(nvml: Nvml, library: Library, device: Device, pauses: list[float]) -> None:
    library.answers("nvmlDeviceGetPowerUsage", TIMEOUT, UNKNOWN, 0, number=9)
    assert nvml.integer(device, "nvmlDeviceGetPowerUsage") == 9
    assert len(pauses) == 2
    library.calls.clear()
    library.answers("nvmlDeviceGetPowerUsage", UNKNOWN)
    assert nvml.integer(device, "nvmlDeviceGetPowerUsage") == Unavailable("NVML_ERROR_UNKNOWN")
    assert len(library.calls) == 4
    nvml.integer(device, "nvmlDeviceGetPowerUsage")
    assert len(library.calls) == 5, "a call that never worked is not retried again and again"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (15, ProblemKind.GPU_LOST),
        (16, ProblemKind.RESET_REQUIRED),
        (8, ProblemKind.INSUFFICIENT_POWER),
        (11, ProblemKind.IRQ_ISSUE),
        (14, ProblemKind.CORRUPTED_INFOROM),
    ],
)
def test_an_answer_that_means_the_gpu_is_ill_is_remembered(
    nvml: Nvml, library: Library, device: Device, code: int, kind: ProblemKind
) -> None:
    library.answers("nvmlDeviceGetPowerUsage", code)
    library.answers("nvmlDeviceGetEnforcedPowerLimit", 0, number=1)
    assert isinstance(nvml.integer(device, "nvmlDeviceGetPowerUsage"), Unavailable)
    assert (device.fault.kind, device.fault.code) == (kind, code)
    asked = nvml.integer(device, "nvmlDeviceGetEnforcedPowerLimit")
    assert (asked == 1) == (code not in (15, 16))


def test_a_lost_peer_is_not_the_asked_gpus_fault(nvml: Nvml, library: Library, device: Device) -> None:
    library.answers("nvmlDeviceGetP2PStatus", LOST)
    other = Device(4, pynvml.c_nvmlDevice_t())
    answer = nvml.pair(device, other, "nvmlDeviceGetP2PStatus", binding.READ)
    assert answer == Unavailable("NVML_ERROR_GPU_IS_LOST")
    assert device.fault is None
    assert other.fault is None


def test_p2p_read_has_a_number_for_an_index(nvml: Nvml, library: Library, device: Device) -> None:
    """pynvml's constant for READ is a tuple, which the library cannot take."""
    assert pynvml.NVML_P2P_CAPS_INDEX_READ == (0,)
    library.answers("nvmlDeviceGetP2PStatus", 0, number=3)
    assert nvml.pair(device, device, "nvmlDeviceGetP2PStatus", binding.READ) == 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (9, ProblemKind.DRIVER_NOT_LOADED),
        (18, ProblemKind.DRIVER_MISMATCH),
        (4, ProblemKind.NO_PERMISSION),
        (999, ProblemKind.NVML_ERROR),
    ],
)
def test_a_driver_that_does_not_open_is_a_problem(library: Library, code: int, kind: ProblemKind) -> None:
    library.has("nvmlInitWithFlags", lambda flags: code)
    with pytest.raises(NvmlUnusable) as error:
        Nvml(watch=Watched(), pause=lambda seconds: None).open()
    assert (error.value.problem.kind, error.value.problem.code) == (kind, code)
    assert error.value.problem.call == "nvmlInit"


def test_a_missing_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "pynvml", None)
    with pytest.raises(NvmlUnusable, match=r"nodegauge\[probes\]"):
        Nvml(watch=Watched(), pause=lambda seconds: None).open()


def test_an_unfit_binding_is_a_reason(nvml: Nvml, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVMLLibraryMismatchError is no NVMLError and carries no code."""

    def mismatch(handle: Any) -> int:
        raise pynvml.NVMLLibraryMismatchError("unversioned function")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", mismatch)
    assert "differ" in nvml.integer(device, "nvmlDeviceGetPowerUsage").unavailable


def test_a_gpu_without_a_handle_keeps_its_place(nvml: Nvml, library: Library) -> None:
    def handle(index: Any, out: Any) -> int:
        return {0: 0, 1: LOST, 2: 4}[index.value]

    library.answers("nvmlDeviceGetCount_v2", 0, number=3)
    library.has("nvmlDeviceGetHandleByIndex_v2", handle)
    kinds = [device.fault and device.fault.kind for device in nvml.devices()]
    assert kinds == [None, ProblemKind.GPU_LOST, ProblemKind.NO_PERMISSION]


def test_the_module_id_is_written_into_our_own_number(nvml: Nvml, library: Library, device: Device) -> None:
    """Given a reference the wrapper returns codes instead of raising; the shared default stays untouched."""
    library.answers("nvmlDeviceGetModuleId", 0, number=6)
    assert nvml.module_id(device) == 6
    library.answers("nvmlDeviceGetModuleId", NOT_SUPPORTED, number=2)
    assert nvml.module_id(device) == Unavailable("NVML_ERROR_NOT_SUPPORTED")
    assert pynvml.nvmlDeviceGetModuleId.__defaults__[0].value == 0


def test_one_unknown_field_does_not_spoil_the_others(nvml: Nvml, library: Library, device: Device) -> None:
    def fields(handle: Any, count: Any, values: Any) -> int:
        array = values._obj
        if any(element.fieldId == 999 for element in array):
            return 2
        for element in array:
            element.nvmlReturn, element.valueType, element.value.ullVal = 0, 3, element.fieldId * 10
        return 0

    library.has("nvmlDeviceGetFieldValues", fields)
    assert nvml.fields(device, 74, 999, 76) == [740, Unavailable("NVML_ERROR_INVALID_ARGUMENT"), 760]
    assert nvml.whole_field(device, 999, 76) == 760


def test_fabric_falls_back_through_the_versions(nvml: Nvml, library: Library, device: Device) -> None:
    v2 = ctypes.sizeof(pynvml.c_nvmlGpuFabricInfo_v2_t)

    def versioned(handle: Any, info: Any) -> int:
        if ctypes.sizeof(info._obj) != v2:
            return 25
        info._obj.state = 3
        return 0

    assert nvml.fabric(device) == Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND")
    library.fills("nvmlDeviceGetGpuFabricInfo", state=2)
    assert nvml.fabric(device).state == 2
    library.has("nvmlDeviceGetGpuFabricInfoV", versioned)
    assert nvml.fabric(device).state == 3
    library.has("nvmlDeviceGetGpuFabricInfoV", lambda handle, info: NOT_SUPPORTED)
    assert nvml.fabric(device) == Unavailable("NVML_ERROR_NOT_SUPPORTED")


def test_every_call_is_announced_before_the_driver_has_it(library: Library, device: Device) -> None:
    watch = Watched()
    nvml = Nvml(watch=watch, pause=lambda seconds: None)
    nvml.open()
    during: list[bool] = []

    def power(handle: Any, out: Any) -> int:
        during.append(watch.inside)
        return 0

    library.has("nvmlDeviceGetPowerUsage", power)
    nvml.integer(device, "nvmlDeviceGetPowerUsage")
    assert watch.entered[-1] == ("nvmlDeviceGetPowerUsage", "GPU 3")
    assert during == [True]
    assert not watch.inside


@example(set())
@example({*range(56, 112), *range(168, 224)})
@given(st.sets(st.integers(0, 255)))
def test_a_mask_reads_as_people_write_sets(numbers: set[int]) -> None:
    """No number is lost or added."""
    text = results.ranges([sum(1 << n % 64 for n in numbers if n // 64 == w) for w in range(4)])
    ends = [part.partition("-")[::2] for part in text.split(",") if part]
    assert {n for first, last in ends for n in range(int(first), int(last or first) + 1)} == numbers
    assert len(ends) == len([n for n in numbers if n - 1 not in numbers]), "a range for each run of them"


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("", ""),
        ("GPU-7", ""),
        ("xyz:00:00.0", ""),
    ],
)
def test_bus_ids_are_spelt_as_in_sysfs(nvml: str, sysfs: str) -> None:
    assert results.bus_id(nvml) == sysfs
    info = pynvml.nvmlPciInfo_t()
    info.busId = b"\xff\xfe\x80"
    assert results.bus_id_of(info) == ""


def element(*, kind: int = 3, status: int = 0, **value: float) -> pynvml.c_nvmlFieldValue_t:
    made = pynvml.c_nvmlFieldValue_t()
    made.nvmlReturn, made.valueType = status, kind
    for member, number in value.items():
        setattr(made.value, member, number)
    return made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (element(kind=0, dVal=1.5), 1.5),
        (element(kind=1, uiVal=7), 7),
        (element(kind=2, ulVal=8), 8),
        (element(kind=3, ullVal=9), 9),
        (element(kind=4, sllVal=-10), -10),
        (element(kind=5, siVal=-7), -7),
        (element(kind=6, usVal=3), 3),
    ],
)
def test_the_value_type_says_which_member_is_meant(field: pynvml.c_nvmlFieldValue_t, value: float) -> None:
    assert results.field(field) == value


def test_a_field_with_a_bad_status_or_type_is_no_value() -> None:
    assert results.field(element(status=3, ullVal=5)) == Unavailable("NVML_ERROR_NOT_SUPPORTED")
    assert isinstance(results.field(element(kind=9)), Unavailable)
    assert isinstance(results.field(element(kind=1, uiVal=5), only=results.ULL), Unavailable)
    assert results.field(element(ullVal=5), only=results.ULL) == 5


@pytest.mark.parametrize("value", [2**32 - 1, 2**64 - 1, 2**63])
def test_no_value_is_never_a_large_number(value: int) -> None:
    assert isinstance(results.whole(value), Unavailable)
    assert (results.signed(2**32 - 7), results.signed(49)) == (-7, 49), "of an unsigned type"


@pytest.mark.parametrize(
    "version", ["c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_t"]
)
def test_fabric_reads_from_every_version_of_the_structure(version: str) -> None:
    info = getattr(pynvml, version)()
    info.state, info.cliqueId = 3, 7
    info.clusterUuid[0] = 0xAB
    read = results.fabric(info)
    assert (read.state, read.clique, read.status) == (3, 7, 0)
    assert read.cluster_uuid == "ab000000-0000-0000-0000-000000000000"
    assert isinstance(read.health_summary, Unavailable) == (not version.endswith("_v3_t"))


def test_the_table_of_error_names_is_the_bindings() -> None:
    theirs = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert theirs == results.NAMES
    assert results.name_of(4242) == "NVML return 4242"
