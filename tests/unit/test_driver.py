"""The simulated NVML library behaves towards the real pynvml as a driver of its release would."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from support.machines import with_driver
from testbed import profiles
from testbed.driver import build
from testbed.driver.build import DriverBuildError, library_folder
from testbed.driver.client import GPU, NvmlClient, Struct
from testbed.driver.releases import abilities, table
from testbed.hardware import Hardware, plug

INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 2, 3, 13, 25
UINT, ULL = 1, 3
CORRECTED, UNCORRECTED, VOLATILE, AGGREGATE, DRAM, SRAM = 0, 1, 0, 1, 2, 7


# Building


def test_the_library_compiles_without_a_warning(tmp_path: Path) -> None:
    """Warnings in the C code are errors here, though not on other people's compilers."""
    sources = sorted(str(path) for path in build.SOURCE.glob("*.c"))
    compiler = build.find_compiler(os.environ)

    done = subprocess.run(
        [compiler, *build.FLAGS, "-Werror", "-shared", "-o", str(tmp_path / "out.so"), *sources, "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    """Debian and Fedora users each find their command in it."""
    with pytest.raises(DriverBuildError, match=r"apt-get install gcc.*dnf install gcc"):
        library_folder("550.54.15", {"PATH": str(tmp_path), "HOME": str(tmp_path)})


@pytest.mark.parametrize("since", sorted(table().functions))
def test_a_release_exports_its_functions_and_no_other(since: str) -> None:
    """What a driver is too old for is missing from its library; its inside is not visible."""
    library = ctypes.CDLL(str(library_folder(f"{since}.99.01") / build.LIBRARY))
    every = {name for names in table().functions.values() for name in names}
    able = set(abilities(f"{since}.99.01").functions)

    assert {name for name in every if hasattr(library, name)} == able
    assert not hasattr(library, "state_refresh")


# Handles and arguments


def test_structures_of_another_version_are_refused(nvml: NvmlClient) -> None:
    """A version word that the driver does not know gives ARGUMENT_VERSION_MISMATCH."""
    fabric = "c_nvmlGpuFabricInfo_v2_t"

    assert nvml.ask("nvmlDeviceGetMemoryInfo", GPU(0), 0x02000028)["reserved"] == 328 << 20
    assert nvml.refusal("nvmlDeviceGetMemoryInfo", GPU(0), 0x03000028) == VERSION_MISMATCH
    assert nvml.refusal("nvmlDeviceGetGpuFabricInfoV", GPU(0), Struct(fabric)) == 0
    assert nvml.refusal("nvmlDeviceGetGpuFabricInfoV", GPU(0), Struct(fabric, 0x09000024)) == VERSION_MISMATCH


# Driver releases


@pytest.mark.parametrize(
    ("version", "margin", "fabric"),
    [("550.54.15", FUNCTION_NOT_FOUND, VERSION_MISMATCH), ("580.65.06", 0, 0)],
)
def test_what_is_newer_than_the_driver_is_missing(
    tmp_path: Path, version: str, margin: int, fabric: int
) -> None:
    """pynvml reports FUNCTION_NOT_FOUND or a structure's VERSION_MISMATCH; what is older is there."""
    with NvmlClient(with_driver(version, tmp_path).env()) as nvml:
        assert nvml.refusal("nvmlDeviceGetTemperatureV", GPU(0), 0) == margin
        assert nvml.refusal("nvmlDeviceGetMarginTemperature", GPU(0)) == margin
        assert nvml.ask("nvmlDeviceGetTemperature", GPU(0), 0) == 33
        call = "nvmlDeviceGetGpuFabricInfoV"
        assert nvml.refusal(call, GPU(0), Struct("c_nvmlGpuFabricInfo_v3_t")) == fabric
        assert nvml.ask(call, GPU(0), Struct("c_nvmlGpuFabricInfo_v2_t"))["state"] == 3


@pytest.mark.parametrize(
    ("version", "trio", "constants"),
    [
        ("550.54.15", None, None),
        ("570.124.06", None, 251),
        ("575.51.03", 251, 269),
        ("580.65.06", 251, 269),
        ("580.82.07", 269, 251),
        ("590.44.01", 269, 251),
    ],
)
def test_throttle_counters_have_the_numbers_of_their_release(
    tmp_path: Path, version: str, trio: int | None, constants: int | None
) -> None:
    """Counters where the release has them, smoothing constants (success, unsigned) where it has those."""
    with NvmlClient(with_driver(version, tmp_path).env()) as nvml:
        fields = {number: nvml.field(0, number) for first in (251, 269) for number in range(first, first + 3)}

    def reported(first: int | None) -> set[tuple[int, int]]:
        return {
            (f["nvmlReturn"], f["valueType"])
            for n, f in fields.items()
            if first is not None and first <= n < first + 3
        }

    assert reported(trio) == (set() if trio is None else {(0, ULL)})
    assert reported(constants) == (set() if constants is None else {(0, UINT)})
    beyond = {n for n in fields if n > abilities(version).fields_known}
    assert {fields[n]["nvmlReturn"] for n in beyond} <= {INVALID_ARGUMENT}


# What a driver counts and tells


def ecc(nvml: NvmlClient, kind: int, since: int, *, gpu: int = 0) -> int:
    count: int = nvml.ask("nvmlDeviceGetTotalEccErrors", GPU(gpu), kind, since)
    return count


def test_errors_are_counted_by_calls_and_fields_alike(h100: Hardware, nvml: NvmlClient) -> None:
    """Three uncorrectable ones: volatile and aggregate, in DRAM and not in SRAM, in fields 4 and 6."""
    h100.fault("ecc-uncorrectable", gpu=1, count=3)

    assert [ecc(nvml, UNCORRECTED, since, gpu=1) for since in (VOLATILE, AGGREGATE)] == [3, 3]
    assert [ecc(nvml, CORRECTED, VOLATILE, gpu=1), ecc(nvml, UNCORRECTED, VOLATILE)] == [0, 0]
    by_place = [
        nvml.ask("nvmlDeviceGetMemoryErrorCounter", GPU(1), UNCORRECTED, VOLATILE, location)
        for location in (DRAM, SRAM)
    ]
    assert by_place == [3, 0]
    assert [nvml.field(1, number)["value"]["ullVal"] for number in (3, 4, 5, 6)] == [0, 3, 0, 3]


def test_link_errors_have_a_call_and_fields_up_to_the_fourth_generation(tmp_path: Path) -> None:
    """CRC errors of link 7: the call, the link's own field, the sum, Hopper's field; none of NVLink 5's."""
    hardware = with_driver("590.44.01", tmp_path)
    hardware.fault("nvlink-errors", link=7, kind="crc", per_second=0)
    with NvmlClient(hardware.env()) as nvml:
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


def test_a_superchip_tells_its_links_to_the_cpu(nvml: NvmlClient, tmp_path: Path) -> None:
    """By number, state and bandwidth; other GPUs have none."""
    c2c = profiles.load("gh200-1").model.c2c
    assert c2c is not None
    with NvmlClient(plug("gh200-1", tmp_path / "gh200").env()) as superchip:
        answers = [superchip.field(0, number, 4)["value"]["uiVal"] for number in (170, 171, 172)]
    assert answers == [c2c.links, 1, c2c.mbps]
    assert nvml.field(0, 170)["nvmlReturn"] == NOT_SUPPORTED
