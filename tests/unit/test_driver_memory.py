"""Error counts, what a driver did about them, and its events: as the real pynvml reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from support.machines import with_driver
from testbed import profiles
from testbed.driver.client import GPU, NvmlClient, Struct
from testbed.hardware import Hardware, plug
from testbed.profiles.model import C2C, Platform

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH = 3, 13, 15, 25
CORRECTED, UNCORRECTED, VOLATILE, AGGREGATE, DRAM, SRAM = 0, 1, 0, 1, 2, 7
XID = 0x8


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    """Hopper under a driver that knows every call."""
    return with_driver("590.44.01", tmp_path / "h100")


@pytest.fixture
def nvml(hardware: Hardware) -> Iterator[NvmlClient]:
    with NvmlClient(hardware.env()) as client:
        yield client


def ecc(nvml: NvmlClient, kind: int, since: int, *, gpu: int = 0) -> int:
    count: int = nvml.ask("nvmlDeviceGetTotalEccErrors", GPU(gpu), kind, since)
    return count


# Memory


def test_errors_are_counted_by_calls_and_fields_alike(hardware: Hardware, nvml: NvmlClient) -> None:
    """Three uncorrectable ones: volatile and aggregate, in DRAM and not in SRAM, in fields 4 and 6."""
    hardware.fault("ecc-uncorrectable", gpu=1, count=3)

    assert [ecc(nvml, UNCORRECTED, since, gpu=1) for since in (VOLATILE, AGGREGATE)] == [3, 3]
    assert [ecc(nvml, CORRECTED, VOLATILE, gpu=1), ecc(nvml, UNCORRECTED, VOLATILE)] == [0, 0]
    by_place = [
        nvml.ask("nvmlDeviceGetMemoryErrorCounter", GPU(1), UNCORRECTED, VOLATILE, location)
        for location in (DRAM, SRAM)
    ]
    assert by_place == [3, 0]
    assert [nvml.field(1, number)["value"]["ullVal"] for number in (3, 4, 5, 6)] == [0, 3, 0, 3]


def test_volatile_counts_end_with_the_driver_and_aggregate_ones_do_not(
    hardware: Hardware, nvml: NvmlClient
) -> None:
    """A reset takes the volatile count to 0; what is written on the board stays."""
    hardware.fault("ecc-uncorrectable", count=2)
    hardware.reset(gpu=0)

    assert [ecc(nvml, UNCORRECTED, since) for since in (VOLATILE, AGGREGATE)] == [0, 2]


# Links and PCIe


def test_link_errors_have_a_call_and_fields_up_to_the_fourth_generation(
    hardware: Hardware, nvml: NvmlClient
) -> None:
    """CRC errors of link 7: the call, the link's own field, the sum, Hopper's field; none of NVLink 5's."""
    hardware.fault("nvlink-errors", link=7, kind="crc", per_second=0)

    assert nvml.ask("nvmlDeviceGetNvLinkErrorCounter", GPU(0), 7, 2) == 1
    assert nvml.ask("nvmlDeviceGetNvLinkErrorCounter", GPU(0), 6, 2) == 0
    values = [nvml.field(0, number)["value"]["ullVal"] for number in (96, 97, 38, 52)]
    assert values == [0, 1, 1, 0]
    assert nvml.field(0, 163, 7)["value"]["ullVal"] == 1
    assert nvml.field(0, 221, 7)["nvmlReturn"] == NOT_SUPPORTED


def test_link_errors_of_the_fifth_generation_are_fields(tmp_path: Path) -> None:
    """On NVLink 5 a failed recovery is field 214, CRC is effective and symbol errors; no old counter."""
    hardware = plug("gb200-4", tmp_path)
    hardware.fault("nvlink-errors", link=2, kind="recovery-failed", per_second=0)
    hardware.fault("nvlink-errors", link=2, kind="crc", per_second=0)

    with NvmlClient(hardware.env()) as nvml:
        assert [nvml.field(0, n, 2)["value"]["ullVal"] for n in (214, 219, 221)] == [1, 1, 1]
        assert [nvml.field(0, n, 3)["value"]["ullVal"] for n in (214, 219, 221)] == [0, 0, 0]
        assert nvml.refusal("nvmlDeviceGetNvLinkErrorCounter", GPU(0), 2, 0) == NOT_SUPPORTED


def test_superchips_and_racks_have_facts_of_their_own(tmp_path: Path) -> None:
    """Links to the CPU by number, state and bandwidth; slot and tray of the chassis; absent elsewhere."""
    result = profiles.load("h100-sxm-8")
    made = msgspec.structs.replace(
        result,
        driver=msgspec.structs.replace(result.driver, version="580.82.07"),
        model=msgspec.structs.replace(result.model, c2c=C2C(links=5, mbps=44712)),
        platform=Platform(chassis_serial="1820000000001", slot=9, tray=4),
    )
    location = Struct("c_nvmlPlatformInfo_v2_t")

    with NvmlClient(plug(made, tmp_path / "made").env()) as nvml:
        assert [nvml.field(0, n, 4)["value"]["uiVal"] for n in (170, 171, 172)] == [5, 1, 44712]
        reported = nvml.ask("nvmlDeviceGetPlatformInfo", GPU(0), location)
        assert (reported["chassisSerialNumber"], reported["slotNumber"]) == ("1820000000001", "\t")
    with NvmlClient(with_driver("580.82.07", tmp_path / "other").env()) as nvml:
        assert nvml.field(0, 170)["nvmlReturn"] == NOT_SUPPORTED
        assert nvml.refusal("nvmlDeviceGetPlatformInfo", GPU(0), location) == NOT_SUPPORTED


# Events


def bus(hardware: Hardware, gpu: int) -> int:
    return int(hardware.profile.gpus[gpu].address.split(":")[1], 16)


def test_xids_are_told_to_who_is_registered_and_only_from_then_on(
    hardware: Hardware, nvml: NvmlClient
) -> None:
    """One from before is not told; two that come after are, each once; those of other GPUs never."""
    hardware.fault("xid", gpu=1, number=31, per_second=0)
    nvml.listen(0, 1)
    assert nvml.events(milliseconds=20) == []
    hardware.fault("xid", gpu=1, number=79, per_second=0)
    hardware.fault("xid", gpu=0, number=48, per_second=0)
    hardware.fault("xid", gpu=5, number=94, per_second=0)

    reported = nvml.events(milliseconds=20)

    assert sorted(reported) == sorted([[bus(hardware, 1), XID, 79], [bus(hardware, 0), XID, 48]])
    assert nvml.events(milliseconds=20) == []


def test_a_wait_ends_with_the_event(hardware: Hardware, nvml: NvmlClient) -> None:
    """A client that waits for ten minutes gets an Xid as soon as it comes."""
    nvml.listen(2)
    nvml.send("events", 600_000)
    assert nvml.silent(seconds=0.2)
    hardware.fault("xid", gpu=2, number=119, per_second=1000)
    assert nvml.receive()[0] == [bus(hardware, 2), XID, 119]


def test_waiting_is_refused_when_a_gpu_is_lost(hardware: Hardware, nvml: NvmlClient) -> None:
    """As any other call on it."""
    nvml.listen(2)
    hardware.fault("gpu-lost", gpu=2)
    assert nvml.refusal("events", 100) == GPU_IS_LOST
