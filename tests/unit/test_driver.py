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
from testbed.driver.build import library_folder
from testbed.driver.client import GPU, NvmlClient, Struct
from testbed.driver.releases import abilities, table
from testbed.hardware import plug

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


@pytest.mark.parametrize("since", sorted(table().functions))
def test_a_release_exports_its_functions_and_no_other(since: str) -> None:
    """What a driver is too old for is missing from its library; its inside is not visible."""
    library = ctypes.CDLL(str(library_folder(f"{since}.99.01") / build.LIBRARY))
    every = {name for names in table().functions.values() for name in names}
    able = set(abilities(f"{since}.99.01").functions)

    assert {name for name in every if hasattr(library, name)} == able
    assert not hasattr(library, "state_refresh")


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


def test_a_superchip_tells_its_links_to_the_cpu(nvml: NvmlClient, tmp_path: Path) -> None:
    """By number, state and bandwidth; other GPUs have none."""
    c2c = profiles.load("gh200-1").model.c2c
    assert c2c is not None
    with NvmlClient(plug("gh200-1", tmp_path / "gh200").env()) as superchip:
        answers = [superchip.field(0, number, 4)["value"]["uiVal"] for number in (170, 171, 172)]
    assert answers == [c2c.links, 1, c2c.mbps]
    assert nvml.field(0, 170)["nvmlReturn"] == NOT_SUPPORTED
