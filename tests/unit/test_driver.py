"""The simulated NVML library behaves towards the real pynvml as a driver of its release would."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
from pathlib import Path

import pytest

from support.machines import with_driver
from testbed.driver import build
from testbed.driver.build import DriverBuildError, library_folder
from testbed.driver.client import GPU, NvmlClient, Struct
from testbed.driver.releases import abilities, table
from testbed.hardware import Hardware

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 1, 2, 3, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 12, 13
VERSION_MISMATCH, UNKNOWN = 25, 999
UINT, ULL, INT = 1, 3, 5
SECOND = 10**9


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


def test_every_function_is_one_that_pynvml_calls() -> None:
    """The library has no function that nobody could ask for, but for names that older bindings use."""
    import pynvml

    called = Path(pynvml.__file__).read_text()
    ours = {name for names in table().functions.values() for name in names}

    missing = {name for name in ours if f'"{name}"' not in called}
    old = {"nvmlInit", "nvmlInit_v2", "nvmlDeviceGetComputeRunningProcesses", "nvmlEventSetWait"}
    assert missing == old


# Starting and ending


@pytest.mark.parametrize("damage", ["", "nodegauge-hardware 1\nvisible 0\n", "nodegauge-hardware 2\nend\n"])
def test_half_a_state_file_is_an_error_and_no_answer(h100: Hardware, damage: str) -> None:
    """An empty, cut or foreign file makes NVML answer UNKNOWN, never something from half a state."""
    Path(h100.env()["NODEGAUGE_SIM_HARDWARE"]).write_text(damage)

    with NvmlClient(h100.env(), initialise=False) as client:
        assert client.refusal("nvmlInit") == UNKNOWN


# Handles and arguments


def test_structures_of_another_version_are_refused(nvml: NvmlClient) -> None:
    """A version word that the driver does not know gives ARGUMENT_VERSION_MISMATCH."""
    fabric = "c_nvmlGpuFabricInfo_v2_t"

    assert nvml.ask("nvmlDeviceGetMemoryInfo", GPU(0), 0x02000028)["reserved"] == 328 << 20
    assert nvml.refusal("nvmlDeviceGetMemoryInfo", GPU(0), 0x03000028) == VERSION_MISMATCH
    assert nvml.refusal("nvmlDeviceGetGpuFabricInfoV", GPU(0), Struct(fabric)) == 0
    assert nvml.refusal("nvmlDeviceGetGpuFabricInfoV", GPU(0), Struct(fabric, 0x09000024)) == VERSION_MISMATCH


# Driver releases


@pytest.mark.parametrize(("version", "refused"), [("550.54.15", FUNCTION_NOT_FOUND), ("570.86.10", 0)])
def test_a_function_newer_than_the_driver_is_missing(tmp_path: Path, version: str, refused: int) -> None:
    """pynvml reports FUNCTION_NOT_FOUND, and the older function is there."""
    with NvmlClient(with_driver(version, tmp_path).env()) as nvml:
        assert nvml.refusal("nvmlDeviceGetTemperatureV", GPU(0), 0) == refused
        assert nvml.refusal("nvmlDeviceGetMarginTemperature", GPU(0)) == refused
        assert nvml.ask("nvmlDeviceGetTemperature", GPU(0), 0) == 33


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


@pytest.mark.parametrize(("version", "refused"), [("550.54.15", VERSION_MISMATCH), ("580.65.06", 0)])
def test_the_fabric_structure_grows_with_the_driver(tmp_path: Path, version: str, refused: int) -> None:
    """Version 3 is unknown to older drivers, version 2 to none that have the call."""
    with NvmlClient(with_driver(version, tmp_path).env()) as nvml:
        assert (
            nvml.refusal("nvmlDeviceGetGpuFabricInfoV", GPU(0), Struct("c_nvmlGpuFabricInfo_v3_t")) == refused
        )
        assert (
            nvml.ask("nvmlDeviceGetGpuFabricInfoV", GPU(0), Struct("c_nvmlGpuFabricInfo_v2_t"))["state"] == 3
        )
